// SPDX-License-Identifier: MIT
/// @file The sycl torch device: PyTorch's PrivateUse1 device over the SYCL CPU device's queues. This is what the rest
/// of xpugraph sees of it. Owns nothing; what it registers lives until the process ends. Throws Error leaves. Threads:
/// any.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/caching_allocator.h"
#include "runtime/device_hooks.h"

namespace xpugraph::sycl_device {

/// Registers allocator, guard, hooks and operators with PyTorch. Until then this library touches nothing of
/// PrivateUse1, which may belong to another extension. Only the first call does anything. `worker_threads`: OpenMP
/// threads of the thread that runs operators; 0 is as many as torch uses now. @throws DeviceError without a SYCL CPU
/// device.
void enable(int worker_threads);

/// Streams and pools of the device, for a GraphRuntime.
std::shared_ptr<DeviceHooks> hooks();

/// Consecutive operators of a capture become one node (true, the default) or one node each.
void set_gather(bool gather);
/// True while the calling thread's current stream is recording.
bool is_capturing();
/// Names of the operators that drew random numbers since the last capture began. Replays draw new numbers.
std::vector<std::string> captured_random_ops();

MemoryStats memory_stats();
void reset_peak_memory();
void empty_cache();
/// 0 is no limit.
void set_memory_limit(std::size_t bytes);

}  // namespace xpugraph::sycl_device
