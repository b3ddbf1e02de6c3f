// SPDX-License-Identifier: MIT
/// @file GraphSet on the SYCL CPU device: destruction, threads, and resident memory over many recordings and calls.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "sycl_fixture.h"

namespace xpugraph {
namespace {

using SyclLifetimeTest = SyclRuntimeTest;

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(SyclLifetimeTest, ASetMayBeDestroyedWhileItsReplayRuns) {
  std::atomic<int> finished{0};
  {
    GraphSet set(runtime, 0);
    set.record(1, [&] {
      const Stream stream = stream_of(hooks);
      auto* block = static_cast<char*>(hooks->allocator().allocate(1 << 16, stream));
      sycl_cpu::submit(stream, [block, &finished] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::fill(block, block + (1 << 16), 'x');
        ++finished;
      });
      hooks->allocator().free(block);
    });
    set.replay(1, default_stream);
    set.replay(1, default_stream);
  }
  EXPECT_EQ(finished, 2);
}

// Without a set, which would wait for its stream.
TEST_F(SyclLifetimeTest, AGraphWaitsForItsOwnReplaysBeforeItGoes) {
  std::atomic<int> finished{0};
  const PoolId pool = runtime->create_pool(0);
  for (const bool gather : {true, false}) {
    sycl_cpu::set_gather(gather);
    runtime->begin_capture(0, pool);
    sycl_cpu::submit(stream_of(hooks), [&finished] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++finished;
    });
    std::unique_ptr<Executable> graph = runtime->end_capture();
    finished = 0;
    runtime->replay(*graph, default_stream);
    runtime->replay(*graph, sycl_cpu::stream(sycl_cpu::new_stream()));
    graph.reset();
    EXPECT_EQ(finished, 2);
  }
  runtime->release_pool(pool);
}

TEST_F(SyclLifetimeTest, ThreadsRecordAndReplayTheirOwnSets) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      const Stream own = sycl_cpu::stream(sycl_cpu::new_stream());
      hooks->set_current_stream(own);
      Model model(hooks, 16);
      const BatchGrid grid = BatchGrid::regular(16, 16);
      Floats in(16 * kFeatures);
      Floats out(16 * kFeatures);
      for (int round = 0; round < 10; ++round) {
        GraphSet set(runtime, 0);
        record_all(set, model, grid);
        for (std::int64_t rows = 1; rows <= 16; ++rows) {
          for (std::int64_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i + 100 * number + round);
          serve(set, model, grid, own, in, out, rows);
          runtime->synchronize(own);
          for (std::int64_t i = 0; i < rows * kFeatures; ++i) wrong += out[i] != 2 * in[i] + 1 ? 1 : 0;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(SyclLifetimeTest, RecordingAndDestroyingLeavesMemoryFlat) {
  Model model(hooks, 64);
  const BatchGrid grid = BatchGrid::regular(64, 64);
  const std::size_t reserved = hooks->allocator().stats().reserved;
  const auto churn = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      GraphSet set(runtime, 0);
      record_all(set, model, grid);
      for (std::int64_t size : grid.sizes()) set.replay(size, default_stream);
    }
    runtime->synchronize(default_stream);
    return resident_bytes();
  };
  churn(50);
  const std::size_t before = churn(20);
  const std::size_t after = churn(200);  // 2,200 graphs
  EXPECT_LT(after, before + (std::size_t{2} << 20)) << "bytes before: " << before;
  EXPECT_EQ(hooks->allocator().stats().reserved, reserved);
}

TEST_F(SyclLifetimeTest, ReplayingLeavesMemoryFlat) {
  const BatchGrid grid = BatchGrid::regular(64, 64);
  Model model(hooks, 64);
  GraphSet set(runtime, 0);
  record_all(set, model, grid);
  Floats in(150 * kFeatures);
  Floats out(150 * kFeatures);
  std::mt19937 random(11);
  const auto calls = [&](int count) {
    for (int call = 0; call < count; ++call) {
      serve(set, model, grid, default_stream, in, out, static_cast<std::int64_t>(1 + random() % 150));
      if (call % 8 == 0) runtime->synchronize(default_stream);
    }
    runtime->synchronize(default_stream);
    return resident_bytes();
  };
  const std::size_t before = calls(1000);
  const std::size_t after = calls(5000);
  EXPECT_LT(after, before + (std::size_t{2} << 20)) << "bytes before: " << before;
}

}  // namespace
}  // namespace xpugraph
