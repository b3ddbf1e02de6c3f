// SPDX-License-Identifier: MIT
/// @file The xpu glue with SyclRuntime and GraphSet on top: real captures and replays through torch's c10::xpu interface,
/// on a double of the library. What is asked is whether torch would be left as it was, whatever fails.
#include <ATen/core/CachingHostAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <sycl/sycl.hpp>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/graph_set.h"
#include "expect_error.h"
#include "runtime/sycl_runtime.h"
#include "torch/xpu_hooks.h"
#include "xpu_double.h"

namespace xpugraph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using xpu_double::count;

sycl::queue& queue_of(Stream stream) { return *static_cast<sycl::queue*>(stream.handle); }

bool recording(Stream stream) {
  return queue_of(stream).ext_oneapi_get_state() == sycl::ext::oneapi::experimental::queue_state::recording;
}

sycl::queue& current_queue() { return c10::xpu::getCurrentXPUStream(0).queue(); }

/// Memory outside of torch's pools, which the host can read on this device.
class Ints {
 public:
  explicit Ints(std::size_t size)
      : data(sycl::malloc_device<int>(size, c10::xpu::get_raw_device(0), c10::xpu::get_device_context())), size(size) {
    std::fill(data, data + size, -1);
  }
  ~Ints() { sycl::free(data, c10::xpu::get_device_context()); }
  Ints(const Ints&) = delete;
  Ints& operator=(const Ints&) = delete;
  std::size_t bytes(std::size_t count) const { return count * sizeof(int); }
  int* const data;
  const std::size_t size;
};

/// out[0..n) = in[0..n) by way of memory of the pool; out[n] = 0.
struct Model {
  Ints in{4096}, out{4097};
  void forward(std::int64_t n) {
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(int);
    auto* const between = static_cast<int*>(xpu_double::allocate(bytes));
    current_queue().memcpy(between, in.data, bytes);
    current_queue().memcpy(out.data, between, bytes);
    current_queue().memset(out.data + n, 0, sizeof(int));
    xpu_double::free(between);
  }
  std::function<void()> body(std::int64_t n) {
    return [this, n] { forward(n); };
  }
};

struct XpuHooksTest : ::testing::Test {
  std::shared_ptr<DeviceHooks> hooks = make_xpu_hooks();
  std::shared_ptr<GraphRuntime> runtime = make_sycl_runtime(hooks);
  Stream capture = hooks->capture_stream(0);
  c10::StreamId before = c10::xpu::getCurrentXPUStream(0).id();
  Stream current = hooks->current_stream(0);
  Model model;

  void SetUp() override { xpu_double::clear(); }
  void TearDown() override {
    xpu_double::no_failures();
    expect_untouched();
    EXPECT_EQ(xpu_double::pools_in_use(), 0u);
    EXPECT_EQ(xpu_double::host_pools_in_use(), 0u);
    for (const char* forbidden : {"syncStreamsOnDevice", "device_synchronize", "emptyCache", "host.empty_cache"})
      EXPECT_EQ(count(forbidden), 0u) << forbidden;
    EXPECT_EQ(count("getStreamFromPool"), 0u) << "a stream of torch's pool may be anybody's";
  }
  /// As before a capture, but for pools.
  void expect_untouched() {
    EXPECT_EQ(c10::xpu::getCurrentXPUStream(0).id(), before);
    EXPECT_EQ(xpu_double::open_scopes(), 0u);
    EXPECT_EQ(xpu_double::marked_captures(), 0);
    EXPECT_FALSE(recording(capture));
    EXPECT_FALSE(recording(current));
    void* const outside = xpu_double::allocate(16);
    EXPECT_FALSE(xpu_double::in_a_pool(outside));
    xpu_double::free(outside);
  }
  void expect_right(GraphSet& set, std::int64_t size, Stream stream) {
    static int value = 0;
    std::fill(model.in.data, model.in.data + size, ++value);
    std::fill(model.out.data, model.out.data + model.out.size, -1);
    set.replay(size, stream);
    runtime->synchronize(stream);
    for (std::int64_t i = 0; i < size; ++i) ASSERT_EQ(model.out.data[i], value) << "size " << size << " at " << i;
    ASSERT_EQ(model.out.data[size], 0);
  }
};

