// SPDX-License-Identifier: MIT
#include "runtime/sycl_streams.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <sycl/sycl.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "runtime/sycl_openmp.h"

namespace xpugraph::sycl_cpu {

namespace {

namespace syclex = sycl::ext::oneapi::experimental;
using Clock = std::chrono::steady_clock;

constexpr int kDefaultStream = 0;
constexpr int kCaptureStream = 1;
constexpr int kMaxStreams = 32;
constexpr std::size_t kAlignment = 64;
/// With hundreds of host_tasks in flight the runtime takes longer and longer to submit the next one (10 us alone, 55
/// us after a thousand, seconds after ten thousand). As a full queue does on any device, a full stream makes the host
/// wait.
constexpr int kMaxInFlight = 32;
/// queue::wait() takes some 50 us to wake up, more than a short graph takes to run; so poll first.
constexpr auto kSpin = std::chrono::microseconds(200);

/// A queue together with what was gathered on it. Stream::handle points at the queue part.
struct StreamState : sycl::queue {
  StreamState(const sycl::context& context, const sycl::device& device, int number)
      : sycl::queue(
            context, device, [](const sycl::exception_list&) {}, sycl::property::queue::in_order()),
        id(number) {}

  bool is_recording() const { return ext_oneapi_get_state() == syclex::queue_state::recording; }

  const int id;
  std::atomic<int> in_flight{0};
  std::atomic<std::uint64_t> failures_seen{0};
  std::mutex mutex;
  std::vector<Closure> gathered;
  Closure before, after;  // around what is gathered; empty: nothing
};

/// Failures of closures. As on a GPU, a failure concerns the whole device: every stream reports it once, at its next
/// synchronisation, since any of them may have used what the failed work left. What comes after it runs all the same, on
/// whatever is there; nobody sees the results without the error.
class Failures {
 public:
  void set(const std::string& what) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (reported_) text_ = what;  // else the first one is the cause
    reported_ = false;
    count_.fetch_add(1);
  }
  /// Throws when there was a failure since `seen`, which becomes current.
  void raise(std::atomic<std::uint64_t>& seen) {
    const std::uint64_t now = count_.load();
    if (seen.exchange(now) == now) return;
    std::lock_guard<std::mutex> lock(mutex_);
    reported_ = true;
    throw DeviceError(text_);
  }
  std::uint64_t count() const { return count_.load(); }
  /// True when somebody was told of the last one.
  bool reported() {
    std::lock_guard<std::mutex> lock(mutex_);
    return reported_;
  }

 private:
  std::atomic<std::uint64_t> count_{0};
  std::mutex mutex_;
  std::string text_;
  bool reported_ = true;
};

std::optional<sycl::device> find_device(std::string* why) {
  bool cpu_seen = false;
  try {
    for (const sycl::platform& platform : sycl::platform::get_platforms()) {
      if (platform.get_backend() != sycl::backend::opencl) continue;
      for (const sycl::device& device : platform.get_devices(sycl::info::device_type::cpu)) {
        cpu_seen = true;
        if (!device.has(sycl::aspect::ext_oneapi_limited_graph)) continue;
        return device;
      }
    }
  } catch (const sycl::exception& error) {
    *why = std::string("the SYCL runtime failed to list its devices: ") + error.what();
    return std::nullopt;
  }
  *why = cpu_seen ? "the OpenCL CPU device cannot record command graphs"
                  : "SYCL sees no OpenCL CPU device (is OCL_ICD_FILENAMES set to libintelocl.so of intel-opencl-rt?)";
  return std::nullopt;
}

sycl::device require_device() {
  std::string why;
  std::optional<sycl::device> device = find_device(&why);
  if (!device) throw DeviceError("no SYCL CPU device: " + why);
  return *device;
}

struct Device {
  Device() : device(require_device()), context(device) {
    for (int id : {kDefaultStream, kCaptureStream})
      streams.push_back(std::make_unique<StreamState>(context, device, id));
  }

  sycl::device device;
  sycl::context context;
  std::mutex mutex;  // guards streams, next_stream, worker_start
  std::vector<std::unique_ptr<StreamState>> streams;
  int next_stream = kCaptureStream + 1;
  Closure worker_start;
  std::atomic<bool> gather{true};
  Failures failures;
};

/// Deliberately never destroyed: tensors and graphs may outlive every static destructor.
Device& the_device() {
  static Device& device = *new Device();
  return device;
}

StreamState& state_of(Stream stream) { return *static_cast<StreamState*>(static_cast<sycl::queue*>(stream.handle)); }

void start_worker(Device& device) {
  thread_local bool started = false;
  if (started) return;
  started = true;
  Closure start;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    start = device.worker_start;
  }
  if (start) start();
}

