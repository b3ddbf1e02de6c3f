// SPDX-License-Identifier: MIT
/// @file The xpu glue with SyclRuntime and GraphSet on top: real captures and replays through torch's c10::xpu interface,
/// on a double of the library: order of calls, streams, memory, threads.
#include <c10/util/Exception.h>
#include <atomic>
#include <chrono>

#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "expect_error.h"
#include "xpu_fixture.h"

namespace xpugraph {
namespace {

using ::testing::ElementsAre;
using xpu_double::count;

std::vector<std::string> without(std::vector<std::string> calls, const std::vector<std::string>& unwanted) {
  calls.erase(std::remove_if(calls.begin(), calls.end(),
                             [&](const auto& call) {
                               return std::find(unwanted.begin(), unwanted.end(), call) != unwanted.end();
                             }),
              calls.end());
  return calls;
}

const std::vector<std::string> kReads{"getCurrentXPUStream", "markCaptureBegin", "markCaptureEnd", "exchange_device",
                                      "set_device"};

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

// Which of a queue's streams was current is each thread's own.
TEST_F(XpuHooksTest, TheStreamThatComesBackIsNotThatOfAnotherThread) {
  const auto outside = c10::xpu::getStreamFromExternal(static_cast<sycl::queue*>(current.handle), 0);
  GraphSet set(runtime, 0);
  set.record(8, model.body(8));
  std::thread([&] {
    c10::xpu::setCurrentXPUStream(outside);
    EXPECT_EQ(hooks->current_stream(0), current);
  }).join();
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
    EXPECT_EQ(count("wait"), 0u);
    expect_error<CaptureError>([&] { runtime->order(current, capture); }, "recording");
    model.forward(2);
  });
  expect_right(set, 2, current);
}

TEST_F(XpuHooksTest, AWaitThatFailsIsLogged) {
  struct Log : c10::WarningHandler {
    void process(const c10::Warning& warning) override { text += warning.msg(); }
    std::string text;
  } log;
  const c10::WarningUtils::WarningHandlerGuard guard(&log);
  hooks->wait_idle(current);
  EXPECT_EQ(log.text, "");
  xpu_double::fail("wait", 1, 1, "UR_RESULT_ERROR_DEVICE_LOST");
  hooks->wait_idle(current);
  EXPECT_EQ(count("wait"), 2u);
  EXPECT_THAT(log.text, ::testing::HasSubstr("UR_RESULT_ERROR_DEVICE_LOST"));
}

// A forward that forks to another stream and joins it again; and one that forgets to join.
TEST_F(XpuHooksTest, ASideStreamIsRecordedTooAndDoesNotStayRecording) {
  const Stream side{0, &c10::xpu::getStreamFromPool(0, 0).queue()};
  Ints a(64), b(64), c(64);
  GraphSet set(runtime, 0);
  for (const bool join : {true, false}) {
    set.record(join ? 1 : 2, [&] {
      const sycl::event fork = current_queue().memcpy(b.data, a.data, a.bytes(64));
      queue_of(side).ext_oneapi_submit_barrier({fork});
      const sycl::event end = queue_of(side).memcpy(c.data, b.data, a.bytes(64));
      EXPECT_TRUE(recording(side));
      if (join) current_queue().ext_oneapi_submit_barrier({end});
    });
    EXPECT_FALSE(recording(side)) << (join ? "joined" : "not joined");
  }
  std::fill(a.data, a.data + 64, 7);
  set.replay(1, current);
  runtime->synchronize(current);
  EXPECT_EQ(c.data[63], 7);
  // Dropped in the middle of it.
  EXPECT_THROW(
      set.record(3,
                 [&] {
                   queue_of(side).ext_oneapi_submit_barrier({current_queue().memcpy(b.data, a.data, a.bytes(64))});
                   throw std::runtime_error("forward");
                 }),
      std::runtime_error);
  EXPECT_FALSE(recording(side));
  xpu_double::clear();
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

// torch.xpu.use_mem_pool around a build: torch asks that pool's route first, and would never come to ours.
TEST_F(XpuHooksTest, AnotherPoolOfThisThreadIsRefusedAndOfAnotherThreadIsNot) {
  namespace allocator = c10::xpu::XPUCachingAllocator;
  const std::size_t used = xpu_double::used();
  GraphSet set(runtime, 0);
  for (const bool mine : {true, false}) {
    const c10::MempoolId_t users{0, mine ? 7 : 8};
    const auto me = std::this_thread::get_id();
    const auto route = [=](sycl::queue*) { return (std::this_thread::get_id() == me) == mine; };
    allocator::createOrIncrefPool(0, users);
    allocator::beginAllocateToPool(0, users, route);
    if (mine)
      expect_error<CaptureError>([&] { set.record(4, model.body(4)); }, "build outside of torch.xpu.use_mem_pool");
    else
      set.record(4, model.body(4));
    allocator::endAllocateToPool(0, users);
    for (int use = 0; use < 2; ++use) allocator::releasePool(0, users);
    expect_untouched();
    EXPECT_EQ(xpu_double::pools_in_use(), mine ? 0u : 1u);
    EXPECT_EQ(xpu_double::used(), used) << "what was tried out is given back";
    EXPECT_EQ(count("begin_recording"), mine ? 0u : 1u);
  }
  expect_right(set, 4, current);
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
