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
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

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

/// From 2.14 on, routing alone no longer tells torch's allocator that a capture is under way: without the mark it would
/// query events and give cached memory back meanwhile.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
void mark_capture_begin(int device) { allocator::markCaptureBegin(index_of(device)); }
void mark_capture_end(int device) { allocator::markCaptureEnd(index_of(device)); }
#else
void mark_capture_begin(int) {}
void mark_capture_end(int) {}
#endif

/// Runs a step of a clean-up. The next ones must run whatever becomes of it.
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

class XpuHooks final : public DeviceHooks {
 public:
  // ---- streams ----------------------------------------------------------------------------------------------------
  Stream current_stream(int device) override {
    try {
      const c10::xpu::XPUStream stream = c10::xpu::getCurrentXPUStream(index_of(device));
      sycl::queue* queue = &stream.queue();
      remember(queue, stream.id());
      return {device, queue};
    } catch (const c10::Error& error) {
      throw DeviceError(std::string("torch.xpu has no current stream: ") + error.what_without_backtrace());
    }
  }

  void set_current_stream(Stream stream) override {
    as_capture_error("torch.xpu does not take the stream",
                     [&] { c10::xpu::setCurrentXPUStream(torch_stream(stream)); });
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

  void synchronize(Stream stream) override {
    try {
      torch_stream(stream).synchronize();
    } catch (const sycl::exception& error) {
      const bool recording =
          queue_of(stream).ext_oneapi_get_state() == sycl::ext::oneapi::experimental::queue_state::recording;
      if (recording)
        throw CaptureError(std::string("a stream that records a graph cannot be waited for: ") + error.what());
      throw DeviceError(error.what());
    }
  }

  void wait_idle(Stream stream) noexcept override {
    try {
      queue_of(stream).wait();
    } catch (...) {
      // A recording queue has nothing to wait for. Other errors come up again where results are waited for.
    }
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
    const auto mine = [thread = std::this_thread::get_id()](auto&&) { return std::this_thread::get_id() == thread; };
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
        at::getHostAllocator(at::kXPU)->begin_allocate_to_pool(mempool(pool), mine);
      } catch (...) {
        always("ending a pool's scope", [&] { allocator::endAllocateToPool(index_of(device), mempool(pool)); });
        release_use(device, pool);
        throw;
      }
      try {
        mark_capture_begin(device);
      } catch (...) {
        end_host_scope(pool);
        always("ending a pool's scope", [&] { allocator::endAllocateToPool(index_of(device), mempool(pool)); });
        release_use(device, pool);
        throw;
      }
    });
  }

  void end_allocate_to_pool(Stream stream, PoolId pool) noexcept override {
    const int device = stream.device;
    always("ending a capture's mark", [&] { mark_capture_end(device); });
    always("ending a pool's scope", [&] { allocator::endAllocateToPool(index_of(device), mempool(pool)); });
    release_use(device, pool);
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

  /// One queue may be the stream of several ids (torch's own and an external one), and the one that a thread had must
  /// come back.
  static void remember(sycl::queue* queue, c10::StreamId id) {
    thread_local std::pair<sycl::queue*, c10::StreamId> last{nullptr, 0};
    if (last == std::make_pair(queue, id)) return;
    StreamIds& ids = stream_ids();
    std::lock_guard<std::mutex> lock(ids.mutex);
    ids.of_queue[queue] = id;
    last = {queue, id};
  }

  struct StreamIds {
    std::mutex mutex;
    std::unordered_map<sycl::queue*, c10::StreamId> of_queue;
  };
  static StreamIds& stream_ids() {
    static StreamIds& ids = *new StreamIds();
    return ids;
  }

  static c10::xpu::XPUStream torch_stream(Stream stream) {
    auto* const queue = static_cast<sycl::queue*>(stream.handle);
    {
      StreamIds& ids = stream_ids();
      std::lock_guard<std::mutex> lock(ids.mutex);
      if (const auto found = ids.of_queue.find(queue); found != ids.of_queue.end()) {
        const c10::Device device(c10::DeviceType::XPU, index_of(stream.device));
        return c10::xpu::XPUStream(c10::Stream(c10::Stream::UNSAFE, device, found->second));
      }
    }
    return as_capture_error("torch.xpu does not take the queue",
                            [&] { return c10::xpu::getStreamFromExternal(queue, index_of(stream.device)); });
  }

  std::mutex mutex_;  // guards the rest
  std::unordered_map<PoolId, Pool> pools_;
  std::unordered_map<int, std::unique_ptr<sycl::queue>> capture_queues_;
};

}  // namespace

std::shared_ptr<DeviceHooks> make_xpu_hooks() { return std::make_shared<XpuHooks>(); }

}  // namespace xpugraph