/// Runs one closure on the worker. Nothing may escape: an exception in a host_task ends the process later.
void run(const Closure& closure) noexcept {
  Device& device = the_device();
  try {
    start_worker(device);
    closure();
  } catch (const std::exception& error) {
    device.failures.set(error.what());
  } catch (...) {
    device.failures.set("work on the device failed with an unknown exception");
  }
}

void wait_idle(StreamState& state) {
  release_host_openmp();
  const auto deadline = Clock::now() + kSpin;
  while (!state.ext_oneapi_empty()) {
    if (Clock::now() > deadline) {
      state.wait();
      return;
    }
    std::this_thread::yield();  // the worker's OpenMP threads want every core
  }
}

/// A host_task is copied inside the runtime, so what it runs is held by pointer.
template <typename Task>
sycl::event submit_host_task(StreamState& state, Task task) {
  auto shared = std::make_shared<Task>(std::move(task));
  return state.submit([&](sycl::handler& handler) { handler.host_task([shared] { (*shared)(); }); });
}

void submit_gathered(StreamState& state) {
  std::vector<Closure> closures = std::exchange(state.gathered, {});
  Closure before = std::exchange(state.before, {}), after = std::exchange(state.after, {});
  if (closures.empty()) return;
  submit_host_task(state, [closures = std::move(closures), before = std::move(before), after = std::move(after)] {
    if (before) before();
    for (const Closure& closure : closures) run(closure);
    if (after) after();
  });
}

}  // namespace

bool available(std::string* why) {
  std::string reason;
  const bool found = find_device(&reason).has_value();
  if (!found && why != nullptr) *why = reason;
  return found;
}

std::string describe() {
  const sycl::device device = require_device();
  std::string text;
  const auto line = [&text](const char* name, const std::string& value) { text += name + (": " + value + "\n"); };
  line("name", device.get_info<sycl::info::device::name>());
  line("vendor", device.get_info<sycl::info::device::vendor>());
  line("driver", device.get_info<sycl::info::device::driver_version>());
  line("platform", device.get_platform().get_info<sycl::info::platform::version>());
  line("compute units", std::to_string(device.get_info<sycl::info::device::max_compute_units>()));
  line("limited graph", std::to_string(device.has(sycl::aspect::ext_oneapi_limited_graph)));
  line("full graph", std::to_string(device.has(sycl::aspect::ext_oneapi_graph)));
  line("graph extension", std::to_string(SYCL_EXT_ONEAPI_GRAPH));
  line("libsycl", std::to_string(__LIBSYCL_MAJOR_VERSION) + "." + std::to_string(__LIBSYCL_MINOR_VERSION) + "." +
                      std::to_string(__LIBSYCL_PATCH_VERSION));
  return text;
}

Stream stream(int id) {
  Device& device = the_device();
  std::lock_guard<std::mutex> lock(device.mutex);
  if (id < 0 || static_cast<std::size_t>(id) >= device.streams.size()) {
    throw ConfigError("there is no stream " + std::to_string(id) + " on the sycl device");
  }
  return Stream{0, static_cast<sycl::queue*>(device.streams[id].get())};
}

int stream_id(Stream stream) { return state_of(stream).id; }

int new_stream() {
  Device& device = the_device();
  std::lock_guard<std::mutex> lock(device.mutex);
  const int id = device.next_stream;
  if (id == static_cast<int>(device.streams.size())) {
    device.streams.push_back(std::make_unique<StreamState>(device.context, device.device, id));
  }
  device.next_stream = id + 1 < kMaxStreams ? id + 1 : kCaptureStream + 1;
  return id;
}

int capture_stream_id() { return kCaptureStream; }

void begin_work(Stream stream) {
  StreamState& state = state_of(stream);
  Failures& failures = the_device().failures;
  const std::uint64_t now = failures.count();
  if (state.failures_seen.load() == now || !state.ext_oneapi_empty() || !failures.reported()) return;
  state.failures_seen.store(now);
}

void submit(Stream stream, Closure closure) {
  StreamState& state = state_of(stream);
  if (!state.is_recording()) {
    begin_work(stream);
    if (state.in_flight.load(std::memory_order_relaxed) >= kMaxInFlight) wait_idle(state);
    state.in_flight.fetch_add(1, std::memory_order_relaxed);
    try {
      submit_host_task(state, [closure = std::move(closure), &state] {
        run(closure);
        state.in_flight.fetch_sub(1, std::memory_order_relaxed);
      });
    } catch (...) {
      state.in_flight.fetch_sub(1, std::memory_order_relaxed);
      throw;
    }
    return;
  }
  std::lock_guard<std::mutex> lock(state.mutex);
  state.gathered.push_back(std::move(closure));
  if (!gather()) submit_gathered(state);
}

void synchronize(Stream stream) {
  StreamState& state = state_of(stream);
  if (state.is_recording()) throw CaptureError("the host cannot wait for a stream that is recording a graph");
  wait_idle(state);
  the_device().failures.raise(state.failures_seen);
}

