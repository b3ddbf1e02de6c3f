// SPDX-License-Identifier: MIT
#include "runtime/sycl_runtime.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <sycl/sycl.hpp>
#include <utility>
#include <vector>

#include "core/error.h"
#include "runtime/sycl_call_blocks.h"
#include "runtime/sycl_engine.h"

namespace xpugraph {

namespace {

namespace syclex = sycl::ext::oneapi::experimental;
using ModifiableGraph = syclex::command_graph<syclex::graph_state::modifiable>;
using ExecutableGraph = syclex::command_graph<syclex::graph_state::executable>;

sycl::queue& queue_of(Stream stream) { return *static_cast<sycl::queue*>(stream.handle); }

bool is_recording(const sycl::queue& queue) { return queue.ext_oneapi_get_state() == syclex::queue_state::recording; }

/// Most replays of one graph in flight on a CPU device. Its runtime slows down with everything that is in flight: 50
/// replays of a graph of 48 host_tasks, at each of which a graph is cut, take 13 ms each against 0.3 ms one at a time,
/// and thousands of replays of one node take milliseconds each.
std::size_t replays_in_flight(std::size_t nodes) { return nodes == 1 ? 16 : 1; }

class SyclExecutable final : public Executable {
 public:
  /// `blocks` when the graph takes its transfers from there, else null.
  SyclExecutable(ExecutableGraph graph, std::size_t nodes, bool cpu, std::shared_ptr<CallBlocks> blocks)
      : graph_(std::move(graph)), nodes_(nodes), cpu_(cpu), blocks_(std::move(blocks)) {}

  /// Waits for its own replays: where the driver recorded, nobody else keeps the graph while the device runs it.
  ~SyclExecutable() override {
    try {
      for (sycl::event& replay : in_flight_) replay.wait();
    } catch (const sycl::exception&) {
      // The device failed. Whoever synchronises for results is told.
    }
  }

  std::size_t nodes() const override { return nodes_; }
  bool takes_transfers() const { return blocks_ != nullptr; }

  void submit(sycl::queue& queue, Transfers before = {}, Transfers after = {}) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (in_flight_.size() >= (cpu_ ? replays_in_flight(nodes_) : 1)) {
      if (cpu_) in_flight_.front().wait();  // on a GPU replays of one graph run one after another: the last is enough
      in_flight_.pop_front();
    }
    in_flight_.emplace_back();
    try {
      if (blocks_) blocks_->put(before, after);
    } catch (...) {
      in_flight_.pop_back();
      throw;
    }
    try {
      in_flight_.back() = queue.ext_oneapi_graph(graph_);
    } catch (...) {
      in_flight_.pop_back();
      if (blocks_) blocks_->unput();
      throw;
    }
  }

 private:
  const ExecutableGraph graph_;
  const std::size_t nodes_;
  const bool cpu_;
  const std::shared_ptr<CallBlocks> blocks_;
  std::mutex mutex_;
  std::deque<sycl::event> in_flight_;
};

/// The calling thread's current stream is the capture stream for as long as this lives.
class StreamScope {
 public:
  StreamScope(DeviceHooks& hooks, int device)
      : hooks_(hooks), previous_(hooks.current_stream(device)), stream(hooks.capture_stream(device)) {
    hooks_.set_current_stream(stream);
  }
  ~StreamScope() {
    try {
      hooks_.set_current_stream(previous_);
    } catch (...) {
      // Setting a thread-local back to a stream it held before; there is nothing better to do than to go on restoring.
    }
    if (still_recording()) hooks_.renew_capture_stream(stream.device);
  }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  /// The recording is over by now, unless the driver failed to end it. A queue that cannot tell is no good either.
  bool still_recording() const noexcept {
    try {
      return is_recording(queue_of(stream));
    } catch (const sycl::exception&) {
      return true;
    }
  }

  DeviceHooks& hooks_;
  const Stream previous_;

 public:
  const Stream stream;
};

class PoolScope {
 public:
  PoolScope(DeviceHooks& hooks, Stream stream, PoolId pool) : hooks_(hooks), stream_(stream), pool_(pool) {
    hooks_.begin_allocate_to_pool(stream, pool);
  }
  ~PoolScope() { hooks_.end_allocate_to_pool(stream_, pool_); }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  DeviceHooks& hooks_;
  const Stream stream_;
  const PoolId pool_;
};

/// A graph that a queue is being recorded into, and by which engine.
struct Recording {
  /// Begins with the driver's own recording where there is one and `native` allows it, otherwise (and where it refuses)
  /// with SYCL's.
  static Recording begin(sycl::queue& queue, bool native) {
    std::string refusal;
#if SYCL_EXT_ONEAPI_GRAPH >= 2
    // The OpenCL CPU device has none, and asking it at every capture costs an exception.
    if (native && queue.get_backend() != sycl::backend::opencl && sycl_engine::native_wanted()) {
      try {
        Recording recording{ModifiableGraph(queue.get_context(), queue.get_device(),
                                            {syclex::property::graph::enable_native_recording{}}),
                            true};
        recording.graph.begin_recording(queue);
        return recording;
      } catch (const sycl::exception& error) {
        refusal = error.what();
        sycl_engine::note_refusal(refusal);
      }
    }
#endif
    try {
      Recording recording{ModifiableGraph(queue.get_context(), queue.get_device()), false};
      recording.graph.begin_recording(queue);
      return recording;
    } catch (const sycl::exception& error) {
      if (refusal.empty()) throw;
      throw CaptureError(std::string("the device cannot record a graph: ") + error.what() +
                         " (and native recording: " + refusal + ")");
    }
  }

