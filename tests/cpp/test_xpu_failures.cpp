// SPDX-License-Identifier: MIT
/// @file Failures at every step of a capture through the xpu glue: torch must be left as it was, whatever fails.
#include <ATen/core/CachingHostAllocator.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.h"
#include "expect_error.h"
#include "xpu_fixture.h"

namespace xpugraph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using xpu_double::count;

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

}  // namespace
}  // namespace xpugraph
