// SPDX-License-Identifier: MIT
#include "xpu_double.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/xpu/XPUFunctions.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

namespace xpugraph::xpu_double {

namespace {

constexpr int kQueues = 4;  // of one pool of streams; torch has 32
constexpr std::size_t kSegment = 512;

sycl::device find_device() {
  for (const sycl::platform& platform : sycl::platform::get_platforms()) {
    if (platform.get_backend() != sycl::backend::opencl) continue;
    for (const sycl::device& device : platform.get_devices(sycl::info::device_type::cpu)) return device;
  }
  throw std::runtime_error("no OpenCL CPU device");
}

struct Injection {
  int nth = 0;
  int times = 0;
  std::string text;
};

/// Everything, never destroyed: graphs may outlive it.
struct Double {
  sycl::device device = find_device();
  sycl::context context{device};
  std::vector<std::unique_ptr<sycl::queue>> queues;
  std::atomic<int> next_queue{0};
  std::mutex log_mutex;
  std::vector<std::string> log;
  std::map<std::string, Injection> failures;
  std::string counting;

  Double() {
    for (int i = 0; i < kQueues; ++i)
      queues.push_back(std::make_unique<sycl::queue>(context, device, sycl::property::queue::in_order()));
  }
};

Double& the_double() {
  static Double& instance = *new Double();
  return instance;
}

/// As torch's, a stream's id is odd for a queue of its own and the queue's address for one from outside.
thread_local c10::StreamId current = 2 * (kQueues - 1) + 1;

c10::xpu::XPUStream stream_for(c10::StreamId id) {
  const c10::Device device(c10::DeviceType::XPU, 0);
  return c10::xpu::XPUStream(c10::xpu::XPUStream::UNCHECKED, c10::Stream(c10::Stream::UNSAFE, device, id));
}

/// Pools, uses and scopes: the rules that the device's and the host's allocator have in common.
struct Pools {
  std::map<c10::MempoolId_t, int> uses;  // 0: freeable
  std::vector<c10::MempoolId_t> scopes;

  void add(c10::MempoolId_t id) {
    if (const auto found = uses.find(id); found != uses.end()) TORCH_INTERNAL_ASSERT(found->second > 0);
    ++uses[id];
  }
  void begin(const char* name, c10::MempoolId_t id) {
    add(id);
    TORCH_CHECK(!fails_after_counting(name), "already recording to the pool (injected)");
    TORCH_CHECK(std::find(scopes.begin(), scopes.end(), id) == scopes.end(), "already recording to the pool");
    scopes.push_back(id);
  }
  void end(c10::MempoolId_t id) {
    const auto found = std::find(scopes.begin(), scopes.end(), id);
    TORCH_INTERNAL_ASSERT(found != scopes.end(), "not currently recording to the pool");
    scopes.erase(found);
  }
  void release(c10::MempoolId_t id) { TORCH_INTERNAL_ASSERT(uses.count(id) == 1 && --uses[id] >= 0); }
  std::size_t in_use() const {
    return static_cast<std::size_t>(
        std::count_if(uses.begin(), uses.end(), [](const auto& p) { return p.second > 0; }));
  }
};

/// Blocks are whole segments of 512 bytes' multiples, reused by the queue they were made for, within their pool.
class Allocator final : public c10::xpu::XPUCachingAllocator::XPUAllocator {
 public:
  struct Block {
    c10::MempoolId_t pool;
    sycl::queue* queue;
    std::size_t size;
    bool used;
  };
  std::mutex mutex;
  Pools pools;
  std::vector<std::function<bool(sycl::queue*)>> filters;  // of the scopes
  std::map<void*, Block> blocks;
  int captures = 0;

  /// Written down once its pool is known. As in torch, the first of the open scopes that wants it has it.
  void* raw_alloc(std::size_t size) override {
    sycl::queue* const queue = &c10::xpu::getCurrentXPUStream(0).queue();
    std::lock_guard<std::mutex> lock(mutex);
    size = (size + kSegment - 1) / kSegment * kSegment;
    const auto wants = std::find_if(filters.begin(), filters.end(), [queue](const auto& f) { return f(queue); });
    const c10::MempoolId_t pool =
        wants == filters.end() ? c10::MempoolId_t{0, 0} : pools.scopes[wants - filters.begin()];
    note("raw_alloc");
    auto best = blocks.end();
    for (auto it = blocks.begin(); it != blocks.end(); ++it) {
      const Block& block = it->second;
      const bool fits = !block.used && block.pool == pool && block.queue == queue && block.size >= size;
      if (fits && (best == blocks.end() || block.size < best->second.size)) best = it;
    }
    if (best == blocks.end()) {
      void* const memory = sycl::aligned_alloc_device(64, size, the_double().device, the_double().context);
      best = blocks.emplace(memory, Block{pool, queue, size, false}).first;
    }
    best->second.used = true;
    return best->first;
  }
  void raw_delete(void* pointer) override {
    std::lock_guard<std::mutex> lock(mutex);
    blocks.at(pointer).used = false;
  }