std::vector<std::string> without(std::vector<std::string> calls, const std::vector<std::string>& unwanted) {
  calls.erase(std::remove_if(calls.begin(), calls.end(),
                             [&](const auto& call) {
                               return std::find(unwanted.begin(), unwanted.end(), call) != unwanted.end();
                             }),
              calls.end());
  return calls;
}

const std::vector<std::string> kReads{"getCurrentXPUStream", "markCaptureBegin", "markCaptureEnd"};

// ---- order ----------------------------------------------------------------------------------------------------------

TEST_F(XpuHooksTest, RoutesBeforeItRecordsAndEndsAfter) {
  GraphSet set(runtime, 0);
  set.record(8, model.body(8));
  EXPECT_THAT(without(xpu_double::calls(), kReads),
              ElementsAre("createOrIncrefPool", "setCurrentXPUStream", "beginAllocateToPool",
                          "host.begin_allocate_to_pool", "begin_recording", "raw_alloc", "end_recording", "finalize",
                          "endAllocateToPool", "releasePool", "host.end_allocate_to_pool", "setCurrentXPUStream"));
  xpu_double::clear();
  set.record(4, model.body(4));
  EXPECT_THAT(without(xpu_double::calls(), kReads),
              ElementsAre("setCurrentXPUStream", "beginAllocateToPool", "host.begin_allocate_to_pool",
                          "begin_recording", "raw_alloc", "end_recording", "finalize", "endAllocateToPool",
                          "releasePool", "host.end_allocate_to_pool", "host.release_pool", "setCurrentXPUStream"));
}

TEST_F(XpuHooksTest, AFailedCaptureEndsInTheSameOrder) {
  GraphSet set(runtime, 0);
  set.record(8, model.body(8));
  xpu_double::clear();
  EXPECT_THROW(set.record(4, [] { throw std::runtime_error("forward"); }), std::runtime_error);
  EXPECT_THAT(without(xpu_double::calls(), kReads),
              ElementsAre("setCurrentXPUStream", "beginAllocateToPool", "host.begin_allocate_to_pool",
                          "begin_recording", "end_recording", "endAllocateToPool", "releasePool",
                          "host.end_allocate_to_pool", "host.release_pool", "setCurrentXPUStream"));
}

TEST_F(XpuHooksTest, AReplayAsksTorchForNothingButTheCurrentStream) {
  GraphSet set(runtime, 0);
  set.record(8, model.body(8));
  xpu_double::clear();
  set.replay(8, runtime->current_stream(0));
  runtime->synchronize(current);
  EXPECT_THAT(xpu_double::calls(), ElementsAre("getCurrentXPUStream"));
}

// ---- streams --------------------------------------------------------------------------------------------------------

TEST_F(XpuHooksTest, AllSizesAreRecordedOnOneStreamAndShareThePoolOfTheLargest) {
  GraphSet set(runtime, 0);
  std::vector<sycl::queue*> queues;
  std::vector<std::size_t> reserved;
  for (std::int64_t size : {4096, 2048, 1024, 8, 4, 2, 1}) {
    set.record(size, [&] {
      queues.push_back(&current_queue());
      model.forward(size);
    });
    reserved.push_back(set.pool().stats().reserved);
  }
  for (sycl::queue* queue : queues) EXPECT_EQ(queue, capture.handle);
  for (std::size_t bytes : reserved) EXPECT_EQ(bytes, 4096 * sizeof(int));
  EXPECT_EQ(set.pool().stats().used, 0u);
  for (std::int64_t size : set.sizes()) expect_right(set, size, current);
}

TEST_F(XpuHooksTest, TheCaptureStreamIsNobodyElses) {
  EXPECT_EQ(make_xpu_hooks()->capture_stream(0).device, 0);
  EXPECT_EQ(hooks->capture_stream(0), capture);
  for (int i = 0; i < 100; ++i) EXPECT_NE(&c10::xpu::getStreamFromPool(0, 0).queue(), capture.handle);
  EXPECT_TRUE(queue_of(capture).is_in_order());
  EXPECT_EQ(queue_of(capture).get_context(), c10::xpu::get_device_context());
  xpu_double::clear();
}

