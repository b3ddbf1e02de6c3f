// SPDX-License-Identifier: MIT
#include "runtime/sycl_cpu_hooks.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "core/error.h"
#include "runtime/sycl_streams.h"
#include "torch/sycl_register.h"
#include "torch/sycl_tensor.h"

namespace xpugraph::sycl_device {

namespace {

CachingAllocator& blocks() { return sycl_cpu_hooks()->allocator(); }

void free_block(void* pointer) { blocks().free(pointer); }

/// torch's allocator interface, including what torch.accelerator.memory_stats and empty_cache ask for.
class SyclAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    try {
      void* pointer = blocks().allocate(bytes, current_stream());
      return {pointer, pointer, free_block, the_device()};
    } catch (const OutOfMemoryError& error) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
    }
  }

  c10::DeleterFnPtr raw_deleter() const override { return free_block; }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    submit_here([=] { std::memcpy(destination, source, bytes); });
  }

  bool initialized() override { return true; }

  void emptyCache(c10::MempoolId_t) override { blocks().empty_cache(); }

  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    blocks().record_stream(pointer.get(), sycl_cpu::stream(static_cast<int>(stream.id())));
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const MemoryStats now = blocks().stats();
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto fill = [](c10::CachingAllocator::Stat& stat, std::size_t current, std::size_t peak) {
      stat.current = static_cast<std::int64_t>(current);
      stat.peak = static_cast<std::int64_t>(peak);
    };
    fill(stats.allocated_bytes[all], now.used, now.peak_used);
    fill(stats.active_bytes[all], now.used, now.peak_used);
    fill(stats.reserved_bytes[all], now.reserved, now.reserved);
    fill(stats.segment[all], now.segments, now.segments);
    fill(stats.allocation[all], now.blocks, now.blocks);
    stats.num_alloc_retries = static_cast<std::int64_t>(now.retries);
    stats.num_ooms = static_cast<std::int64_t>(now.failures);
    stats.num_device_alloc = static_cast<std::int64_t>(now.device_allocations);
    stats.num_device_free = static_cast<std::int64_t>(now.device_frees);
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { blocks().reset_peak(); }
};

}  // namespace

c10::Allocator* allocator() {
  static auto& instance = *new SyclAllocator();  // outlives every tensor
  return &instance;
}

void register_allocator() { c10::SetAllocator(kSycl, allocator()); }

}  // namespace xpugraph::sycl_device
