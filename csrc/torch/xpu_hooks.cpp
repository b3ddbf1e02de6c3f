// SPDX-License-Identifier: MIT
#include "torch/xpu_hooks.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>
#include <c10/xpu/XPUCachingAllocator.h>
#include <c10/xpu/XPUException.h>
#include <c10/xpu/XPUFunctions.h>
#include <c10/xpu/XPUStream.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"

namespace xpugraph {

namespace {

namespace allocator = c10::xpu::XPUCachingAllocator;

/// torch numbers its own pools from 1 upwards. Ours begin where it never comes, so that one function for making ids,
/// which has moved between torch's libraries from version to version, is not needed.
constexpr std::uint64_t kFirstPool = std::uint64_t{1} << 62;

c10::MempoolId_t mempool(PoolId pool) { return {0, kFirstPool + pool}; }

c10::DeviceIndex index_of(int device) { return static_cast<c10::DeviceIndex>(device); }

sycl::queue& queue_of(Stream stream) { return *static_cast<sycl::queue*>(stream.handle); }

bool is_recording(Stream stream) {
  return queue_of(stream).ext_oneapi_get_state() == sycl::ext::oneapi::experimental::queue_state::recording;
}

/// From 2.14 on, routing alone no longer tells torch's allocator that a capture is under way: without the mark it would
/// query events and give cached memory back meanwhile.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
void mark_capture_begin(int device) { allocator::markCaptureBegin(index_of(device)); }
void mark_capture_end(int device) { allocator::markCaptureEnd(index_of(device)); }
#else
void mark_capture_begin(int) {}
void mark_capture_end(int) {}
#endif

/// Runs a step of what must not throw, a clean-up mostly; the next ones must run whatever becomes of it.
template <typename Step>
void always(const char* what, Step step) noexcept {
  try {
    step();
  } catch (const c10::Error& error) {
    TORCH_WARN("xpugraph: ", what, " failed: ", error.what_without_backtrace());
  } catch (const std::exception& error) {
    TORCH_WARN("xpugraph: ", what, " failed: ", error.what());
  }
}

template <typename Step>
auto as_capture_error(const char* what, Step step) {
  try {
    return step();
  } catch (const c10::Error& error) {
    throw CaptureError(std::string(what) + ": " + error.what_without_backtrace());
  } catch (const sycl::exception& error) {
    throw CaptureError(std::string(what) + ": " + error.what());
  }
}

/// Makes a device torch's current one for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : previous_(c10::xpu::exchange_device(index_of(device))) {}
  ~DeviceScope() {
    always("going back to the current device", [this] { c10::xpu::set_device(previous_); });
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const c10::DeviceIndex previous_;
};

/// This thread's allocations, for torch's allocator to ask about. Of all routes that are open it takes the first that
/// says yes, so whether it asks ours at all is found out by an allocation that ours refuses to let happen.
struct Route {
  struct Asked {};
  static thread_local bool probing;

  std::thread::id thread = std::this_thread::get_id();
  template <typename Queue>
  bool operator()(const Queue&) const {
    if (std::this_thread::get_id() != thread) return false;
    if (probing) throw Asked{};
    return true;
  }

  static bool is_asked(int device) {
    const DeviceScope scope(device);
    void* elsewhere = nullptr;
    probing = true;
    try {
      elsewhere = allocator::raw_alloc(1);
    } catch (const Asked&) {
      probing = false;
      return true;
    } catch (...) {
      probing = false;
      throw;
    }
    probing = false;
    allocator::raw_delete(elsewhere);
    return false;
  }
};
thread_local bool Route::probing = false;

class XpuHooks final : public DeviceHooks {
 public:
  // ---- streams ----------------------------------------------------------------------------------------------------
  Stream current_stream(int device) override {
    try {
      return {device, &c10::xpu::getCurrentXPUStream(index_of(device)).queue()};
    } catch (const c10::Error& error) {
      throw DeviceError(std::string("torch.xpu has no current stream: ") + error.what_without_backtrace());
    }
  }

  /// One queue may be the stream of several ids (torch's own and an external one), so the one that a thread had is kept
  /// while another is current, and comes back as it was.
  void set_current_stream(Stream stream) override {
    thread_local std::optional<c10::xpu::XPUStream> replaced;
    as_capture_error("torch.xpu does not take the stream", [&] {
      const c10::xpu::XPUStream now = c10::xpu::getCurrentXPUStream(index_of(stream.device));
      if (replaced && replaced->device_index() == stream.device && &replaced->queue() == stream.handle) {
        c10::xpu::setCurrentXPUStream(*replaced);
        replaced.reset();
      } else {
        c10::xpu::setCurrentXPUStream(external_stream(stream));
        replaced = now;
      }
    });
  }

  Stream capture_stream(int device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& queue = capture_queues_[device];
    if (!queue) {
      queue = as_capture_error("the capture stream cannot be created", [device] {
        using namespace sycl::ext::oneapi::property;
        // Properties, context and handler of the queues that torch makes.
        return std::make_unique<sycl::queue>(
            c10::xpu::get_device_context(), c10::xpu::get_raw_device(index_of(device)), c10::xpu::asyncHandler,
            sycl::property_list{sycl::property::queue::in_order(), queue::priority_normal()});
      });
    }
    return {device, queue.get()};
  }

  /// The old queue is kept: torch's allocator knows blocks by the queue's address, which must not become another's.
  void renew_capture_stream(int device) noexcept override {
    always("renewing the capture stream", [&] {
      std::lock_guard<std::mutex> lock(mutex_);
      retired_queues_.push_back(std::move(capture_queues_[device]));
    });
  }