  /// Of a native recording, whose get_nodes() throws, 1 stands for some; the driver is only asked once it has ended.
  std::size_t nodes() const {
#if SYCL_EXT_ONEAPI_GRAPH >= 2
    if (native) return graph.empty() ? 0 : 1;
#endif
    return graph.get_nodes().size();
  }

  ModifiableGraph graph;
  bool native;
};

/// Records the stream's work into a graph until finish() or destruction, which drops it.
class GraphScope {
 public:
  GraphScope(DeviceHooks& hooks, Stream stream, bool native)
      : hooks_(hooks), stream_(stream), recording_(Recording::begin(queue_of(stream), native)) {}
  ~GraphScope() {
    hooks_.discard_capture(stream_);
    try {
      if (is_recording(queue_of(stream_))) recording_.graph.end_recording();
    } catch (const sycl::exception&) {
      // Destroying the modifiable graph, which happens next, returns the queue to executing as well; where the driver
      // records it may not, and StreamScope looks.
    }
  }
  GraphScope(const GraphScope&) = delete;
  GraphScope& operator=(const GraphScope&) = delete;

  bool native() const { return recording_.native; }

  /// Ends the recording; what was recorded, as a graph that can be replayed.
  std::unique_ptr<Executable> finish() {
    std::shared_ptr<CallBlocks> blocks;
    if (!recording_.native && recording_.nodes() == 0) {
      auto made = std::make_shared<CallBlocks>();
      if (hooks_.enclose_capture(stream_, [made] { made->before(); }, [made] { made->after(); })) blocks = made;
    }
    hooks_.flush_capture(stream_);
    recording_.graph.end_recording();  // of this queue, and of those that the forward drew into the recording
    const std::size_t nodes = recording_.nodes();
    if (nodes == 0) throw CaptureError("nothing was recorded: no work was submitted to the capture stream");
    const bool cpu = queue_of(stream_).get_device().is_cpu();
    return std::make_unique<SyclExecutable>(recording_.graph.finalize(), nodes, cpu, std::move(blocks));
  }

 private:
  DeviceHooks& hooks_;
  const Stream stream_;
  Recording recording_;
};

/// There is one capture stream per device, so captures exclude each other from begin to end. One lock for all devices:
/// recording takes milliseconds and happens at build time.
std::mutex& capture_mutex() {
  static std::mutex& mutex = *new std::mutex();
  return mutex;
}

/// A capture in progress. The members are undone in reverse order, whatever fails and wherever it fails.
struct Capture {
  /// `failure`: why the capture that this one repeats failed under native recording; empty when it repeats none.
  Capture(DeviceHooks& hooks, int device, PoolId pool, bool native, std::string failure)
      : failure(std::move(failure)),
        lock(capture_mutex()),
        stream(hooks, device),
        pool(hooks, stream.stream, pool),
        graph(hooks, stream.stream, native && this->failure.empty()) {}

  /// What to add to an error of a capture that is the second attempt.
  std::string first_attempt() const { return failure.empty() ? "" : " (and native recording: " + failure + ")"; }

  const std::string failure;
  std::unique_lock<std::mutex> lock;
  StreamScope stream;
  PoolScope pool;
  GraphScope graph;
};

/// One capture per thread, whichever runtime began it. A thread that exits while it captures drops the capture.
thread_local std::unique_ptr<Capture> current_capture;

/// Why the last capture of this thread failed under native recording, until the next one begins.
thread_local std::string native_failure;
/// That next one repeats it, by command graph.
thread_local bool repeats = false;

class SyclRuntime final : public GraphRuntime {
 public:
  explicit SyclRuntime(std::shared_ptr<DeviceHooks> hooks) : hooks_(std::move(hooks)) {}

  std::string name() const override { return "sycl"; }

  Stream current_stream(int device) override { return hooks_->current_stream(device); }

  void order(Stream after, Stream before) override {
    if (after == before) return;
    sycl::queue& first = queue_of(before);
    sycl::queue& second = queue_of(after);
    // A barrier on an event of a recording queue would silently draw the other queue into the recording.
    if (is_recording(first) || is_recording(second)) {
      throw CaptureError("streams cannot be ordered while one of them is recording a graph");
    }
    if (!hooks_->order(after, before)) second.ext_oneapi_submit_barrier({first.ext_oneapi_submit_barrier()});
  }