TEST_F(XpuHooksTest, TheVeryStreamThatWasCurrentComesBack) {
  // The same queue under another id: as torch's own, and as one from outside.
  const auto outside = c10::xpu::getStreamFromExternal(static_cast<sycl::queue*>(current.handle), 0);
  ASSERT_NE(outside.id(), before);
  c10::xpu::setCurrentXPUStream(outside);
  GraphSet set(runtime, 0);
  set.record(8, model.body(8));
  EXPECT_EQ(c10::xpu::getCurrentXPUStream(0).id(), outside.id());
  c10::xpu::setCurrentXPUStream(
      c10::xpu::XPUStream(c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::XPU, 0), before)));
  set.record(4, model.body(4));
  EXPECT_EQ(c10::xpu::getCurrentXPUStream(0).id(), before);
}

TEST_F(XpuHooksTest, AReplayOnAnotherStreamRunsAfterTheLast) {
  Ints a(1024), b(1024);
  GraphSet set(runtime, 0);
  set.record(1, [&] { current_queue().memcpy(b.data, a.data, a.bytes(1024)); });
  set.record(2, [&] { current_queue().memset(a.data, 0, a.bytes(1024)); });  // would spoil the first, were it earlier
  const Stream second{0, &c10::xpu::getStreamFromPool(0, 0).queue()};
  ASSERT_NE(second, current);
  for (int round = 1; round <= 3; ++round) {
    std::fill(a.data, a.data + 1024, round);
    std::atomic<bool> open{false};  // what the first stream does meanwhile
    queue_of(current).submit([&](sycl::handler& handler) {
      handler.host_task([&] {
        while (!open) std::this_thread::yield();
      });
    });
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      open = true;
    });
    set.replay(1, current);
    set.replay(2, second);
    runtime->synchronize(second);
    opener.join();
    runtime->synchronize(current);
    EXPECT_EQ(b.data[0], round);
    EXPECT_EQ(b.data[1023], round);
    EXPECT_EQ(a.data[1023], 0);
  }
  xpu_double::clear();
}

