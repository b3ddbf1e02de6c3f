// SPDX-License-Identifier: MIT
/// @file CachingAllocator over the host's heap, so that the sanitizers see every byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "expect_error.h"
#include "runtime/caching_allocator.h"

namespace xpugraph {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::size_t kMiB = std::size_t{1} << 20;

Stream stream(std::uintptr_t number) { return Stream{0, reinterpret_cast<void*>(number)}; }

struct CachingAllocatorTest : ::testing::Test {
  std::map<void*, std::size_t> segments;
  std::vector<std::string> calls;
  bool device_full = false;
  bool order_fails = false;
  CachingAllocator allocator{raw_memory()};

  RawMemory raw_memory() {
    RawMemory raw;
    raw.allocate = [this](std::size_t bytes) {
      calls.push_back("allocate " + std::to_string(bytes));
      if (device_full) throw OutOfMemoryError("the device is full");
      void* pointer = std::aligned_alloc(64, bytes);
      segments[pointer] = bytes;
      return pointer;
    };
    raw.release = [this](void* pointer) {
      calls.push_back("release");
      EXPECT_EQ(segments.erase(pointer), 1u);
      std::free(pointer);
    };
    raw.drain = [this] { calls.push_back("drain"); };
    raw.order = [this](Stream after, Stream before) {
      if (order_fails) throw CaptureError("recording");
      calls.push_back("order " + std::to_string(reinterpret_cast<std::uintptr_t>(after.handle)) + " after " +
                      std::to_string(reinterpret_cast<std::uintptr_t>(before.handle)));
    };
    return raw;
  }
  void TearDown() override {
    EXPECT_EQ(allocator.stats().used, 0u);
    EXPECT_EQ(allocator.stats().blocks, 0u);
    allocator.empty_cache();
    EXPECT_THAT(segments, IsEmpty());
    EXPECT_EQ(allocator.stats().reserved, 0u);
    EXPECT_EQ(allocator.stats().segments, 0u);
  }
};

TEST_F(CachingAllocatorTest, NothingIsNullAndMayBeFreed) {
  EXPECT_EQ(allocator.allocate(0, stream(1)), nullptr);
  allocator.free(nullptr);
  EXPECT_THAT(calls, IsEmpty());
}

TEST_F(CachingAllocatorTest, AFreedBlockIsReusedByItsStreamOnly) {
  void* first = allocator.allocate(3 * kMiB, stream(1));
  allocator.free(first);
  void* other = allocator.allocate(3 * kMiB, stream(2));
  EXPECT_NE(other, first);
  EXPECT_EQ(allocator.allocate(3 * kMiB, stream(1)), first);
  EXPECT_EQ(segments.size(), 2u);
  allocator.free(first);
  allocator.free(other);
}

TEST_F(CachingAllocatorTest, NeighboursMergeAgain) {
  void* pieces[4];
  for (void*& piece : pieces) piece = allocator.allocate(512 * 1024, stream(1));
  ASSERT_EQ(segments.size(), 1u);
  for (int i : {2, 0, 3, 1}) allocator.free(pieces[i]);
  void* whole = allocator.allocate(2 * kMiB, stream(1));
  EXPECT_EQ(segments.size(), 1u);
  allocator.free(whole);
}

TEST_F(CachingAllocatorTest, PoolsDoNotShareAndGoBackWhole) {
  const PoolId pool = allocator.create_pool();
  allocator.begin_allocate_to_pool(stream(1), pool);
  void* inside = allocator.allocate(1000, stream(1));
  void* other_stream = allocator.allocate(1000, stream(2));
  allocator.end_allocate_to_pool(stream(1), pool);
  void* outside = allocator.allocate(1000, stream(1));
  EXPECT_EQ(allocator.pool_stats(pool).used, 1024u);
  EXPECT_EQ(allocator.pool_stats(0).used, 2048u);
  EXPECT_EQ(segments.size(), 3u);

  allocator.release_pool(pool);
  EXPECT_EQ(segments.size(), 3u) << "a block of the pool is still handed out";
  expect_error<ConfigError>([&] { allocator.pool_stats(pool); }, "no pool " + std::to_string(pool));
  allocator.free(inside);
  EXPECT_EQ(segments.size(), 2u);
  allocator.free(outside);
  allocator.free(other_stream);
}

TEST_F(CachingAllocatorTest, APoolIsDrainedBeforeItGoesBack) {
  const PoolId pool = allocator.create_pool();
  allocator.begin_allocate_to_pool(stream(1), pool);
  allocator.free(allocator.allocate(1000, stream(1)));
  allocator.end_allocate_to_pool(stream(1), pool);
  calls.clear();
  allocator.release_pool(pool);
  EXPECT_THAT(calls, ElementsAre("drain", "release"));
}

TEST_F(CachingAllocatorTest, LaterSmallerGraphsFitIntoThePool) {
  const PoolId pool = allocator.create_pool();
  std::size_t largest_alone = 0;
  for (std::size_t size : {256, 248, 200, 64, 8, 1}) {
    allocator.begin_allocate_to_pool(stream(1), pool);
    void* a = allocator.allocate(size * 40000, stream(1));
    void* b = allocator.allocate(size * 30000, stream(1));
    allocator.free(a);
    void* c = allocator.allocate(size * 35000, stream(1));
    allocator.free(b);
    allocator.free(c);
    allocator.end_allocate_to_pool(stream(1), pool);
    if (largest_alone == 0) largest_alone = allocator.pool_stats(pool).reserved;
  }
  EXPECT_EQ(allocator.pool_stats(pool).reserved, largest_alone);
  allocator.release_pool(pool);
}

TEST_F(CachingAllocatorTest, RepeatedWorkTakesNoFurtherMemory) {
  // Large and small requests in every order: what is free in a segment of the other kind must not hide what fits.
  const std::vector<std::size_t> sizes{3 * kMiB, 1000, 3 * kMiB / 2, kMiB, 700'000, kMiB + 1, 5 * kMiB, 400'000};
  std::size_t reserved = 0;
  for (int round = 0; round < 50; ++round) {
    for (std::size_t first = 0; first < sizes.size(); ++first) {
      std::vector<void*> held;
      for (std::size_t i = 0; i < 3; ++i)
        held.push_back(allocator.allocate(sizes[(first + i) % sizes.size()], stream(1)));
      for (void* pointer : held) allocator.free(pointer);
    }
    if (round == 0) reserved = allocator.stats().reserved;
  }
  EXPECT_EQ(allocator.stats().reserved, reserved);
  EXPECT_LE(reserved, 16 * kMiB);
}

TEST_F(CachingAllocatorTest, RoutingIsPerThread) {
  const PoolId pool = allocator.create_pool();
  allocator.begin_allocate_to_pool(stream(1), pool);
  void* elsewhere = nullptr;
  std::thread([&] { elsewhere = allocator.allocate(1000, stream(1)); }).join();
  EXPECT_EQ(allocator.pool_stats(pool).used, 0u);
  allocator.end_allocate_to_pool(stream(1), pool);
  allocator.free(elsewhere);
  allocator.release_pool(pool);
}

TEST_F(CachingAllocatorTest, RoutesNest) {
  const PoolId outer = allocator.create_pool();
  const PoolId inner = allocator.create_pool();
  allocator.begin_allocate_to_pool(stream(1), outer);
  allocator.begin_allocate_to_pool(stream(1), inner);
  void* in = allocator.allocate(1000, stream(1));
  allocator.end_allocate_to_pool(stream(1), inner);
  void* out = allocator.allocate(1000, stream(1));
  allocator.end_allocate_to_pool(stream(1), outer);
  EXPECT_EQ(allocator.pool_stats(inner).used, 1024u);
  EXPECT_EQ(allocator.pool_stats(outer).used, 1024u);
  for (void* pointer : {in, out}) allocator.free(pointer);
  allocator.release_pool(outer);
  allocator.release_pool(inner);
  expect_error<ConfigError>([&] { allocator.begin_allocate_to_pool(stream(1), 777); }, "no pool 777");
}

TEST_F(CachingAllocatorTest, ABlockUsedByAnotherStreamWaitsForIt) {
  void* block = allocator.allocate(1000, stream(1));
  allocator.record_stream(block, stream(2));
  allocator.record_stream(block, stream(2));
  allocator.record_stream(block, stream(1));
  calls.clear();
  allocator.free(block);
  EXPECT_THAT(calls, ElementsAre("order 1 after 2"));
  EXPECT_EQ(allocator.allocate(1000, stream(1)), block);
  allocator.free(block);
  EXPECT_THAT(calls, ElementsAre("order 1 after 2")) << "the users of its former life are forgotten";
}

TEST_F(CachingAllocatorTest, ABlockThatCannotBeOrderedYetIsNotReused) {
  void* block = allocator.allocate(1000, stream(1));
  allocator.record_stream(block, stream(2));
  order_fails = true;
  allocator.free(block);
  void* second = allocator.allocate(1000, stream(1));
  EXPECT_NE(second, block);
  order_fails = false;
  EXPECT_EQ(allocator.allocate(1000, stream(1)), block);
  allocator.free(block);
  allocator.free(second);
}

TEST_F(CachingAllocatorTest, TheLimitCountsWhatIsReserved) {
  allocator.set_limit(4 * kMiB);
  void* first = allocator.allocate(3 * kMiB, stream(1));
  expect_error<OutOfMemoryError>([&] { allocator.allocate(kMiB, stream(1)); }, "limit 4194304");
  EXPECT_EQ(allocator.stats().failures, 1u);
  allocator.free(first);
  // What nobody uses goes back to make room.
  void* other = allocator.allocate(4 * kMiB, stream(2));
  EXPECT_EQ(segments.size(), 1u);
  allocator.free(other);
}

TEST_F(CachingAllocatorTest, AFullDeviceIsTriedAgainOnce) {
  device_full = true;
  expect_error<OutOfMemoryError>([&] { allocator.allocate(1000, stream(1)); }, "the device is full");
  EXPECT_THAT(calls, ElementsAre("allocate 2097152", "allocate 2097152"));
  EXPECT_EQ(allocator.stats().retries, 1u);
  device_full = false;
  allocator.free(allocator.allocate(1000, stream(1)));
}

// Blocks handed out at one time are aligned, hold what was asked for, and never overlap; what is written stays.
TEST_F(CachingAllocatorTest, RandomUseNeverOverlaps) {
  std::mt19937 random(7);
  struct Held {
    unsigned char* pointer;
    std::size_t bytes;
    unsigned char mark;
  };
  std::vector<Held> held;
  const auto give_back = [&](std::size_t index) {
    const Held one = held[index];
    for (std::size_t i = 0; i < one.bytes; ++i) ASSERT_EQ(one.pointer[i], one.mark);
    allocator.free(one.pointer);
    held[index] = held.back();
    held.pop_back();
  };
  for (int step = 0; step < 3000; ++step) {
    if (held.size() < 40 && random() % 3 != 0) {
      const std::size_t bytes = std::size_t{1} << (random() % 18);
      Held one{static_cast<unsigned char*>(allocator.allocate(bytes + random() % 7, stream(1 + random() % 3))), bytes,
               static_cast<unsigned char>(step)};
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(one.pointer) % 64, 0u);
      std::memset(one.pointer, one.mark, bytes);
      held.push_back(one);
    } else if (!held.empty()) {
      give_back(random() % held.size());
    }
  }
  while (!held.empty()) give_back(0);
}

}  // namespace
}  // namespace xpugraph