  void synchronize(Stream stream) override { hooks_->synchronize(stream); }
  void wait_idle(Stream stream) noexcept override { hooks_->wait_idle(stream); }

  PoolId create_pool(int device) override { return hooks_->create_pool(device); }
  void release_pool(PoolId pool) noexcept override { hooks_->release_pool(pool); }
  PoolStats pool_stats(PoolId pool) override { return hooks_->pool_stats(pool); }

  void transfer(Stream stream, const Transfer* transfers, std::size_t count) override {
    std::vector<Transfer> work;
    for (std::size_t i = 0; i < count; ++i) {
      if (transfers[i].bytes != 0) work.push_back(transfers[i]);
    }
    if (work.empty()) return;
    sycl::queue& queue = queue_of(stream);
    if (!is_recording(queue)) hooks_->begin_work(stream);
    if (is_recording(queue)) hooks_->flush_capture(stream);  // what was gathered comes first
    if (queue.get_device().is_cpu()) {
      transfer_on_cpu(queue, std::move(work));
    } else {
      for (const Transfer& piece : work) {
        if (piece.src == nullptr) {
          queue.memset(piece.dst, 0, piece.bytes);
        } else {
          queue.memcpy(piece.dst, piece.src, piece.bytes);
        }
      }
    }
  }

  Stream begin_capture(int device, PoolId pool) override {
    if (current_capture) throw CaptureError("this thread is capturing already; captures do not nest");
    const std::string failure = std::exchange(native_failure, {});
    const bool repeat = std::exchange(repeats, false);
    try {
      current_capture = std::make_unique<Capture>(*hooks_, device, pool, native_, repeat ? failure : "");
    } catch (const sycl::exception& error) {
      throw CaptureError(std::string("the device cannot record a graph: ") + error.what() +
                         (repeat ? " (and native recording: " + failure + ")" : ""));
    }
    return current_capture->stream.stream;
  }

  std::unique_ptr<Executable> end_capture() override {
    if (!current_capture) throw CaptureError("this thread is not capturing");
    const std::unique_ptr<Capture> capture = std::move(current_capture);  // restores at the end of this scope
    const bool native = capture->graph.native();
    try {
      std::unique_ptr<Executable> graph = capture->graph.finish();
      sycl_engine::note_recorded(native);
      if (!capture->failure.empty()) turn_native_off(capture->failure);  // it was to blame: this engine can
      return graph;
    } catch (const sycl::exception& error) {
      std::string text = std::string("the recorded graph could not be finished: ") + error.what();
      if (native) {
        native_failure = error.what();
        turn_native_off(native_failure);
        text +=
            " (native recording is off from now on, for all modules of the process; a stream that the forward forked "
            "to and "
            "did not join may stay recording)";
      }
      throw CaptureError(text + capture->first_attempt());
    } catch (const std::exception& error) {
      if (native) native_failure = error.what();
      throw;
    }
  }

  void abort_capture() noexcept override {
    if (current_capture && current_capture->graph.native()) native_failure = "the forward failed there";
    current_capture.reset();
  }

  bool repeat_capture() noexcept override { return repeats = !native_failure.empty(); }

  void replay(Executable& executable, Stream stream) override {
    hooks_->begin_work(stream);
    static_cast<SyclExecutable&>(executable).submit(queue_of(stream));
  }

  void replay(Executable& executable, Stream stream, Transfers before, Transfers after) override {
    hooks_->begin_work(stream);
    auto& graph = static_cast<SyclExecutable&>(executable);
    if (graph.takes_transfers())
      graph.submit(queue_of(stream), before, after);
    else
      GraphRuntime::replay(executable, stream, before, after);
  }

 private:
  /// On the OpenCL CPU device a memcpy command costs 17 us and another 40 us when host_tasks come before or after it,
  /// while one host_task costs 11 us however many pieces it copies.
  static void transfer_on_cpu(sycl::queue& queue, std::vector<Transfer> work) {
    auto shared = std::make_shared<const std::vector<Transfer>>(std::move(work));
    queue.submit([&](sycl::handler& handler) { handler.host_task([shared] { carry_out(*shared); }); });
  }

  void turn_native_off(const std::string& why) {
    native_ = false;
    sycl_engine::note_refusal(why);
  }

  std::shared_ptr<DeviceHooks> hooks_;
  std::atomic<bool> native_{true};  // until a capture failed under native recording
};

}  // namespace

std::unique_ptr<GraphRuntime> make_sycl_runtime(std::shared_ptr<DeviceHooks> hooks) {
  return std::make_unique<SyclRuntime>(std::move(hooks));
}

}  // namespace xpugraph