TEST_F(XpuHooksTest, AStreamThatRecordsIsNotWaitedFor) {
  GraphSet set(runtime, 0);
  set.record(2, [&] {
    expect_error<CaptureError>([&] { hooks->synchronize(capture); }, "records a graph");
    hooks->wait_idle(capture);
    expect_error<CaptureError>([&] { runtime->order(current, capture); }, "recording");
    model.forward(2);
  });
  expect_right(set, 2, current);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

TEST_F(XpuHooksTest, AThreadsOwnAllocationsGoToThePoolAndNoOthers) {
  GraphSet set(runtime, 0);
  void* other_threads = nullptr;
  void* of_side_stream = nullptr;
  set.record(2, [&] {
    std::thread([&] { other_threads = xpu_double::allocate(64); }).join();
    const auto saved = c10::xpu::getCurrentXPUStream(0);
    c10::xpu::setCurrentXPUStream(c10::xpu::getStreamFromPool(0, 0));
    of_side_stream = xpu_double::allocate(64);
    c10::xpu::setCurrentXPUStream(saved);
    model.forward(2);
  });
  EXPECT_FALSE(xpu_double::in_a_pool(other_threads));
  EXPECT_TRUE(xpu_double::in_a_pool(of_side_stream));
  xpu_double::free(other_threads);
  xpu_double::free(of_side_stream);
  xpu_double::clear();
}

TEST_F(XpuHooksTest, ThePoolHasOneUseWhateverIsRecordedAndNoneAfterTheSet) {
  int* output = nullptr;
  {
    GraphSet set(runtime, 0);
    for (std::int64_t size : {8, 4, 2}) {
      set.record(size, [&] {
        model.forward(size);
        if (size == 8) {
          output = static_cast<int*>(xpu_double::allocate(8 * sizeof(int)));
          current_queue().memcpy(output, model.in.data, 8 * sizeof(int));
        }
      });
    }
    for (int i = 0; i < 3; ++i) EXPECT_THROW(set.record(1, [] { throw 1; }), int);
    EXPECT_EQ(xpu_double::pools_in_use(), 1u);
    EXPECT_EQ(xpu_double::host_pools_in_use(), 1u);
    EXPECT_EQ(count("beginAllocateToPool"), count("releasePool")) << "the use of creation is left";
    EXPECT_EQ(set.pool().stats().used, 512u) << "the output";
    expect_right(set, 8, current);
  }
  EXPECT_EQ(xpu_double::pools_in_use(), 0u);
  EXPECT_TRUE(xpu_double::in_a_pool(output)) << "an output that somebody holds keeps its memory";
  EXPECT_EQ(output[7], model.in.data[7]);
  xpu_double::free(output);
}

TEST_F(XpuHooksTest, APoolOfWhichEveryCaptureFailedIsGivenBack) {
  GraphSet set(runtime, 0);
  for (int i = 0; i < 5; ++i) {
    EXPECT_THROW(set.record(4, [] { throw std::runtime_error("forward"); }), std::runtime_error);
    EXPECT_EQ(xpu_double::pools_in_use(), 0u);
    EXPECT_EQ(xpu_double::host_pools_in_use(), 0u);
  }
}

TEST_F(XpuHooksTest, PoolsAreCheckedByName) {
  expect_error<ConfigError>([&] { hooks->pool_stats(12345); }, "12345");
  expect_error<ConfigError>([&] { hooks->begin_allocate_to_pool(current, 12345); }, "12345");
  const PoolId pool = hooks->create_pool(0);
  expect_error<ConfigError>([&] { hooks->begin_allocate_to_pool({1, current.handle}, pool); }, "of device 0");
  hooks->release_pool(pool);
  hooks->release_pool(pool);
}

// ---- failures -------------------------------------------------------------------------------------------------------

struct XpuHooksFailure : XpuHooksTest, ::testing::WithParamInterface<const char*> {};

TEST_P(XpuHooksFailure, LeavesStreamPoolAndQueueAsBeforeAndTheNextCaptureWorks) {
  for (const bool first : {true, false}) {  // the set's first graph, whose pool goes with it, and a later one
    GraphSet set(runtime, 0);
    if (!first) set.record(16, model.body(16));
    const std::size_t pools = xpu_double::pools_in_use(), host_pools = xpu_double::host_pools_in_use();
    if (!first && std::string(GetParam()) == "createOrIncrefPool") continue;
    xpu_double::fail(GetParam());
    try {
      set.record(8, model.body(8));
      ADD_FAILURE() << GetParam() << " did not fail";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("injected"));
    }
    expect_untouched();
    EXPECT_EQ(xpu_double::pools_in_use(), pools);
    EXPECT_EQ(xpu_double::host_pools_in_use(), host_pools);
    set.record(8, model.body(8));
    expect_right(set, 8, current);
    if (!first) expect_right(set, 16, current);
  }
}

INSTANTIATE_TEST_SUITE_P(AtEachStep, XpuHooksFailure,
                         ::testing::Values("createOrIncrefPool", "setCurrentXPUStream", "beginAllocateToPool",
                                           "host.begin_allocate_to_pool", "begin_recording", "raw_alloc",
                                           "end_recording", "finalize"));

TEST_F(XpuHooksTest, AUseThatTorchCountedBeforeItRefusedIsGivenBack) {
  GraphSet set(runtime, 0);
  set.record(8, model.body(8));
  xpu_double::fail_after_counting("beginAllocateToPool");
  expect_error<CaptureError>([&] { set.record(4, model.body(4)); }, "already recording");
  xpu_double::no_failures();
  expect_untouched();
  set.record(4, model.body(4));
  expect_right(set, 4, current);
}