  void init(c10::DeviceIndex) override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { note("emptyCache"); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  c10::DataPtr allocate(std::size_t) override { return {}; }
  void copy_data(void*, const void*, std::size_t) const override {}
};

Allocator& the_allocator() {
  static Allocator& instance = *new Allocator();
  return instance;
}

class HostAllocator final : public at::HostAllocator {
 public:
  std::mutex mutex;
  Pools pools;

  void begin_allocate_to_pool(c10::MempoolId_t id, std::function<bool(c10::Stream)>) override {
    note("host.begin_allocate_to_pool");
    std::lock_guard<std::mutex> lock(mutex);
    pools.begin("host.begin_allocate_to_pool", id);
  }
  void end_allocate_to_pool(c10::MempoolId_t id) override {
    note("host.end_allocate_to_pool");
    std::lock_guard<std::mutex> lock(mutex);
    pools.end(id);
  }
  void release_pool(c10::MempoolId_t id) override {
    note("host.release_pool");
    std::lock_guard<std::mutex> lock(mutex);
    pools.release(id);
  }

  at::DataPtr allocate(std::size_t) override { return {}; }
  void copy_data(void*, const void*, std::size_t) const override {}
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override { note("host.empty_cache"); }
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

HostAllocator& the_host_allocator() {
  static HostAllocator& instance = *[] {
    auto* const made = new HostAllocator();
    at::setHostAllocator(at::kXPU, made);
    return made;
  }();
  return instance;
}

const auto& registered = the_host_allocator();

}  // namespace

std::vector<std::string> calls() {
  std::lock_guard<std::mutex> lock(the_double().log_mutex);
  return the_double().log;
}

std::size_t count(const std::string& name) {
  const std::vector<std::string> log = calls();
  return static_cast<std::size_t>(std::count(log.begin(), log.end(), name));
}

void clear() {
  std::lock_guard<std::mutex> lock(the_double().log_mutex);
  the_double().log.clear();
}

void fail(const std::string& name, int nth, int times, const std::string& text) {
  std::lock_guard<std::mutex> lock(the_double().log_mutex);
  the_double().failures[name] = {nth, times, text};
}

void fail_after_counting(const std::string& name) {
  std::lock_guard<std::mutex> lock(the_double().log_mutex);
  the_double().counting = name;
}

std::atomic<bool> sticky{false};
std::atomic<Native> native_mode{Native::absent};
void set_native(Native mode) { native_mode = mode; }
void sticks_when_end_fails(bool sticks) { sticky = sticks; }
bool sticks_when_end_fails() { return sticky; }
Native native() { return native_mode; }

void no_failures() {
  std::lock_guard<std::mutex> lock(the_double().log_mutex);
  the_double().failures.clear();
  the_double().counting.clear();
}

void note(const char* name) {
  Double& d = the_double();
  std::lock_guard<std::mutex> lock(d.log_mutex);
  d.log.emplace_back(name);
  const auto found = d.failures.find(name);
  if (found == d.failures.end() || --found->second.nth > 0) return;
  const std::string text = found->second.text;
  if (--found->second.times <= 0) d.failures.erase(found);
  const std::string step = name;
  const bool of_a_graph =
      step.find("recording") != std::string::npos || step == "finalize" || step == "empty" || step == "wait";
  if (of_a_graph) throw sycl::exception(sycl::make_error_code(sycl::errc::runtime), text);
  TORCH_CHECK(false, name, ": ", text);
}

bool fails_after_counting(const char* name) {
  std::lock_guard<std::mutex> lock(the_double().log_mutex);
  return the_double().counting == name;
}

bool in_a_pool(void* pointer) {
  std::lock_guard<std::mutex> lock(the_allocator().mutex);
  return the_allocator().blocks.at(pointer).pool != c10::MempoolId_t{0, 0};
}

std::size_t reserved() {
  std::lock_guard<std::mutex> lock(the_allocator().mutex);
  std::size_t bytes = 0;
  for (const auto& [pointer, block] : the_allocator().blocks) bytes += block.size;
  return bytes;
}

std::size_t used() {
  std::lock_guard<std::mutex> lock(the_allocator().mutex);
  std::size_t bytes = 0;
  for (const auto& [pointer, block] : the_allocator().blocks) bytes += block.used ? block.size : 0;
  return bytes;
}

std::size_t pools_in_use() { return the_allocator().pools.in_use(); }
std::size_t host_pools_in_use() { return the_host_allocator().pools.in_use(); }
std::size_t open_scopes() { return the_allocator().pools.scopes.size() + the_host_allocator().pools.scopes.size(); }
int marked_captures() { return the_allocator().captures; }

}  // namespace xpugraph::xpu_double

// ---- the symbols of libc10_xpu --------------------------------------------------------------------------------------

namespace c10::xpu {

using xpugraph::xpu_double::note;
using xpugraph::xpu_double::the_allocator;
using xpugraph::xpu_double::the_double;

DeviceIndex device_count() { return 1; }
DeviceIndex current_device() { return 0; }
void set_device(DeviceIndex) { note("set_device"); }
DeviceIndex exchange_device(DeviceIndex) {
  note("exchange_device");
  return 0;
}
sycl::device& get_raw_device(DeviceIndex) { return the_double().device; }
sycl::context& get_device_context() { return the_double().context; }

sycl::queue& XPUStream::queue() const {
  const StreamId id = stream_.id();
  if (id % 2 != 0) return *the_double().queues.at(static_cast<std::size_t>(id / 2));
  return *reinterpret_cast<sycl::queue*>(id);  // NOLINT(performance-no-int-to-ptr)
}
int XPUStream::priority() const { return 0; }

XPUStream getStreamFromPool(const int, DeviceIndex) {
  note("getStreamFromPool");
  // The last one is the default stream.
  const int queue = the_double().next_queue++ % (xpugraph::xpu_double::kQueues - 1);
  return xpugraph::xpu_double::stream_for(2 * queue + 1);
}
XPUStream getStreamFromPool(const bool, DeviceIndex device) { return getStreamFromPool(0, device); }

XPUStream getStreamFromExternal(sycl::queue* queue, DeviceIndex) {
  TORCH_CHECK(queue != nullptr && queue->is_in_order() && queue->get_context() == the_double().context);
  return xpugraph::xpu_double::stream_for(reinterpret_cast<StreamId>(queue));
}

XPUStream getCurrentXPUStream(DeviceIndex) {
  note("getCurrentXPUStream");
  return xpugraph::xpu_double::stream_for(xpugraph::xpu_double::current);
}

void setCurrentXPUStream(XPUStream stream) {
  note("setCurrentXPUStream");
  xpugraph::xpu_double::current = stream.id();
}

void syncStreamsOnDevice(DeviceIndex) { note("syncStreamsOnDevice"); }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
void device_synchronize(DeviceIndex) { note("device_synchronize"); }
#endif

namespace XPUCachingAllocator {

std::atomic<XPUAllocator*> allocator{&the_allocator()};

void createOrIncrefPool(DeviceIndex, MempoolId_t id, XPUAllocator*) {
  note("createOrIncrefPool");
  std::lock_guard<std::mutex> lock(the_allocator().mutex);
  the_allocator().pools.add(id);
}

void beginAllocateToPool(DeviceIndex, MempoolId_t id, std::function<bool(sycl::queue*)> filter) {
  note("beginAllocateToPool");
  std::lock_guard<std::mutex> lock(the_allocator().mutex);
  the_allocator().pools.begin("beginAllocateToPool", id);
  the_allocator().filters.push_back(std::move(filter));
}

void endAllocateToPool(DeviceIndex, MempoolId_t id) {
  note("endAllocateToPool");
  std::lock_guard<std::mutex> lock(the_allocator().mutex);
  auto& scopes = the_allocator().pools.scopes;
  const auto index = std::find(scopes.begin(), scopes.end(), id) - scopes.begin();
  the_allocator().pools.end(id);
  the_allocator().filters.erase(the_allocator().filters.begin() + index);
}

void releasePool(DeviceIndex, MempoolId_t id) {
  note("releasePool");
  std::lock_guard<std::mutex> lock(the_allocator().mutex);
  the_allocator().pools.release(id);
}

int getPoolUseCount(DeviceIndex, MempoolId_t id) {
  std::lock_guard<std::mutex> lock(the_allocator().mutex);
  const auto found = the_allocator().pools.uses.find(id);
  return found == the_allocator().pools.uses.end() ? 0 : found->second;
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
void markCaptureBegin(DeviceIndex) {
  note("markCaptureBegin");
  ++the_allocator().captures;
}
void markCaptureEnd(DeviceIndex) {
  note("markCaptureEnd");
  TORCH_INTERNAL_ASSERT(the_allocator().captures-- > 0);
}
#endif

SnapshotInfo snapshot(MempoolId_t id) {
  SnapshotInfo info;
  std::lock_guard<std::mutex> lock(the_allocator().mutex);
  for (const auto& [pointer, block] : the_allocator().blocks) {
    if (id != MempoolId_t{0, 0} && block.pool != id) continue;
    auto& segment = info.segments.emplace_back();
    segment.total_size = block.size;
    segment.allocated_size = block.used ? block.size : 0;
    segment.owner_private_pool_id = block.pool;
  }
  return info;
}

}  // namespace XPUCachingAllocator
}  // namespace c10::xpu
