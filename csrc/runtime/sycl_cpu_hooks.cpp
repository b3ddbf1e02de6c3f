// SPDX-License-Identifier: MIT
#include "runtime/sycl_cpu_hooks.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "runtime/sycl_streams.h"

namespace xpugraph {

namespace {

/// handle == nullptr stands for the default stream.
thread_local Stream current;

RawMemory device_memory() {
  RawMemory memory;
  memory.allocate = sycl_cpu::malloc_device;
  memory.release = sycl_cpu::free_device;
  memory.drain = sycl_cpu::drain;
  memory.order = [](Stream after, Stream before) { sycl_cpu::Event::record(before).block(after); };
  return memory;
}

}  // namespace

SyclCpuHooks::SyclCpuHooks() : allocator_(device_memory()) {}

Stream SyclCpuHooks::current_stream(int device) {
  if (current.handle == nullptr) current = sycl_cpu::stream(0);
  return current;
}

void SyclCpuHooks::set_current_stream(Stream stream) { current = stream; }

Stream SyclCpuHooks::capture_stream(int device) { return sycl_cpu::stream(sycl_cpu::capture_stream_id()); }

void SyclCpuHooks::synchronize(Stream stream) { sycl_cpu::synchronize(stream); }

void SyclCpuHooks::begin_work(Stream stream) { sycl_cpu::begin_work(stream); }

bool SyclCpuHooks::order(Stream after, Stream before) {
  sycl_cpu::Event::record(before).block(after);
  return true;
}

void SyclCpuHooks::wait_idle(Stream stream) noexcept { sycl_cpu::wait_idle(stream); }

PoolId SyclCpuHooks::create_pool(int device) { return allocator_.create_pool(); }

void SyclCpuHooks::release_pool(PoolId pool) noexcept { allocator_.release_pool(pool); }

PoolStats SyclCpuHooks::pool_stats(PoolId pool) { return allocator_.pool_stats(pool); }

void SyclCpuHooks::begin_allocate_to_pool(Stream stream, PoolId pool) {
  allocator_.begin_allocate_to_pool(stream, pool);
  std::lock_guard<std::mutex> lock(mutex_);
  refusal_.clear();
  random_.clear();
}

void SyclCpuHooks::end_allocate_to_pool(Stream stream, PoolId pool) noexcept {
  allocator_.end_allocate_to_pool(stream, pool);
}

bool SyclCpuHooks::enclose_capture(Stream stream, std::function<void()> before, std::function<void()> after) {
  return sycl_cpu::enclose_gathered(stream, std::move(before), std::move(after));
}

void SyclCpuHooks::flush_capture(Stream stream) {
  std::string refusal;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    refusal = std::exchange(refusal_, {});
  }
  if (!refusal.empty()) throw CaptureError(refusal);
  sycl_cpu::flush_gathered(stream);
}

void SyclCpuHooks::discard_capture(Stream stream) noexcept {
  sycl_cpu::discard_gathered(stream);
  std::lock_guard<std::mutex> lock(mutex_);
  refusal_.clear();
}

bool SyclCpuHooks::capturing() { return sycl_cpu::recording(current_stream(0)); }

void SyclCpuHooks::refuse_capture(const std::string& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (refusal_.empty()) refusal_ = why;
  }
  throw CaptureError(why);
}

void SyclCpuHooks::note_random(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::find(random_.begin(), random_.end(), name) == random_.end()) random_.push_back(name);
}

std::vector<std::string> SyclCpuHooks::captured_random() {
  std::lock_guard<std::mutex> lock(mutex_);
  return random_;
}

std::shared_ptr<SyclCpuHooks> sycl_cpu_hooks() {
  // Leaked on purpose: blocks may be freed after every static destructor has run.
  static const auto& hooks = *new std::shared_ptr<SyclCpuHooks>(std::make_shared<SyclCpuHooks>());
  return hooks;
}

}  // namespace xpugraph