void wait_idle(Stream stream) noexcept {
  StreamState& state = state_of(stream);
  try {
    if (!state.is_recording()) wait_idle(state);
  } catch (const sycl::exception&) {
    // Another thread began to record on it meanwhile; a queue that records is idle.
  }
}

void drain() noexcept {
  Device& device = the_device();
  std::vector<StreamState*> states;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    for (const auto& state : device.streams) states.push_back(state.get());
  }
  for (StreamState* state : states) wait_idle(Stream{0, static_cast<sycl::queue*>(state)});
}

void raise_pending() {
  Device& device = the_device();
  std::atomic<std::uint64_t> seen{device.failures.reported() ? device.failures.count() : 0};
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    for (const auto& state : device.streams) state->failures_seen.store(device.failures.count());
  }
  device.failures.raise(seen);
}

bool idle(Stream stream) {
  StreamState& state = state_of(stream);
  return state.is_recording() || state.ext_oneapi_empty();
}

bool recording(Stream stream) { return state_of(stream).is_recording(); }

void set_gather(bool gather) { the_device().gather.store(gather); }
bool gather() { return the_device().gather.load(); }

bool enclose_gathered(Stream stream, Closure before, Closure after) {
  StreamState& state = state_of(stream);
  std::lock_guard<std::mutex> lock(state.mutex);
  if (state.gathered.empty()) return false;
  state.before = std::move(before);
  state.after = std::move(after);
  return true;
}

void flush_gathered(Stream stream) {
  StreamState& state = state_of(stream);
  std::lock_guard<std::mutex> lock(state.mutex);
  submit_gathered(state);
}

void discard_gathered(Stream stream) noexcept {
  StreamState& state = state_of(stream);
  std::lock_guard<std::mutex> lock(state.mutex);
  state.gathered.clear();
  state.before = state.after = {};
}

struct Event::State {
  StreamState* stream = nullptr;
  sycl::event event;
  Clock::time_point at;
  std::atomic<bool> done{false};
};

Event Event::record(Stream stream) {
  StreamState& state = state_of(stream);
  if (state.is_recording()) throw CaptureError("an event cannot be recorded on a stream that is recording a graph");
  begin_work(stream);
  Event event;
  event.state_ = std::make_shared<State>();
  event.state_->stream = &state;
  event.state_->event = submit_host_task(state, [mark = event.state_] {
    mark->at = Clock::now();
    mark->done.store(true, std::memory_order_release);
  });
  return event;
}

bool Event::done() const { return state_ == nullptr || state_->done.load(std::memory_order_acquire); }

void Event::wait() const {
  if (state_ == nullptr) return;
  if (!done()) {
    release_host_openmp();
    state_->event.wait();
  }
  the_device().failures.raise(state_->stream->failures_seen);
}

void Event::block(Stream stream) const {
  if (state_ == nullptr) return;
  StreamState& state = state_of(stream);
  if (state.is_recording()) throw CaptureError("a stream that is recording a graph cannot wait for work outside of it");
  begin_work(stream);
  // What failed there concerns this stream too from now on.
  state.failures_seen.store(std::min(state.failures_seen.load(), state_->stream->failures_seen.load()));
  if (done()) return;
  // Not a barrier: one that depends on a host_task of another queue makes the runtime's only host_task thread wait for a
  // host_task, which then never runs. host_tasks that depend on host_tasks are scheduled without waiting.
  state.submit([&](sycl::handler& handler) {
    handler.depends_on(state_->event);
    handler.host_task([] {});
  });
}

double Event::elapsed_ms_until(const Event& later) const {
  if (!state_ || !later.state_ || !done() || !later.done()) {
    throw StateError("elapsed time needs two events that were recorded and are done");
  }
  return std::chrono::duration<double, std::milli>(later.state_->at - state_->at).count();
}

void* malloc_device(std::size_t bytes) {
  Device& device = the_device();
  void* pointer = nullptr;
  try {
    pointer = sycl::aligned_alloc_device(kAlignment, bytes, device.device, device.context);
  } catch (const sycl::exception& error) {
    throw OutOfMemoryError(std::string("the sycl device could not allocate memory: ") + error.what());
  }
  if (pointer == nullptr) throw OutOfMemoryError("the sycl device is out of memory");
  return pointer;
}

void free_device(void* pointer) noexcept {
  try {
    sycl::free(pointer, the_device().context);
  } catch (const sycl::exception&) {
    // Only a pointer that is not ours gets here; there is nothing to undo.
  }
}

void on_worker_start(Closure closure) {
  Device& device = the_device();
  std::lock_guard<std::mutex> lock(device.mutex);
  device.worker_start = std::move(closure);
}

}  // namespace xpugraph::sycl_cpu
