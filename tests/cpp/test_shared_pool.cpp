// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "core/error.h"
#include "core/shared_pool.h"
#include "expect_error.h"
#include "fake_runtime.h"

namespace xpugraph {
namespace {

using ::testing::ElementsAre;
using testing::FakeRuntime;
using testing::Injected;

struct SharedPoolTest : ::testing::Test {
  std::shared_ptr<FakeRuntime> runtime = std::make_shared<FakeRuntime>();

  void TearDown() override {
    EXPECT_EQ(runtime->live_pools(), 0);
    EXPECT_THAT(runtime->violations(), ::testing::IsEmpty());
  }
  /// A capture that takes `bytes` from the pool.
  void grow(SharedPool& pool, std::size_t bytes) {
    runtime->begin_capture(0, pool.acquire());
    runtime->allocate(bytes);
    runtime->abort_capture();
  }
};

TEST_F(SharedPoolTest, CreatesOnFirstUseAndReleasesOnce) {
  {
    SharedPool pool(runtime, 3);
    EXPECT_EQ(pool.id(), 0u);
    EXPECT_EQ(pool.stats().reserved, 0u);
    EXPECT_THAT(runtime->trace(), ::testing::IsEmpty());
    EXPECT_EQ(pool.acquire(), 1u);
    EXPECT_EQ(pool.acquire(), 1u);
  }
  EXPECT_THAT(runtime->trace(), ElementsAre("create_pool(3)", "release_pool(1)"));
}

TEST_F(SharedPoolTest, ReleaseThenAcquireGivesAFreshPool) {
  SharedPool pool(runtime, 0);
  grow(pool, 100);
  pool.note_growth(8, 100);
  pool.release();
  pool.release();
  EXPECT_EQ(pool.id(), 0u);
  EXPECT_EQ(pool.bytes_of(8), 0u);
  EXPECT_EQ(pool.acquire(), 2u);
  EXPECT_EQ(pool.stats().reserved, 0u);
  EXPECT_EQ(runtime->count_of("release_pool"), 1);
}

TEST_F(SharedPoolTest, MovesItsPool) {
  static_assert(!std::is_copy_constructible_v<SharedPool> && !std::is_copy_assignable_v<SharedPool>);
  SharedPool first(runtime, 0, 500);
  first.acquire();
  first.note_growth(8, 64);
  SharedPool second(std::move(first));
  EXPECT_EQ(second.id(), 1u);
  EXPECT_EQ(second.bytes_of(8), 64u);
  EXPECT_EQ(second.limit_bytes(), 500u);
  EXPECT_EQ(runtime->live_pools(), 1);

  SharedPool third(runtime, 0);
  third.acquire();
  third = std::move(second);
  EXPECT_EQ(third.id(), 1u);
  EXPECT_EQ(runtime->live_pools(), 1) << "the assigned-to pool gave its own back";
  SharedPool& same = third;
  third = std::move(same);
  EXPECT_EQ(third.id(), 1u);
}

TEST_F(SharedPoolTest, AFailedCreationLeavesNoPool) {
  SharedPool pool(runtime, 0);
  runtime->fail_at("create_pool", 1);
  expect_error<Injected>([&] { pool.acquire(); }, "create_pool");
  EXPECT_EQ(pool.id(), 0u);
  EXPECT_EQ(pool.acquire(), 1u);
}

TEST_F(SharedPoolTest, AccountsTheGrowthOfEachSize) {
  SharedPool pool(runtime, 0);
  pool.note_growth(8, 64);
  pool.note_growth(4, 0);
  pool.note_growth(8, 6);
  EXPECT_EQ(pool.bytes_of(8), 70u);
  EXPECT_EQ(pool.bytes_of(4), 0u);
  EXPECT_EQ(pool.bytes_of(2), 0u);
  EXPECT_THAT(pool.growth(), ElementsAre(::testing::Pair(4, 0), ::testing::Pair(8, 70)));
}

TEST_F(SharedPoolTest, IsOverItsLimitOnlyAboveIt) {
  SharedPool pool(runtime, 0, 100);
  EXPECT_FALSE(pool.over_limit());
  grow(pool, 100);
  EXPECT_FALSE(pool.over_limit());
  grow(pool, 101);
  EXPECT_TRUE(pool.over_limit());
  SharedPool unlimited(runtime, 0);
  grow(unlimited, std::size_t{1} << 60);
  EXPECT_FALSE(unlimited.over_limit());
}

TEST_F(SharedPoolTest, NeedsARuntime) {
  expect_error<ConfigError>([] { SharedPool(nullptr, 0); }, "runtime");
}

}  // namespace
}  // namespace xpugraph
