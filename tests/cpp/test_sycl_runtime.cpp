// SPDX-License-Identifier: MIT
/// @file GraphSet on the SYCL CPU device: real command graphs, the values they compute, their order, their failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/error.h"
#include "expect_error.h"
#include "sycl_fixture.h"

namespace xpugraph {
namespace {

using ::testing::ElementsAre;

// ---- values ---------------------------------------------------------------------------------------------------------

TEST_F(SyclRuntimeTest, ServesRandomBatchesFromPaddedGraphs) {
  const BatchGrid grid = BatchGrid::regular(64, 64);
  Model model(hooks, 64);
  GraphSet set(runtime, 0);
  record_all(set, model, grid);
  EXPECT_THAT(set.sizes(), ::testing::ElementsAreArray(grid.sizes()));
  EXPECT_EQ(model.y[0], -1.0f) << "recording runs nothing";

  Floats in(150 * kFeatures);
  Floats out(150 * kFeatures);
  std::mt19937 random(3);
  for (int call = 0; call < 300; ++call) {
    const auto rows = static_cast<std::int64_t>(1 + random() % 150);
    for (std::int64_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(random() % 1000);
    std::fill(out.data(), out.data() + out.size(), -1.0f);
    serve(set, model, grid, default_stream, in, out, rows);
    runtime->synchronize(default_stream);
    for (std::int64_t i = 0; i < rows * kFeatures; ++i) ASSERT_EQ(out[i], 2 * in[i] + 1) << rows << " rows at " << i;
    for (std::int64_t i = rows * kFeatures; i < out.size(); ++i) ASSERT_EQ(out[i], -1.0f) << "beyond the batch";
    const std::int64_t last = (rows - 1) / 64 * 64 * kFeatures;
    ASSERT_EQ(model.total[0], std::accumulate(in.data() + last, in.data() + rows * kFeatures, 0.0f)) << "padding";
  }
}

TEST_F(SyclRuntimeTest, GatheredIsOneNodeAndOneNodePerClosureComputesTheSame) {
  Model model(hooks, 8);
  GraphSet set(runtime, 0);
  set.record(8, [&] { model.forward(8); });
  sycl_cpu::set_gather(false);
  set.record(4, [&] { model.forward(4); });
  EXPECT_EQ(set.nodes(8), 1u);
  EXPECT_EQ(set.nodes(4), 3u);
  for (std::int64_t size : {8, 4}) {
    for (std::int64_t i = 0; i < 8 * kFeatures; ++i) model.x[i] = static_cast<float>(i + size);
    set.replay(size, default_stream);
    runtime->synchronize(default_stream);
    for (std::int64_t i = 0; i < size * kFeatures; ++i) ASSERT_EQ(model.y[i], 2 * model.x[i] + 1);
  }
}

TEST_F(SyclRuntimeTest, TransfersAreRecordedInOrderWithTheWorkAroundThem) {
  Floats a(4);
  Floats b(4);
  GraphSet set(runtime, 0);
  set.record(1, [&] {
    const Stream stream = stream_of(hooks);
    sycl_cpu::submit(stream, [&a] { a[0] += 1; });
    const Transfer copy_then_zero[] = {{b.data(), a.data(), sizeof(float)}, {a.data() + 1, nullptr, sizeof(float)}};
    runtime->transfer(stream, copy_then_zero, 2);
    sycl_cpu::submit(stream, [&a, &b] { a[2] = b[0] + a[1]; });
  });
  a[0] = 6;
  set.replay(1, default_stream);
  set.replay(1, default_stream);
  runtime->synchronize(default_stream);
  EXPECT_EQ(b[0], 8);
  EXPECT_EQ(a[1], 0);
  EXPECT_EQ(a[2], 8);
}

// Transfers that travel with the replay: many calls in flight, each with its own rows and its own place for the result.
TEST_F(SyclRuntimeTest, TransfersOfManyReplaysInFlightBelongToTheirOwnReplay) {
  for (const bool gather : {true, false}) {
    sycl_cpu::set_gather(gather);
    const BatchGrid grid = BatchGrid::from_sizes({2, 4, 8});
    Model model(hooks, 8);
    GraphSet set(runtime, 0);
    record_all(set, model, grid);
    const Stream streams[] = {default_stream, sycl_cpu::stream(sycl_cpu::new_stream())};
    constexpr std::int64_t kCalls = 60;
    Floats in(kCalls * 8 * kFeatures);
    Floats out(kCalls * 8 * kFeatures);
    Floats totals(kCalls);
    std::vector<std::int64_t> rows(kCalls);
    std::mt19937 random(11);
    for (std::int64_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(random() % 1000);
    for (std::int64_t call = 0; call < kCalls; ++call) {
      rows[call] = 1 + static_cast<std::int64_t>(random() % 8);
      const std::int64_t size = grid.ceil(rows[call]), offset = call * 8 * kFeatures;
      Transfer before[PaddedInput::kMaxTransfers];
      Transfer* end = model.input.append_fill(before, size, rows[call], in.data() + offset);
      const Transfer after[] = {
          {out.data() + offset, model.y.data(), static_cast<std::size_t>(rows[call]) * kRowBytes},
          {totals.data() + call, model.total.data(), sizeof(float)},
      };
      set.replay(size, streams[random() % 2], {before, static_cast<std::size_t>(end - before)}, {after, 2});
    }
    for (const Stream stream : streams) runtime->synchronize(stream);
    for (std::int64_t call = 0; call < kCalls; ++call) {
      const std::int64_t offset = call * 8 * kFeatures, end = offset + rows[call] * kFeatures;
      for (std::int64_t i = offset; i < end; ++i) ASSERT_EQ(out[i], 2 * in[i] + 1) << "call " << call;
      for (std::int64_t i = end; i < offset + 8 * kFeatures; ++i) ASSERT_EQ(out[i], -1.0f) << "beyond the batch";
      ASSERT_EQ(totals[call], std::accumulate(in.data() + offset, in.data() + end, 0.0f)) << "padding of call " << call;
    }
  }
}

// A replay that fails must not leave its transfers to the next one.
TEST_F(SyclRuntimeTest, TransfersStayWithTheirReplayAcrossAnError) {
  Floats x(1), y(1), out(3);
  bool fail = false;
  GraphSet set(runtime, 0);
  set.record(1, [&] {
    sycl_cpu::submit(stream_of(hooks), [&] {
      if (fail) throw std::runtime_error("broken");
      y[0] = x[0] + 1;
    });
  });
  Floats in(3);
  const auto call = [&](int i) {
    in[i] = static_cast<float>(10 * i);
    const Transfer before{x.data(), in.data() + i, sizeof(float)}, after{out.data() + i, y.data(), sizeof(float)};
    set.replay(1, default_stream, {&before, 1}, {&after, 1});
  };
  fail = true;
  call(0);
  call(1);
  EXPECT_THROW(runtime->synchronize(default_stream), DeviceError);
  fail = false;
  call(2);
  runtime->synchronize(default_stream);
  EXPECT_EQ(out[2], 21.0f);
}

TEST_F(SyclRuntimeTest, ThirtyFiveSizesNeedThePoolOfTheLargest) {
  Model model(hooks, 256);
  GraphSet largest(runtime, 0);
  largest.record(256, [&] { model.forward(256); });
  GraphSet all(runtime, 0);
  record_all(all, model, BatchGrid::regular(256, 256));
  EXPECT_EQ(all.sizes().size(), 35u);
  EXPECT_EQ(all.pool().stats().reserved, largest.pool().stats().reserved);
  EXPECT_GT(all.pool().bytes_of(256), 0u);
  EXPECT_EQ(all.pool().bytes_of(248), 0u);
}

// ---- streams --------------------------------------------------------------------------------------------------------

// Replays on two streams without a wait in between: each must see what the one before left.
TEST_F(SyclRuntimeTest, StreamsTakeTurns) {
  const Stream streams[] = {sycl_cpu::stream(sycl_cpu::new_stream()), sycl_cpu::stream(sycl_cpu::new_stream())};
  Floats value(1);
  GraphSet set(runtime, 0);
  set.record(2, [&] { sycl_cpu::submit(stream_of(hooks), [&value] { value[0] = std::fmod(value[0] * 2, 9973.0f); }); });
  set.record(1, [&] { sycl_cpu::submit(stream_of(hooks), [&value] { value[0] += 3; }); });
  std::mt19937 random(5);
  value[0] = 1;
  float expected = 1;
  for (int i = 0; i < 400; ++i) {
    const std::int64_t size = 1 + random() % 2;
    expected = size == 2 ? std::fmod(expected * 2, 9973.0f) : expected + 3;
    set.replay(size, streams[random() % 2]);
  }
  runtime->synchronize(*set.last_stream());
  EXPECT_EQ(value[0], expected);
}

// Two graphs of one pool use the same block for their intermediates, so one must never run inside the other.
TEST_F(SyclRuntimeTest, GraphsOfOnePoolNeverOverlap) {
  const Stream streams[] = {sycl_cpu::stream(sycl_cpu::new_stream()), sycl_cpu::stream(sycl_cpu::new_stream())};
  sycl_cpu::set_gather(false);  // one node per closure gives the device the chance to interleave
  Floats spoilt(1);
  spoilt[0] = 0;
  std::vector<void*> blocks;
  GraphSet set(runtime, 0);
  for (std::int64_t size : {2, 1}) {
    set.record(size, [&, size] {
      const Stream stream = stream_of(hooks);
      auto* block = static_cast<std::int64_t*>(hooks->allocator().allocate(64, stream));
      blocks.push_back(block);
      sycl_cpu::submit(stream, [block, size] { *block = size; });
      sycl_cpu::submit(stream, [] { std::this_thread::sleep_for(std::chrono::microseconds(200)); });
      sycl_cpu::submit(stream, [block, size, &spoilt] { spoilt[0] += *block != size ? 1 : 0; });
      hooks->allocator().free(block);
    });
  }
  ASSERT_EQ(blocks[0], blocks[1]);
  for (int i = 0; i < 100; ++i) set.replay(1 + i % 2, streams[i % 2]);
  runtime->synchronize(*set.last_stream());
  EXPECT_EQ(spoilt[0], 0);
}

TEST_F(SyclRuntimeTest, AStreamThatIsRecordingCannotBeOrderedOrWaitedFor) {
  Model model(hooks, 4);
  GraphSet set(runtime, 0);
  set.record(4, [&] {
    EXPECT_EQ(stream_of(hooks), capture_stream);
    EXPECT_TRUE(sycl_cpu::recording(capture_stream));
    expect_error<CaptureError>([&] { runtime->synchronize(capture_stream); }, "recording");
    expect_error<CaptureError>([&] { runtime->order(capture_stream, default_stream); }, "recording");
    expect_error<CaptureError>([&] { runtime->order(default_stream, capture_stream); }, "recording");
    model.forward(4);
  });
  EXPECT_EQ(set.nodes(4), 1u);
}

// ---- failures -------------------------------------------------------------------------------------------------------

TEST_F(SyclRuntimeTest, ACaptureThatFailsMidwayRestoresStreamAndPool) {
  const std::size_t reserved = hooks->allocator().stats().reserved;
  const Stream own = sycl_cpu::stream(sycl_cpu::new_stream());
  hooks->set_current_stream(own);
  Model model(hooks, 8);
  {
    GraphSet set(runtime, 0);
    PoolId failed = 0;
    int strays = 0;
    expect_error<InputError>(
        [&] {
          set.record(8, [&] {
            model.forward(8);
            sycl_cpu::submit(stream_of(hooks), [&strays] { ++strays; });
            failed = set.pool().id();
            throw InputError("raised at batch 8 only");
          });
        },
        "raised at batch 8 only");
    EXPECT_EQ(hooks->current_stream(0), own);
    EXPECT_FALSE(sycl_cpu::recording(capture_stream));
    EXPECT_EQ(hooks->allocator().stats().reserved, reserved) << "the pool went back to the device";
    expect_error<ConfigError>([&] { runtime->pool_stats(failed); }, "no pool");

    const std::size_t used = hooks->allocator().pool_stats(0).used;
    void* eager = hooks->allocator().allocate(1000, capture_stream);
    EXPECT_GT(hooks->allocator().pool_stats(0).used, used) << "allocations go to the default pool again";
    hooks->allocator().free(eager);

    set.record(8, [&] { model.forward(8); });
    for (std::int64_t i = 0; i < 8 * kFeatures; ++i) model.x[i] = static_cast<float>(i);
    set.replay(8, own);
    runtime->synchronize(own);
    EXPECT_EQ(model.y[8 * kFeatures - 1], 2 * (8 * kFeatures - 1) + 1);
    EXPECT_EQ(strays, 0) << "work of the failed capture got into the next graph";
  }
  hooks->set_current_stream(default_stream);
}

TEST_F(SyclRuntimeTest, AnEmptyCaptureIsRefused) {
  GraphSet set(runtime, 0);
  expect_error<CaptureError>([&] { set.record(8, [] {}); }, "nothing was recorded");
  EXPECT_EQ(hooks->current_stream(0), default_stream);
  EXPECT_FALSE(sycl_cpu::recording(capture_stream));
}

TEST_F(SyclRuntimeTest, CapturesOfOneThreadDoNotNest) {
  Model model(hooks, 8);
  GraphSet outer(runtime, 0);
  GraphSet inner(runtime, 0);
  outer.record(8, [&] {
    expect_error<CaptureError>([&] { inner.record(4, [&] { model.forward(4); }); }, "do not nest");
    model.forward(8);
  });
  EXPECT_THAT(outer.sizes(), ElementsAre(8));
  EXPECT_EQ(outer.nodes(8), 1u);
  expect_error<CaptureError>([&] { runtime->end_capture(); }, "not capturing");
  runtime->abort_capture();
}

TEST_F(SyclRuntimeTest, AnErrorOnTheDeviceIsRaisedAtTheNextSynchronisationOnce) {
  Model model(hooks, 4);
  bool fail = false;
  GraphSet set(runtime, 0);
  set.record(4, [&] {
    sycl_cpu::submit(stream_of(hooks), [&fail] {
      if (fail) throw std::runtime_error("index 7 is out of range");
    });
    model.forward(4);
  });
  fail = true;
  model.y[0] = -1;
  set.replay(4, default_stream);
  expect_error<DeviceError>([&] { runtime->synchronize(default_stream); }, "index 7 is out of range");
  EXPECT_NO_THROW(runtime->synchronize(default_stream));
  fail = false;
  model.x[0] = 20;
  set.replay(4, default_stream);
  EXPECT_NO_THROW(runtime->synchronize(default_stream));
  EXPECT_EQ(model.y[0], 41);
}

// Whoever destroys graphs waits for them, and must not take the error from whoever waits for results.
TEST_F(SyclRuntimeTest, DestructionLeavesAnErrorPending) {
  {
    GraphSet set(runtime, 0);
    set.record(1, [&] { sycl_cpu::submit(stream_of(hooks), [] { throw std::runtime_error("broken"); }); });
    set.replay(1, default_stream);
  }
  expect_error<DeviceError>([&] { runtime->synchronize(default_stream); }, "broken");
}

TEST_F(SyclRuntimeTest, AStreamThatWaitedForAFailedOneReportsItToo) {
  const Stream other = sycl_cpu::stream(sycl_cpu::new_stream());
  runtime->synchronize(default_stream);
  sycl_cpu::submit(default_stream, [] { throw std::runtime_error("broken"); });
  runtime->order(other, default_stream);
  bool ran = false;
  sycl_cpu::submit(other, [&ran] { ran = true; });
  expect_error<DeviceError>([&] { runtime->synchronize(other); }, "broken");
  EXPECT_TRUE(ran);
  expect_error<DeviceError>([&] { runtime->synchronize(default_stream); }, "broken");
  sycl_cpu::submit(other, [] {});
  EXPECT_NO_THROW(runtime->synchronize(other));
}

}  // namespace
}  // namespace xpugraph
