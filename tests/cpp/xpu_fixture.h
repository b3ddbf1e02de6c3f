// SPDX-License-Identifier: MIT
/// @file What the tests of the xpu glue share: memory, a small model, and what must be as before after every test.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <sycl/sycl.hpp>

#include "core/graph_set.h"
#include "runtime/sycl_runtime.h"
#include "torch/xpu_hooks.h"
#include "xpu_double.h"

namespace xpugraph {

inline sycl::queue& queue_of(Stream stream) { return *static_cast<sycl::queue*>(stream.handle); }

inline bool recording(Stream stream) {
  return queue_of(stream).ext_oneapi_get_state() == sycl::ext::oneapi::experimental::queue_state::recording;
}

inline sycl::queue& current_queue() { return c10::xpu::getCurrentXPUStream(0).queue(); }

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
      EXPECT_EQ(xpu_double::count(forbidden), 0u) << forbidden;
    EXPECT_EQ(xpu_double::count("getStreamFromPool"), 0u) << "a stream of torch's pool may be anybody's";
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

}  // namespace xpugraph
