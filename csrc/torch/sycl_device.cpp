// SPDX-License-Identifier: MIT
#include "torch/sycl_device.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <mutex>

#include "runtime/sycl_cpu_hooks.h"
#include "runtime/sycl_streams.h"
#include "torch/sycl_register.h"
#include "torch/sycl_tensor.h"

namespace xpugraph::sycl_device {

namespace {

/// Every operator on the worker runs below autograd, and with the worker's own number of threads.
void start_worker(int threads) {
  at::init_num_threads();
  at::set_num_threads(threads);
  at::GradMode::set_enabled(false);
  static thread_local const at::AutoDispatchBelowADInplaceOrView below_autograd;
}

}  // namespace

void enable(int worker_threads) {
  static std::mutex mutex;
  static bool enabled = false;
  std::lock_guard<std::mutex> lock(mutex);
  if (enabled) return;
  sycl_cpu_hooks();  // throws without a device, before anything is registered
  const int threads = worker_threads > 0 ? worker_threads : at::get_num_threads();
  sycl_cpu::on_worker_start([threads] { start_worker(threads); });
  register_allocator();
  register_guard();
  register_hooks();
  register_native_ops();
  register_fallback();
  enabled = true;
}

std::shared_ptr<DeviceHooks> hooks() { return sycl_cpu_hooks(); }

void set_gather(bool gather) { sycl_cpu::set_gather(gather); }

bool is_capturing() { return sycl_cpu_hooks()->capturing(); }

std::vector<std::string> captured_random_ops() { return sycl_cpu_hooks()->captured_random(); }

MemoryStats memory_stats() { return sycl_cpu_hooks()->allocator().stats(); }

void reset_peak_memory() { sycl_cpu_hooks()->allocator().reset_peak(); }

void empty_cache() { sycl_cpu_hooks()->allocator().empty_cache(); }

void set_memory_limit(std::size_t bytes) { sycl_cpu_hooks()->allocator().set_limit(bytes); }

}  // namespace xpugraph::sycl_device