  void synchronize(Stream stream) override {
    try {
      external_stream(stream).synchronize();
    } catch (const sycl::exception& error) {
      if (is_recording(stream))
        throw CaptureError(std::string("a stream that records a graph cannot be waited for: ") + error.what());
      throw DeviceError(error.what());
    }
  }

  /// wait() leaves what failed asynchronously to the next wait_and_throw, which is synchronize's.
  void wait_idle(Stream stream) noexcept override {
    always("waiting for a stream", [&] {
      if (!is_recording(stream)) queue_of(stream).wait();
    });
  }

  // ---- pools ------------------------------------------------------------------------------------------------------
  PoolId create_pool(int device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    static std::atomic<PoolId> next{1};  // never used twice: torch remembers a released pool until its memory is gone
    const PoolId pool = next++;
    as_capture_error("torch's allocator refuses a pool",
                     [&] { allocator::createOrIncrefPool(index_of(device), mempool(pool)); });
    pools_[pool] = Pool{device, false};
    return pool;
  }

  void release_pool(PoolId pool) noexcept override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pools_.find(pool);
    if (found == pools_.end()) return;
    const Pool released = found->second;
    pools_.erase(found);
    always("releasing a pool", [&] { allocator::releasePool(index_of(released.device), mempool(pool)); });
    if (released.has_host_pool)
      always("releasing a pool of host memory", [&] { at::getHostAllocator(at::kXPU)->release_pool(mempool(pool)); });
  }

  /// torch keeps no peak for one pool; what it holds for the pool is the least upper bound there is.
  PoolStats pool_stats(PoolId pool) override {
    find(pool);
    PoolStats stats;
    for (const auto& segment : allocator::snapshot(mempool(pool)).segments) {
      if (segment.owner_private_pool_id != mempool(pool)) continue;
      stats.reserved += segment.total_size;
      stats.used += segment.allocated_size;
    }
    stats.peak_used = stats.reserved;
    return stats;
  }

  /// Everything that this thread allocates on the device until the end, on whichever stream: what a side stream of the
  /// forward allocates is read by the graph too. Other threads' allocations stay where they belong. The queue's state,
  /// which torch's own filter asks for, is not looked at.
  void begin_allocate_to_pool(Stream stream, PoolId pool) override {
    const int device = find(pool).device;
    if (device != stream.device)
      throw ConfigError("pool: it is of device " + std::to_string(device) + ", the stream of device " +
                        std::to_string(stream.device));
    const Route mine;
    as_capture_error("torch's allocator refuses to allocate to the pool", [&] {
      const int uses = allocator::getPoolUseCount(index_of(device), mempool(pool));
      try {
        allocator::beginAllocateToPool(index_of(device), mempool(pool), mine);
      } catch (...) {
        // It counts the use before it looks for what may be wrong.
        if (allocator::getPoolUseCount(index_of(device), mempool(pool)) > uses) release_use(device, pool);
        throw;
      }
      try {
        if (!Route::is_asked(device))
          throw CaptureError(
              "what this thread allocates goes to another memory pool or allocator, and not to the graphs' pool: build "
              "outside of torch.xpu.use_mem_pool");
        at::getHostAllocator(at::kXPU)->begin_allocate_to_pool(mempool(pool), mine);
      } catch (...) {
        end_device_scope(device, pool);
        throw;
      }
      try {
        mark_capture_begin(device);
      } catch (...) {
        end_host_scope(pool);
        end_device_scope(device, pool);
        throw;
      }
    });
  }

  void end_allocate_to_pool(Stream stream, PoolId pool) noexcept override {
    const int device = stream.device;
    always("ending a capture's mark", [&] { mark_capture_end(device); });
    end_device_scope(device, pool);
    end_host_scope(pool);
  }

 private:
  struct Pool {
    int device = 0;
    bool has_host_pool = false;
  };

  Pool find(PoolId pool) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pools_.find(pool);
    if (found == pools_.end()) throw ConfigError("pool: there is no pool " + std::to_string(pool));
    return found->second;
  }

  static void release_use(int device, PoolId pool) noexcept {
    always("giving a pool's use back", [&] { allocator::releasePool(index_of(device), mempool(pool)); });
  }

  static void end_device_scope(int device, PoolId pool) noexcept {
    always("ending a pool's scope", [&] { allocator::endAllocateToPool(index_of(device), mempool(pool)); });
    release_use(device, pool);
  }

  /// Pinned memory has pools of the same rule, but the first begin makes them: its use is the one that release_pool
  /// gives back.
  void end_host_scope(PoolId pool) noexcept {
    always("ending a pool's scope for host memory", [&] {
      at::getHostAllocator(at::kXPU)->end_allocate_to_pool(mempool(pool));
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = pools_.find(pool);
      const bool first = found != pools_.end() && !found->second.has_host_pool;
      if (first) {
        found->second.has_host_pool = true;
      } else {
        at::getHostAllocator(at::kXPU)->release_pool(mempool(pool));
      }
    });
  }

  static c10::xpu::XPUStream external_stream(Stream stream) {
    return as_capture_error("torch.xpu does not take the queue", [&] {
      return c10::xpu::getStreamFromExternal(&queue_of(stream), index_of(stream.device));
    });
  }

  std::mutex mutex_;  // guards the rest
  std::unordered_map<PoolId, Pool> pools_;
  std::unordered_map<int, std::unique_ptr<sycl::queue>> capture_queues_;
  std::vector<std::unique_ptr<sycl::queue>> retired_queues_;
};

}  // namespace

std::shared_ptr<DeviceHooks> make_xpu_hooks() { return std::make_shared<XpuHooks>(); }

}  // namespace xpugraph