TEST_F(XpuHooksTest, ACleanUpThatFailsDoesNotSkipTheRest) {
  for (const char* step : {"endAllocateToPool", "releasePool", "host.end_allocate_to_pool"}) {
    const PoolId pool = hooks->create_pool(0);
    runtime->begin_capture(0, pool);
    model.forward(4);
    xpu_double::clear();
    xpu_double::fail(step);
    const auto graph = runtime->end_capture();
    EXPECT_EQ(c10::xpu::getCurrentXPUStream(0).id(), before) << step;
    EXPECT_FALSE(recording(capture)) << step;
    for (const char* other : {"endAllocateToPool", "releasePool", "host.end_allocate_to_pool"})
      EXPECT_EQ(count(other), 1u) << other << " when " << step << " fails";
    // What the failure itself left behind.
    const c10::MempoolId_t id{0, (std::uint64_t{1} << 62) + pool};
    if (std::string(step) == "endAllocateToPool") c10::xpu::XPUCachingAllocator::endAllocateToPool(0, id);
    if (std::string(step) == "releasePool") c10::xpu::XPUCachingAllocator::releasePool(0, id);
    if (std::string(step) == "host.end_allocate_to_pool") at::getHostAllocator(at::kXPU)->end_allocate_to_pool(id);
    if (std::string(step) == "host.end_allocate_to_pool") at::getHostAllocator(at::kXPU)->release_pool(id);
    hooks->release_pool(pool);
  }
}

// A driver that runs out of what it needs for a graph at the fifth size, as reported of some cards.
TEST_F(XpuHooksTest, WhenTheDriverRefusesTheFifthGraphTheFirstFourServe) {
  for (const char* step : {"begin_recording", "finalize"}) {
    GraphSet set(runtime, 0);
    xpu_double::fail(step, 5, 100, "UR_RESULT_ERROR_OUT_OF_RESOURCES");
    std::vector<std::int64_t> dropped;
    for (std::int64_t size : {64, 32, 16, 8, 4, 2, 1}) {
      try {
        set.record(size, model.body(size));
      } catch (const CaptureError& error) {
        EXPECT_THAT(error.what(), HasSubstr("UR_RESULT_ERROR_OUT_OF_RESOURCES"));
        dropped.push_back(size);
      }
      expect_untouched();
    }
    xpu_double::no_failures();
    EXPECT_THAT(dropped, ElementsAre(4, 2, 1));
    for (std::int64_t size : {64, 32, 16, 8}) expect_right(set, size, current);
    set.record(4, model.body(4));
    expect_right(set, 4, current);
  }
}

TEST_F(XpuHooksTest, AGraphOfWorkThatWentToAnotherQueueIsRefused) {
  GraphSet set(runtime, 0);
  const auto elsewhere = [&] { queue_of(current).memset(model.out.data, 0, 16); };
  expect_error<CaptureError>([&] { set.record(4, elsewhere); }, "nothing was recorded");
  runtime->synchronize(current);
  expect_untouched();
}

// ---- threads --------------------------------------------------------------------------------------------------------

TEST_F(XpuHooksTest, TwoThreadsRecordAndReplayTheirOwnSets) {
  std::atomic<int> wrong{0};
  const auto work = [&](int number) {
    const auto stream = c10::xpu::getStreamFromPool(0, 0);
    c10::xpu::setCurrentXPUStream(stream);
    Model own;
    for (int round = 0; round < 20; ++round) {
      GraphSet set(runtime, 0);
      for (std::int64_t size : {64, 8, 1}) set.record(size, own.body(size));
      for (std::int64_t size : {1, 64, 8}) {
        std::fill(own.in.data, own.in.data + size, 1000 * number + round);
        set.replay(size, runtime->current_stream(0));
        runtime->synchronize(runtime->current_stream(0));
        wrong += std::count(own.out.data, own.out.data + size, 1000 * number + round) == size ? 0 : 1;
      }
    }
    if (c10::xpu::getCurrentXPUStream(0).id() != stream.id()) ++wrong;
  };
  std::thread one(work, 1), two(work, 2);
  one.join();
  two.join();
  EXPECT_EQ(wrong, 0);
  xpu_double::clear();
}

TEST_F(XpuHooksTest, RecordingAgainAndAgainTakesNoMoreMemory) {
  const auto once = [&] {
    GraphSet set(runtime, 0);
    for (std::int64_t size : {64, 8, 1}) set.record(size, model.body(size));
    return set.pool().stats().reserved;
  };
  const std::size_t first = once();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(once(), first);
}

}  // namespace
}  // namespace xpugraph
