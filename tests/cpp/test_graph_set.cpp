// SPDX-License-Identifier: MIT
/// @file GraphSet on the fake runtime: the order of calls and of destruction, and every failure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/graph_set.h"
#include "expect_error.h"
#include "fake_runtime.h"

namespace xpugraph {
namespace {

using ::testing::ElementsAre;
using testing::FakeRuntime;
using testing::Injected;
using ::testing::IsEmpty;

const Stream kStream7 = FakeRuntime::stream(7);
const Stream kStream8 = FakeRuntime::stream(8);
const Stream kCaptureStream = FakeRuntime::stream(FakeRuntime::kCaptureStream);

struct GraphSetTest : ::testing::Test {
  std::shared_ptr<FakeRuntime> runtime = std::make_shared<FakeRuntime>();
  std::vector<std::int64_t> replayed;

  void TearDown() override {
    EXPECT_EQ(runtime->live_executables(), 0);
    EXPECT_EQ(runtime->live_pools(), 0);
    EXPECT_FALSE(runtime->capturing());
    EXPECT_THAT(runtime->violations(), IsEmpty());
  }
  /// A body that takes `bytes` from the pool and, when replayed, notes that `size` ran.
  std::function<void()> body(std::int64_t size, std::size_t bytes = 64) {
    return [this, size, bytes] {
      runtime->allocate(bytes);
      runtime->submit(kCaptureStream, [this, size] { replayed.push_back(size); });
    };
  }
};

// ---- order of calls -------------------------------------------------------------------------------------------------

TEST_F(GraphSetTest, RecordsBetweenBeginAndEnd) {
  GraphSet set(runtime, 0);
  EXPECT_THAT(runtime->trace(), IsEmpty());
  set.record(8, body(8));
  EXPECT_THAT(runtime->trace(), ElementsAre("create_pool(0)", "pool_stats(1)", "begin_capture(0,1)", "allocate(64)",
                                            "submit(s99)", "end_capture()", "pool_stats(1)"));
  EXPECT_THAT(replayed, IsEmpty()) << "recording does not run";
  EXPECT_TRUE(set.contains(8));
  EXPECT_EQ(set.nodes(8), 1u);
  EXPECT_EQ(runtime->current(), FakeRuntime::stream(0));
}

TEST_F(GraphSetTest, AllGraphsShareOnePool) {
  GraphSet set(runtime, 0);
  set.record(8, body(8, 800));
  set.record(4, body(4, 400));
  set.record(16, body(16, 1000));
  EXPECT_THAT(set.sizes(), ElementsAre(4, 8, 16));
  EXPECT_EQ(runtime->count_of("create_pool"), 1);
  EXPECT_EQ(set.pool().stats().reserved, 1000u);
  EXPECT_EQ(set.pool().bytes_of(8), 800u);
  EXPECT_EQ(set.pool().bytes_of(4), 0u);
  EXPECT_EQ(set.pool().bytes_of(16), 200u);
}

TEST_F(GraphSetTest, ReplaysTheGraphOfTheSize) {
  GraphSet set(runtime, 0);
  set.record(8, body(8));
  set.record(4, body(4));
  runtime->clear_trace();
  for (std::int64_t size : {4, 8, 8, 4}) set.replay(size, kStream7);
  EXPECT_THAT(replayed, ElementsAre(4, 8, 8, 4));
  EXPECT_THAT(runtime->trace(), ElementsAre("replay(g2,s7)", "replay(g1,s7)", "replay(g1,s7)", "replay(g2,s7)"));
}

TEST_F(GraphSetTest, OrdersAStreamAfterTheLastOneOnlyWhenItChanges) {
  GraphSet set(runtime, 0);
  set.record(8, body(8));
  runtime->clear_trace();
  EXPECT_EQ(set.last_stream(), std::nullopt);
  set.replay(8, kStream7);
  set.replay(8, kStream8);
  set.replay(8, kStream8);
  set.replay(8, kStream7);
  EXPECT_THAT(runtime->trace(), ElementsAre("replay(g1,s7)", "order(s8,s7)", "replay(g1,s8)", "replay(g1,s8)",
                                            "order(s7,s8)", "replay(g1,s7)"));
  EXPECT_EQ(set.last_stream(), kStream7);
}

// Inputs are filled after the order and before the replay, or the last replay would read them.
TEST_F(GraphSetTest, EnterOrdersBeforeTheTransfers) {
  GraphSet set(runtime, 0);
  set.record(8, body(8));
  set.replay(8, kStream7);
  runtime->clear_trace();
  set.enter(kStream8);
  runtime->transfer(kStream8, nullptr, 0);
  set.replay(8, kStream8);
  EXPECT_THAT(runtime->trace(), ElementsAre("order(s8,s7)", "transfer(s8,0)", "replay(g1,s8)"));
}

// A device that cannot do better submits the two groups around the replay, and nothing for an empty group.
TEST_F(GraphSetTest, ReplaysBetweenTransfers) {
  GraphSet set(runtime, 0);
  set.record(8, body(8));
  set.replay(8, kStream7);
  runtime->clear_trace();
  const Transfer two[2];
  set.replay(8, kStream8, {two, 2}, {two, 1});
  set.replay(8, kStream8, {}, {});
  EXPECT_THAT(runtime->trace(),
              ElementsAre("order(s8,s7)", "transfer(s8,2)", "replay(g1,s8)", "transfer(s8,1)", "replay(g1,s8)"));
  EXPECT_THROW(set.replay(4, kStream8, {two, 2}, {}), StateError);
  EXPECT_THAT(runtime->violations(), IsEmpty());
}

// The transfers of a call whose replay never came have still touched the inputs.
TEST_F(GraphSetTest, EnterAloneCountsAsUse) {
  GraphSet set(runtime, 0);
  set.record(8, body(8));
  set.enter(kStream8);
  runtime->clear_trace();
  set.replay(8, kStream7);
  EXPECT_THAT(runtime->trace(), ElementsAre("order(s7,s8)", "replay(g1,s7)"));
}

TEST_F(GraphSetTest, RandomStreamsNeverRace) {
  GraphSet set(runtime, 0);
  for (std::int64_t size : {16, 8, 4}) set.record(size, body(size));
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) set.replay(4 << (random() % 3), FakeRuntime::stream(static_cast<int>(random() % 5)));
  EXPECT_EQ(replayed.size(), 500u);
  EXPECT_THAT(runtime->violations(), IsEmpty());
}

// The check behind the test above: without the set's order, the fake does see the race.
TEST_F(GraphSetTest, TheFakeSeesARace) {
  const PoolId pool = runtime->create_pool(0);
  runtime->begin_capture(0, pool);
  body(1)();
  auto graph = runtime->end_capture();
  runtime->replay(*graph, kStream7);
  runtime->replay(*graph, kStream8);
  graph.reset();
  runtime->release_pool(pool);
  EXPECT_EQ(runtime->violations().size(), 1u);
  runtime = std::make_shared<FakeRuntime>();
}

// ---- order of destruction -------------------------------------------------------------------------------------------

TEST_F(GraphSetTest, DestroysAfterTheLastReplayAndThePoolLast) {
  {
    GraphSet set(runtime, 0);
    set.record(8, body(8));
    set.record(4, body(4));
    set.replay(4, kStream8);
    runtime->clear_trace();
  }
  ASSERT_EQ(runtime->trace().size(), 4u);
  EXPECT_EQ(runtime->trace().front(), "wait_idle(s8)");
  EXPECT_EQ(runtime->trace().back(), "release_pool(1)");
}

TEST_F(GraphSetTest, ClearedSetIsRecordedAnew) {
  GraphSet set(runtime, 0);
  set.record(8, body(8));
  set.replay(8, kStream7);
  set.clear();
  set.clear();
  EXPECT_THAT(set.sizes(), IsEmpty());
  EXPECT_EQ(runtime->live_pools(), 0);
  EXPECT_EQ(set.last_stream(), std::nullopt);
  set.record(8, body(8));
  set.replay(8, kStream8);
  EXPECT_EQ(set.pool().id(), 2u);
  EXPECT_EQ(replayed.size(), 2u);
}

TEST_F(GraphSetTest, DropForgetsOneGraph) {
  GraphSet set(runtime, 0);
  set.record(8, body(8));
  set.record(4, body(4));
  set.drop(8);
  EXPECT_THAT(set.sizes(), ElementsAre(4));
  EXPECT_EQ(runtime->live_executables(), 1);
  EXPECT_EQ(runtime->live_pools(), 1);
  expect_error<StateError>([&] { set.replay(8, kStream7); }, "batch size 8 is not recorded");
  set.replay(4, kStream7);
  set.record(8, body(8));
  set.replay(8, kStream7);
  EXPECT_THAT(replayed, ElementsAre(4, 8));
}

TEST_F(GraphSetTest, AGraphIsDroppedOnceIdleAndWithTheLastOneThePoolGoes) {
  GraphSet set(runtime, 0);
  set.record(8, body(8));
  set.replay(8, kStream7);
  runtime->clear_trace();
  set.drop(8);
  EXPECT_THAT(runtime->trace(), ElementsAre("wait_idle(s7)", "destroy(g1)", "release_pool(1)"));
}

// ---- refused calls --------------------------------------------------------------------------------------------------

TEST_F(GraphSetTest, RefusesSizesThatAreNotThere) {
  GraphSet set(runtime, 0);
  set.record(8, body(8));
  for (std::int64_t size : {-1, 0, 7, 9, 1 << 21}) {
    EXPECT_FALSE(set.contains(size));
    expect_error<StateError>([&] { set.replay(size, kStream7); }, "batch size " + std::to_string(size));
    expect_error<StateError>([&] { set.drop(size); }, "is not recorded");
    expect_error<StateError>([&] { set.nodes(size); }, "is not recorded");
  }
  EXPECT_EQ(set.last_stream(), std::nullopt);
}

TEST_F(GraphSetTest, RefusesToRecordWhatItCannot) {
  GraphSet set(runtime, 0);
  set.record(8, body(8));
  runtime->clear_trace();
  expect_error<StateError>([&] { set.record(8, body(8)); }, "recorded already");
  expect_error<ConfigError>([&] { set.record(0, body(0)); }, "batch size 0");
  expect_error<ConfigError>([&] { set.record((1 << 20) + 1, body(1)); }, "batch size 1048577");
  EXPECT_THAT(runtime->trace(), IsEmpty());
  expect_error<ConfigError>([] { GraphSet(nullptr, 0); }, "runtime");
}

TEST_F(GraphSetTest, ReentryIsRefusedAndTheOuterRecordingGoesOn) {
  GraphSet set(runtime, 0);
  set.record(4, body(4));
  set.record(8, [&] {
    EXPECT_TRUE(set.recording());
    expect_error<CaptureError>([&] { set.record(2, body(2)); }, "batch size 2 while another recording");
    expect_error<CaptureError>([&] { set.replay(4, kStream7); }, "recording is in progress");
    expect_error<CaptureError>([&] { set.enter(kStream7); }, "recording is in progress");
    expect_error<StateError>([&] { set.drop(4); }, "recording is in progress");
    set.clear();
    body(8)();
  });
  EXPECT_FALSE(set.recording());
  EXPECT_THAT(set.sizes(), ElementsAre(4, 8));
  set.replay(8, kStream7);
  set.replay(4, kStream7);
  EXPECT_THAT(replayed, ElementsAre(8, 4));
}

TEST_F(GraphSetTest, ReentryThatIsNotCaughtAbortsTheOuterRecording) {
  GraphSet set(runtime, 0);
  expect_error<CaptureError>([&] { set.record(8, [&] { set.record(2, body(2)); }); }, "batch size 2");
  EXPECT_THAT(set.sizes(), IsEmpty());
  EXPECT_EQ(runtime->count_of("abort_capture"), 1);
  set.record(8, body(8));
}

// A thread records one graph at a time: the second set's begin fails, and must not abort the first set's capture.
TEST_F(GraphSetTest, RecordingAnotherSetInsideLeavesTheOuterCaptureAlone) {
  GraphSet outer(runtime, 0);
  GraphSet inner(runtime, 0);
  outer.record(8, [&] {
    expect_error<CaptureError>([&] { inner.record(2, body(2)); }, "in progress on this thread");
    EXPECT_TRUE(runtime->capturing());
    body(8)();
  });
  EXPECT_EQ(outer.nodes(8), 1u);
  EXPECT_THAT(inner.sizes(), IsEmpty());
  EXPECT_EQ(inner.pool().id(), 0u);
}

TEST_F(GraphSetTest, AnEmptyRecordingIsRefused) {
  GraphSet set(runtime, 0);
  expect_error<CaptureError>([&] { set.record(8, [] {}); }, "nothing was recorded");
  EXPECT_FALSE(set.contains(8));
}

TEST_F(GraphSetTest, WhatIsNoStdExceptionPassesToo) {
  GraphSet set(runtime, 0);
  EXPECT_THROW(set.record(8, [] { throw 42; }), int);
  EXPECT_FALSE(runtime->capturing());
  EXPECT_FALSE(set.recording());
}

// ---- failures -------------------------------------------------------------------------------------------------------

struct GraphSetFailures : GraphSetTest, ::testing::WithParamInterface<bool> {};

// Fails every call that one recording makes, in turn, with and without an earlier graph in the set.
TEST_P(GraphSetFailures, EveryCallOfARecordingMayFail) {
  const bool earlier = GetParam();
  int failures = 0;
  for (int n = 1;; ++n) {
    SCOPED_TRACE("failure of call " + std::to_string(n));
    GraphSet set(runtime, 0);
    if (earlier) set.record(16, body(16));
    const int pools = runtime->live_pools();
    runtime->set_current(kStream7);
    runtime->fail_at("", n);
    bool failed = false;
    try {
      set.record(8, body(8));
    } catch (const Injected&) {
      failed = true;
    }
    if (!failed) {
      EXPECT_TRUE(runtime->armed()) << "a failure was swallowed";
      runtime->fail_at("", 0);
      break;
    }
    ++failures;
    // As if it had not been called.
    EXPECT_FALSE(set.contains(8));
    EXPECT_EQ(set.sizes().size(), earlier ? 1u : 0u);
    EXPECT_EQ(set.pool().bytes_of(8), 0u);
    EXPECT_FALSE(set.recording());
    EXPECT_FALSE(runtime->capturing());
    EXPECT_EQ(runtime->current(), kStream7);
    EXPECT_EQ(runtime->live_executables(), earlier ? 1 : 0);
    EXPECT_EQ(runtime->live_pools(), pools);
    // And the set works on.
    replayed.clear();
    if (earlier) set.replay(16, kStream7);
    set.record(8, body(8));
    set.replay(8, kStream7);
    EXPECT_EQ(replayed.back(), 8);
    EXPECT_EQ(replayed.size(), earlier ? 2u : 1u);
  }
  // pool_stats, begin_capture, allocate, submit, end_capture, pool_stats; and create_pool when it is the first.
  EXPECT_EQ(failures, earlier ? 6 : 7);
}
INSTANTIATE_TEST_SUITE_P(EarlierGraph, GraphSetFailures, ::testing::Bool());

TEST_F(GraphSetTest, AFailedOrderDoesNotCountAsUse) {
  GraphSet set(runtime, 0);
  set.record(8, body(8));
  set.replay(8, kStream7);
  runtime->fail_at("order", 1);
  expect_error<Injected>([&] { set.replay(8, kStream8); }, "order");
  EXPECT_EQ(set.last_stream(), kStream7);
  set.replay(8, kStream8);  // orders again; TearDown would see the race
  EXPECT_EQ(replayed.size(), 2u);
}

TEST_F(GraphSetTest, AFailedReplayLeavesTheSetUsable) {
  GraphSet set(runtime, 0);
  set.record(8, body(8));
  runtime->fail_at("replay", 1);
  expect_error<Injected>([&] { set.replay(8, kStream7); }, "replay");
  set.replay(8, kStream8);
  EXPECT_THAT(replayed, ElementsAre(8));
}

// ---- the pool's limit -----------------------------------------------------------------------------------------------

TEST_F(GraphSetTest, TooLargeAFirstGraphGivesItsMemoryBack) {
  GraphSet set(runtime, 0, 500);
  expect_error<OutOfMemoryError>([&] { set.record(8, body(8, 501)); },
                                 "batch size 8 makes the pool 501 bytes, its limit is 500 bytes");
  EXPECT_FALSE(set.contains(8));
  EXPECT_EQ(runtime->live_executables(), 0);
  EXPECT_EQ(runtime->live_pools(), 0);
  EXPECT_LT(runtime->index_of("destroy(g1)"), runtime->index_of("release_pool(1)"));
  set.record(4, body(4, 500));
  EXPECT_EQ(set.pool().id(), 2u);
  EXPECT_EQ(set.pool().stats().reserved, 500u);
  EXPECT_FALSE(set.pool().over_limit());
}

TEST_F(GraphSetTest, TooLargeALaterGraphLeavesTheEarlierOnes) {
  GraphSet set(runtime, 0, 500);
  set.record(4, body(4, 400));
  expect_error<OutOfMemoryError>([&] { set.record(8, body(8, 600)); }, "batch size 8");
  EXPECT_THAT(set.sizes(), ElementsAre(4));
  EXPECT_EQ(runtime->live_executables(), 1);
  EXPECT_TRUE(set.pool().over_limit()) << "the memory of the refused graph stays in the pool, and is admitted to";
  set.record(2, body(2, 300));  // needs nothing more
  set.replay(4, kStream7);
  set.replay(2, kStream7);
  EXPECT_THAT(replayed, ElementsAre(4, 2));
  expect_error<OutOfMemoryError>([&] { set.record(16, body(16, 700)); }, "batch size 16");
}

}  // namespace
}  // namespace xpugraph
