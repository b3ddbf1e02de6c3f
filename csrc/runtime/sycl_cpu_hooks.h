// SPDX-License-Identifier: MIT
/// @file SyclCpuHooks: streams and memory of the SYCL CPU device, for the sycl torch device and, without any torch,
/// for tests. Owns the caching allocator. There is one instance, alive until the process ends. Throws Error leaves.
/// Threads: any; the current stream is per thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/caching_allocator.h"
#include "runtime/device_hooks.h"

namespace xpugraph {

class SyclCpuHooks final : public DeviceHooks {
 public:
  SyclCpuHooks();

  Stream current_stream(int device) override;
  void set_current_stream(Stream stream) override;
  Stream capture_stream(int device) override;
  void synchronize(Stream stream) override;
  void wait_idle(Stream stream) noexcept override;
  void begin_work(Stream stream) override;
  bool order(Stream after, Stream before) override;

  PoolId create_pool(int device) override;
  void release_pool(PoolId pool) noexcept override;
  PoolStats pool_stats(PoolId pool) override;
  void begin_allocate_to_pool(Stream stream, PoolId pool) override;
  void end_allocate_to_pool(Stream stream, PoolId pool) noexcept override;

  bool enclose_capture(Stream stream, std::function<void()> before, std::function<void()> after) override;
  /// Records what was gathered. @throws CaptureError when refuse_capture was called since the capture began.
  void flush_capture(Stream stream) override;
  void discard_capture(Stream stream) noexcept override;

  /// True while the calling thread's current stream is recording.
  bool capturing();
  /// Throws CaptureError(why) and makes the capture fail at its end too, should the caller swallow the exception: what
  /// it does next would be recorded although it follows from something that never happened.
  [[noreturn]] void refuse_capture(const std::string& why);
  /// Remembers that an operator drew random numbers in the capture. Kept until the next one begins.
  void note_random(const std::string& name);
  std::vector<std::string> captured_random();

  CachingAllocator& allocator() { return allocator_; }

 private:
  CachingAllocator allocator_;
  std::mutex mutex_;  // guards the rest
  std::string refusal_;
  std::vector<std::string> random_;
};

/// The one instance. Creates the device's queues on its first call. @throws DeviceError without a device.
std::shared_ptr<SyclCpuHooks> sycl_cpu_hooks();

}  // namespace xpugraph
