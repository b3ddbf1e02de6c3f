// SPDX-License-Identifier: MIT
/// @file The two engines that record through the xpu glue: which one is taken, and what follows when the driver's fails.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "core/error.h"
#include "expect_error.h"
#include "runtime/sycl_engine.h"
#include "xpu_fixture.h"

namespace xpugraph {
namespace {

using ::testing::HasSubstr;
using xpu_double::count;
using xpu_double::Native;

#if SYCL_EXT_ONEAPI_GRAPH >= 2
struct XpuEngines : XpuHooksTest {
  PoolId pool = 0;

  void SetUp() override {
    xpu_double::set_native(Native::works);
    pool = hooks->create_pool(0);
    XpuHooksTest::SetUp();
  }
  void TearDown() override {
    hooks->release_pool(pool);
    xpu_double::set_native(Native::absent);
    xpu_double::sticks_when_end_fails(false);
    XpuHooksTest::TearDown();
  }
  std::unique_ptr<Executable> record(std::int64_t size) {
    runtime->begin_capture(0, pool);
    model.forward(size);
    return runtime->end_capture();
  }
  void abort() {
    runtime->begin_capture(0, pool);
    runtime->abort_capture();
  }
  void expect_right(Executable& graph, std::int64_t size) {
    static int value = 1000;
    std::fill(model.in.data, model.in.data + size, ++value);
    runtime->replay(graph, current);
    runtime->synchronize(current);
    EXPECT_EQ(std::count(model.out.data, model.out.data + size, value), size);
  }
  using XpuHooksTest::expect_right;
};

TEST_F(XpuEngines, NativeRecordingIsUsedWhereTheRuntimeHasItAndCanBeTurnedOff) {
  const auto before = sycl_engine::recorded();
  GraphSet set(runtime, 0);
  set.record(8, model.body(8));
  EXPECT_EQ(sycl_engine::recorded().native, before.native + 1);
  EXPECT_EQ(count("native"), 1u);
  EXPECT_EQ(set.nodes(8), 1u) << "the driver does not tell how many";
  expect_right(set, 8, current);
  expect_error<CaptureError>([&] { set.record(2, [] {}); }, "nothing was recorded");

  setenv("XPUGRAPH_NATIVE_RECORDING", "0", 1);
  set.record(4, model.body(4));
  EXPECT_EQ(count("native"), 2u) << "not for size 4";
  EXPECT_EQ(set.nodes(4), 3u);
  setenv("XPUGRAPH_NATIVE_RECORDING", "yes", 1);
  expect_error<ConfigError>([&] { set.record(1, model.body(1)); }, "accepted are 0 and 1");
  expect_untouched();
  unsetenv("XPUGRAPH_NATIVE_RECORDING");
}

TEST_F(XpuEngines, ASizeThatNativeRecordingRefusesIsRecordedByTheCommandGraph) {
  xpu_double::set_native(xpu_double::Native::refused);
  const auto before = sycl_engine::recorded();
  GraphSet set(runtime, 0);
  set.record(8, model.body(8));
  EXPECT_EQ(sycl_engine::recorded().native, before.native);
  EXPECT_EQ(sycl_engine::recorded().command_graph, before.command_graph + 1);
  EXPECT_THAT(sycl_engine::recorded().refusal, HasSubstr("not support"));
  expect_right(set, 8, current);

  xpu_double::set_native(xpu_double::Native::works);
  xpu_double::fail("begin_recording", 1, 1, "UR_RESULT_ERROR_OUT_OF_RESOURCES");
  set.record(4, model.body(4));
  EXPECT_EQ(set.nodes(4), 3u) << "by the command graph";
  expect_right(set, 4, current);
  xpu_double::fail("begin_recording", 1, 2, "UR_RESULT_ERROR_OUT_OF_RESOURCES");
  expect_error<CaptureError>([&] { set.record(2, model.body(2)); }, "and native recording: UR_RESULT_ERROR_OUT_OF_RES");
}
TEST_F(XpuEngines, ACaptureThatFailsToEndIsRepeatedByTheCommandGraphWhichRecordsFromThenOn) {
  for (const char* step : {"end_recording", "empty", "finalize"}) {
    runtime = make_sycl_runtime(hooks);
    EXPECT_FALSE(runtime->repeat_capture()) << "nothing has failed yet";
    EXPECT_EQ(record(16)->nodes(), 1u) << "natively";
    const auto before = sycl_engine::recorded();
    xpu_double::clear();
    xpu_double::fail(step, 1, 1, "UR_RESULT_ERROR_INVALID_GRAPH");
    expect_error<CaptureError>([&] { record(8); }, "UR_RESULT_ERROR_INVALID_GRAPH");
    expect_untouched();
    EXPECT_TRUE(runtime->repeat_capture()) << step;
    const auto graph = record(8);
    EXPECT_EQ(graph->nodes(), 3u) << "by the command graph, after " << step;
    expect_right(*graph, 8);
    EXPECT_FALSE(runtime->repeat_capture()) << "it did not fail";
    record(4);
    EXPECT_EQ(count("native"), 1u) << "not for size 4";
    EXPECT_EQ(sycl_engine::recorded().native, before.native) << "what failed is not counted";
    EXPECT_EQ(sycl_engine::recorded().command_graph, before.command_graph + 2);
    EXPECT_EQ(sycl_engine::recorded().refusal, "UR_RESULT_ERROR_INVALID_GRAPH");
  }
}

TEST_F(XpuEngines, WhoDoesNotRepeatIsToldThatNativeRecordingIsOff) {
  GraphSet set(runtime, 0);
  xpu_double::fail("end_recording");
  try {
    record(8);
    ADD_FAILURE() << "did not fail";
  } catch (const CaptureError& error) {
    EXPECT_THAT(error.what(), HasSubstr("native recording is off from now on"));
  }
  set.record(8, model.body(8));
  EXPECT_EQ(set.nodes(8), 3u);
  expect_right(set, 8, current);
}

TEST_F(XpuEngines, ASetRepeatsByItself) {
  for (const char* step : {"end_recording", "finalize", "raw_alloc"}) {
    runtime = make_sycl_runtime(hooks);
    GraphSet set(runtime, 0);
    xpu_double::fail(step);
    set.record(8, model.body(8));
    EXPECT_EQ(set.nodes(8), 3u) << step;
    expect_right(set, 8, current);
  }
}

TEST_F(XpuEngines, ARepeatThatFailsTooNamesBothReasonsAndIsNotRepeated) {
  for (const char* step : {"begin_recording", "finalize"}) {
    runtime = make_sycl_runtime(hooks);
    xpu_double::fail("end_recording", 1, 1, "the first reason");
    EXPECT_THROW(record(8), CaptureError);
    ASSERT_TRUE(runtime->repeat_capture());
    xpu_double::fail(step, 1, 1, "the second reason");
    try {
      record(8);
      ADD_FAILURE() << "did not fail";
    } catch (const CaptureError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the second reason (and native recording: the first reason)"));
    }
    EXPECT_FALSE(runtime->repeat_capture());
    expect_untouched();
  }
}

// Whether native recording is to blame for a forward that raises shows only when the command graph records it.
TEST_F(XpuEngines, AForwardThatFailsOnlyUnderNativeRecordingTurnsItOff) {
  abort();
  ASSERT_TRUE(runtime->repeat_capture());
  abort();
  EXPECT_FALSE(runtime->repeat_capture()) << "the forward's own fault";
  EXPECT_EQ(record(8)->nodes(), 1u) << "still natively";

  abort();
  ASSERT_TRUE(runtime->repeat_capture());
  EXPECT_EQ(record(8)->nodes(), 3u);
  EXPECT_EQ(record(4)->nodes(), 3u) << "and off from then on";
  EXPECT_THAT(sycl_engine::recorded().refusal, HasSubstr("forward failed"));
}

TEST_F(XpuEngines, OnlyItsOwnThreadRepeatsAFailureAndOnlyAtOnce) {
  abort();
  std::thread([&] { EXPECT_FALSE(runtime->repeat_capture()); }).join();
  EXPECT_EQ(record(8)->nodes(), 1u) << "nobody asked";
  EXPECT_FALSE(runtime->repeat_capture());
}

TEST_F(XpuEngines, AQueueThatTheDriverLeftRecordingIsReplaced) {
  const auto old = record(16);
  xpu_double::sticks_when_end_fails(true);
  xpu_double::fail("end_recording");
  EXPECT_THROW(record(8), CaptureError);
  EXPECT_TRUE(recording(capture)) << "what the test is about";
  EXPECT_EQ(c10::xpu::getCurrentXPUStream(0).id(), before);

  const Stream fresh = hooks->capture_stream(0);
  EXPECT_NE(fresh, capture);
  EXPECT_EQ(hooks->capture_stream(0), fresh);
  capture = fresh;
  expect_untouched();
  const auto graph = record(8);
  expect_right(*graph, 8);
  expect_right(*old, 16);
}
#endif

TEST_F(XpuHooksTest, TheEnginesOfTheDevicesAreNamed) {
  const bool native = SYCL_EXT_ONEAPI_GRAPH >= 2;
  EXPECT_THAT(sycl_engine::devices(),
              HasSubstr(native ? "engine: command graph (no native recording: " : "engine: command graph\n"));
  EXPECT_THAT(sycl_engine::build(), HasSubstr("libsycl major: " + std::to_string(__LIBSYCL_MAJOR_VERSION) + "\n"));
}

}  // namespace
}  // namespace xpugraph
