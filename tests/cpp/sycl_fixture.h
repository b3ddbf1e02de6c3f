// SPDX-License-Identifier: MIT
/// @file What the tests on the SYCL CPU device share: device memory, a small model, and serving it by way of a GraphSet.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "core/batch_plan.h"
#include "core/graph_set.h"
#include "core/padded_input.h"
#include "runtime/sycl_cpu_hooks.h"
#include "runtime/sycl_runtime.h"
#include "runtime/sycl_streams.h"

namespace xpugraph {

constexpr std::int64_t kFeatures = 5;
constexpr std::size_t kRowBytes = kFeatures * sizeof(float);

/// Device memory, which the host can read and write on this device.
class Floats {
 public:
  explicit Floats(std::int64_t count)
      : data_(static_cast<float*>(sycl_cpu::malloc_device(count * sizeof(float)))), count_(count) {
    std::fill(data_, data_ + count, -1.0f);
  }
  ~Floats() { sycl_cpu::free_device(data_); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  float* data() const { return data_; }
  float& operator[](std::int64_t i) const { return data_[i]; }
  std::int64_t size() const { return count_; }

 private:
  float* data_;
  std::int64_t count_;
};

inline Stream stream_of(const std::shared_ptr<SyclCpuHooks>& hooks) { return hooks->current_stream(0); }

/// A model over [rows, kFeatures]: y = 2 x + 1 by way of an intermediate in the pool, and total = the sum of x over all
/// rows of the graph, which shows what the padding holds.
class Model {
 public:
  Model(std::shared_ptr<SyclCpuHooks> hooks, std::int64_t capacity)
      : hooks_(std::move(hooks)),
        x(capacity * kFeatures),
        y(capacity * kFeatures),
        input(x.data(), kRowBytes, capacity) {}

  /// What a forward of `rows` rows submits to the current stream.
  void forward(std::int64_t rows) {
    const std::int64_t count = rows * kFeatures;
    const Stream stream = stream_of(hooks_);
    auto* doubled = static_cast<float*>(hooks_->allocator().allocate(count * sizeof(float), stream));
    sycl_cpu::submit(stream, [in = x.data(), doubled, count] {
      for (std::int64_t i = 0; i < count; ++i) doubled[i] = 2 * in[i];
    });
    sycl_cpu::submit(stream, [doubled, out = y.data(), count] {
      for (std::int64_t i = 0; i < count; ++i) out[i] = doubled[i] + 1;
    });
    sycl_cpu::submit(stream,
                     [in = x.data(), total = total.data(), count] { *total = std::accumulate(in, in + count, 0.0f); });
    hooks_->allocator().free(doubled);
  }

 private:
  std::shared_ptr<SyclCpuHooks> hooks_;

 public:
  Floats x, y, total{1};
  PaddedInput input;
};

struct SyclRuntimeTest : ::testing::Test {
  std::shared_ptr<SyclCpuHooks> hooks = sycl_cpu_hooks();
  std::shared_ptr<GraphRuntime> runtime = make_sycl_runtime(hooks);
  Stream default_stream = sycl_cpu::stream(0);
  Stream capture_stream = sycl_cpu::stream(sycl_cpu::capture_stream_id());

  void TearDown() override {
    EXPECT_EQ(hooks->current_stream(0), default_stream);
    EXPECT_FALSE(sycl_cpu::recording(capture_stream));
    sycl_cpu::set_gather(true);
    EXPECT_NO_THROW(sycl_cpu::synchronize(default_stream)) << "an error was left pending";
  }
  static void record_all(GraphSet& set, Model& model, const BatchGrid& grid) {
    const auto& sizes = grid.sizes();
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
      set.record(*size, [&model, size] { model.forward(*size); });
    }
  }
  /// One call with `rows` rows at `in`; the result goes to `out`, the total of each chunk is checked.
  void serve(GraphSet& set, Model& model, const BatchGrid& grid, Stream stream, const Floats& in, const Floats& out,
             std::int64_t rows) {
    const PlanTable table = PlanTable::padded(grid);
    for (const Chunk chunk : BatchPlan(table, rows)) {
      const std::int64_t offset = chunk.offset * kFeatures;
      set.enter(stream);
      Transfer fill[PaddedInput::kMaxTransfers];
      Transfer* end = model.input.append_fill(fill, chunk.size, chunk.rows, in.data() + offset);
      runtime->transfer(stream, fill, static_cast<std::size_t>(end - fill));
      set.replay(chunk.size, stream);
      const Transfer result{out.data() + offset, model.y.data(), static_cast<std::size_t>(chunk.rows) * kRowBytes};
      runtime->transfer(stream, &result, 1);
    }
  }
};

}  // namespace xpugraph
