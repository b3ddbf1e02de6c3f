// SPDX-License-Identifier: MIT
#include "runtime/cuda_runtime.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"

namespace xpugraph {

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

cudaStream_t stream_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

/// Throws for `error`, which is thereby dealt with: it is not left for the next call to find.
void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  const std::string text = std::string(what) + ": " + cudaGetErrorString(error);
  if (error == cudaErrorMemoryAllocation) throw OutOfMemoryError(text);
  throw DeviceError(text);
}

bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_of(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void refuse_capturing(Stream stream) {
  if (is_capturing(stream))
    throw CaptureError("the current stream is recording a CUDA graph; graphs are replayed on streams that are not");
}

// ---- what changed between CUDA 12 and 13, and between versions of torch -------------------------------------------------

cudaError_t capture_id(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id) {
#if CUDART_VERSION >= 13000
  return cudaStreamGetCaptureInfo(stream, status, id, nullptr, nullptr, nullptr, nullptr);
#else
  return cudaStreamGetCaptureInfo_v2(stream, status, id, nullptr, nullptr, nullptr);
#endif
}

cudaError_t add_dependency(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
  return cudaGraphAddDependencies(graph, &from, &to, nullptr, 1);
#else
  return cudaGraphAddDependencies(graph, &from, &to, 1);
#endif
}

cudaError_t dependent_nodes(cudaGraphNode_t node, std::size_t* count) {
#if CUDART_VERSION >= 13000
  return cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, count);
#else
  return cudaGraphNodeGetDependentNodes(node, nullptr, count);
#endif
}

/// From torch 2.13 on the allocator wants to be told of captures apart from pools.
template <typename Allocator>
auto mark_capture(Allocator* of, int device, bool begins, int) -> decltype(of->markCaptureBegin(device)) {
  begins ? of->markCaptureBegin(device) : of->markCaptureEnd(device);
}
template <typename Allocator>
void mark_capture(Allocator*, int, bool, long) {}

// ---- a capture in progress ----------------------------------------------------------------------------------------------

/// The one stream of `device` on which everything is captured. It is nobody else's: torch hands out the streams of its own
/// pools again and again, and work of a user's stream must not end up in a graph.
c10::cuda::CUDAStream capture_stream(int device) {
  static std::mutex& mutex = *new std::mutex();
  static auto& streams = *new std::map<int, cudaStream_t>();
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [entry, is_new] = streams.emplace(device, nullptr);
  if (is_new) {
    const cudaError_t error = cudaStreamCreateWithFlags(&entry->second, cudaStreamNonBlocking);
    if (error != cudaSuccess) streams.erase(entry);
    check(error, "cudaStreamCreateWithFlags");
  }
  return c10::cuda::getStreamFromExternal(entry->second, static_cast<c10::DeviceIndex>(device));
}

/// Makes the thread's cuBLAS handles, which is not possible in a capture.
void make_cublas_handles(int device) {
  thread_local std::vector<int> done;
  if (std::find(done.begin(), done.end(), device) != done.end()) return;
  const c10::InferenceMode inference;
  const auto options = at::TensorOptions().device(at::kCUDA, static_cast<c10::DeviceIndex>(device));
  const at::Tensor a = at::zeros({16, 16}, options.dtype(at::kFloat));
  at::mm(a, a);
  done.push_back(device);
}

/// torch keeps a workspace of cuBLAS for each handle and stream, until whoever calls clearCublasWorkspaces(), as its own
/// cudagraph trees do. A graph writes to the one that it was captured with, so that must be memory of the graph's own
/// pool: no other graph's, which may run at the same time, and nobody's to free. Hence the capture stream has none when a
/// capture begins, torch makes one in the capture, and it is given back to the pool at the end.
void drop_cublas_workspaces(cudaStream_t stream) {
  for (auto* const workspaces :
       {&at::cuda::cublas_handle_stream_to_workspace(), &at::cuda::cublaslt_handle_stream_to_workspace()}) {
    std::decay_t<decltype(workspaces->map)> dropped;  // freed when the lock is not held any more
    const std::lock_guard<std::shared_mutex> lock(workspaces->mutex);
    for (auto entry = workspaces->map.begin(); entry != workspaces->map.end();) {
      const auto next = std::next(entry);
      if (std::get<1>(entry->first) == stream) dropped.insert(workspaces->map.extract(entry));
      entry = next;
    }
  }
}

/// The device, and its capture stream, are the thread's current ones for as long as this lives.
class StreamScope {
 public:
  explicit StreamScope(int device) : guard_(capture_stream(device)), stream{device, capture_stream(device).stream()} {
    make_cublas_handles(device);
    drop_cublas_workspaces(stream_of(stream));
  }
  ~StreamScope() { drop_cublas_workspaces(stream_of(stream)); }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  c10::cuda::CUDAStreamGuard guard_;

 public:
  const Stream stream;
};

/// Records the stream's work, and takes the memory of its allocations from `pool`, until finish() or destruction.
class GraphScope {
 public:
  GraphScope(Stream stream, c10::MempoolId_t pool) : stream_(stream), pool_(pool) {
    const auto shared = id_;
    const cudaStream_t ours = stream_of(stream);
    // A stream that the forward forks off belongs to the capture too.
    allocator::beginAllocateToPool(device(), pool, [shared, ours](cudaStream_t other) {
      if (other == ours) return true;
      auto status = cudaStreamCaptureStatusNone;
      unsigned long long id = 0;
      if (capture_id(other, &status, &id) != cudaSuccess) {
        cudaGetLastError();
        return false;
      }
      return status == cudaStreamCaptureStatusActive && id == shared->load();
    });
    mark_capture(allocator::get(), device(), true, 0);
    const cudaError_t error = cudaStreamBeginCapture(ours, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) {
      stop_allocating();
      allocator::releasePool(device(), pool_);
      check(error, "cudaStreamBeginCapture");
    }
    auto status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    if (capture_id(ours, &status, &id) == cudaSuccess) id_->store(id);
  }
  ~GraphScope() {
    if (!recording_) return;
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream_of(stream_), &graph) != cudaSuccess) cudaGetLastError();
    if (graph != nullptr) cudaGraphDestroy(graph);
    stop_allocating();
    allocator::releasePool(device(), pool_);
  }
  GraphScope(const GraphScope&) = delete;
  GraphScope& operator=(const GraphScope&) = delete;

  /// What was recorded; it is the caller's, with one use of the pool.
  cudaGraph_t finish() {
    cudaGraph_t graph = nullptr;
    recording_ = false;
    const cudaError_t error = cudaStreamEndCapture(stream_of(stream_), &graph);
    stop_allocating();
    if (error != cudaSuccess || graph == nullptr) {
      allocator::releasePool(device(), pool_);
      cudaGetLastError();
      throw CaptureError(std::string("the recording ended with an error: ") + cudaGetErrorString(error));
    }
    return graph;
  }

 private:
  c10::DeviceIndex device() const { return static_cast<c10::DeviceIndex>(stream_.device); }
  void stop_allocating() {
    mark_capture(allocator::get(), device(), false, 0);
    allocator::endAllocateToPool(device(), pool_);
  }

  const Stream stream_;
  const c10::MempoolId_t pool_;
  const std::shared_ptr<std::atomic<unsigned long long>> id_ = std::make_shared<std::atomic<unsigned long long>>(0);
  bool recording_ = true;
};

std::mutex& capture_mutex() {
  static std::mutex& mutex = *new std::mutex();
  return mutex;
}

/// The members are undone in reverse order, whatever fails and wherever it fails.
struct Capture {
  Capture(int device, c10::MempoolId_t pool)
      : lock(capture_mutex()), pool(pool), stream(device), graph(stream.stream, pool) {}

  std::unique_lock<std::mutex> lock;
  const c10::MempoolId_t pool;
  StreamScope stream;
  GraphScope graph;
};

/// One capture per thread. A thread that exits while it captures drops the capture.
thread_local std::unique_ptr<Capture> current_capture;

// ---- what was recorded --------------------------------------------------------------------------------------------------

/// An instantiated graph. `graph` is owned too.
class Instance {
 public:
  explicit Instance(cudaGraph_t graph) : graph_(graph) {}
  ~Instance() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    cudaGraphDestroy(graph_);
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  void instantiate() { check(cudaGraphInstantiate(&exec_, graph_, 0), "cudaGraphInstantiate"); }
  void launch(Stream stream) { check(cudaGraphLaunch(exec_, stream_of(stream)), "cudaGraphLaunch"); }

  cudaGraph_t graph() const { return graph_; }
  cudaGraphExec_t exec() const { return exec_; }
  std::vector<cudaGraphNode_t> nodes() const {
    std::size_t count = 0;
    check(cudaGraphGetNodes(graph_, nullptr, &count), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> nodes(count);
    if (count != 0) check(cudaGraphGetNodes(graph_, nodes.data(), &count), "cudaGraphGetNodes");
    return nodes;
  }

 private:
  cudaGraph_t graph_;
  cudaGraphExec_t exec_ = nullptr;
};

/// A graph with copies before and after what was recorded, as nodes whose addresses and lengths are set for each replay:
/// one launch instead of a launch between separate copies.
class CopyingInstance {
 public:
  CopyingInstance(const Instance& recorded, const std::vector<Transfer>& before, const std::vector<Transfer>& after)
      : before_(before.size()), instance_(clone(recorded)) {
    const std::vector<cudaGraphNode_t> nodes = instance_.nodes();
    std::vector<cudaGraphNode_t> roots(nodes.size());
    std::size_t count = roots.size();
    check(cudaGraphGetRootNodes(instance_.graph(), roots.data(), &count), "cudaGraphGetRootNodes");
    roots.resize(count);
    std::vector<cudaGraphNode_t> leaves;
    for (const cudaGraphNode_t node : nodes) {
      std::size_t dependents = 0;
      check(dependent_nodes(node, &dependents), "cudaGraphNodeGetDependentNodes");
      if (dependents == 0) leaves.push_back(node);
    }
    for (const Transfer& copy : before) {
      const cudaGraphNode_t node = add(copy, {});
      for (const cudaGraphNode_t root : roots)
        check(add_dependency(instance_.graph(), node, root), "cudaGraphAddDependencies");
    }
    for (const Transfer& copy : after) add(copy, leaves);
    instance_.instantiate();
  }

  /// Sets every copy. False when the device does not take one of the addresses, or the copies are not as many as before.
  bool set(const std::vector<Transfer>& before, const std::vector<Transfer>& after) {
    if (before.size() != before_ || before.size() + after.size() != copies_.size()) return false;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      Copy& copy = copies_[i];
      const Transfer& now = i < before_ ? before[i] : after[i - before_];
      if (now.dst == copy.now.dst && now.src == copy.now.src && now.bytes == copy.now.bytes) continue;
      if (cudaGraphExecMemcpyNodeSetParams1D(instance_.exec(), copy.node, now.dst, now.src, now.bytes,
                                             cudaMemcpyDeviceToDevice) != cudaSuccess) {
        cudaGetLastError();
        return false;
      }
      copy.now = now;
    }
    return true;
  }
  void launch(Stream stream) { instance_.launch(stream); }

 private:
  struct Copy {
    cudaGraphNode_t node;
    Transfer now;
  };
  static cudaGraph_t clone(const Instance& recorded) {
    cudaGraph_t graph = nullptr;
    check(cudaGraphClone(&graph, recorded.graph()), "cudaGraphClone");
    return graph;
  }
  cudaGraphNode_t add(const Transfer& copy, const std::vector<cudaGraphNode_t>& dependencies) {
    cudaGraphNode_t node = nullptr;
    check(cudaGraphAddMemcpyNode1D(&node, instance_.graph(), dependencies.data(), dependencies.size(), copy.dst,
                                   copy.src, copy.bytes, cudaMemcpyDeviceToDevice),
          "cudaGraphAddMemcpyNode1D");
    copies_.push_back({node, copy});
    return node;
  }

  const std::size_t before_;
  std::vector<Copy> copies_;
  Instance instance_;
};

class CudaExecutable final : public Executable {
 public:
  /// Takes the graph and one use of the pool.
  CudaExecutable(cudaGraph_t graph, int device, c10::MempoolId_t pool)
      : device_(static_cast<c10::DeviceIndex>(device)), pool_(pool), recorded_(graph) {}
  ~CudaExecutable() override {
    copying_.reset();
    allocator::releasePool(device_, pool_);
  }

  void finish() {
    nodes_ = recorded_.nodes().size();
    if (nodes_ == 0) throw CaptureError("nothing was recorded: no work was submitted to the capture stream");
    recorded_.instantiate();
  }
  std::size_t nodes() const override { return nodes_; }
  void launch(Stream stream) { recorded_.launch(stream); }

  /// The graph that copies as well, set to these copies; null when it cannot.
  CopyingInstance* copying(const std::vector<Transfer>& before, const std::vector<Transfer>& after) {
    if (copying_ == nullptr) copying_ = std::make_unique<CopyingInstance>(recorded_, before, after);
    return copying_->set(before, after) ? copying_.get() : nullptr;
  }

 private:
  const c10::DeviceIndex device_;
  const c10::MempoolId_t pool_;
  std::size_t nodes_ = 0;
  Instance recorded_;
  std::unique_ptr<CopyingInstance> copying_;
};

// ---- the runtime --------------------------------------------------------------------------------------------------------

class CudaRuntime final : public GraphRuntime {
 public:
  std::string name() const override { return "cuda"; }

  Stream current_stream(int device) override {
    return {device, c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream()};
  }

  void order(Stream after, Stream before) override {
    if (after == before) return;
    if (is_capturing(after) || is_capturing(before))
      throw CaptureError("streams cannot be ordered while one of them is recording a graph");
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(before.device));
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    cudaError_t error = cudaEventRecord(event, stream_of(before));
    if (error == cudaSuccess) error = cudaStreamWaitEvent(stream_of(after), event, 0);
    cudaEventDestroy(event);  // what waits for it still does
    check(error, "cudaStreamWaitEvent");
  }

  void synchronize(Stream stream) override { check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize"); }
  void wait_idle(Stream stream) noexcept override { (void)cudaStreamSynchronize(stream_of(stream)); }

  PoolId create_pool(int) override {
    // torch numbers its own graphs' pools {0, n} from 1 on, and the user's {n, 0}.
    static std::atomic<PoolId> next{PoolId{1} << 40};
    const PoolId pool = next++;
    const std::lock_guard<std::mutex> lock(mutex_);
    peak_used_[pool] = 0;
    return pool;
  }
  /// Every graph has one use of the pool, so that the last one gave it back to torch's allocator.
  void release_pool(PoolId pool) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    peak_used_.erase(pool);
  }
  PoolStats pool_stats(PoolId pool) override {
    PoolStats stats;
    for (const allocator::SegmentInfo& segment : allocator::snapshot(mempool(pool)).segments) {
      stats.reserved += segment.total_size;
      stats.used += segment.allocated_size;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t& peak = peak_used_[pool];
    stats.peak_used = peak = std::max(peak, stats.used);
    return stats;
  }

  void transfer(Stream stream, const Transfer* transfers, std::size_t count) override {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(stream.device));
    for (const Transfer* t = transfers; t != transfers + count; ++t) {
      if (t->bytes == 0) continue;
      if (t->src == nullptr)
        check(cudaMemsetAsync(t->dst, 0, t->bytes, stream_of(stream)), "cudaMemsetAsync");
      else
        check(cudaMemcpyAsync(t->dst, t->src, t->bytes, cudaMemcpyDeviceToDevice, stream_of(stream)),
              "cudaMemcpyAsync");
    }
  }

  Stream begin_capture(int device, PoolId pool) override {
    if (current_capture) throw CaptureError("this thread is capturing already; captures do not nest");
    try {
      current_capture = std::make_unique<Capture>(device, mempool(pool));
    } catch (const DeviceError& error) {
      throw CaptureError(std::string("the device cannot record a graph: ") + error.what());
    }
    return current_capture->stream.stream;
  }

  std::unique_ptr<Executable> end_capture() override {
    if (!current_capture) throw CaptureError("this thread is not capturing");
    const std::unique_ptr<Capture> capture = std::move(current_capture);  // restores at the end of this scope
    auto executable =
        std::make_unique<CudaExecutable>(capture->graph.finish(), capture->stream.stream.device, capture->pool);
    try {
      executable->finish();
    } catch (const DeviceError& error) {
      throw CaptureError(std::string("the recorded graph could not be finished: ") + error.what());
    }
    return executable;
  }

  void abort_capture() noexcept override { current_capture.reset(); }

  void replay(Executable& executable, Stream stream) override {
    refuse_capturing(stream);
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(stream.device));
    static_cast<CudaExecutable&>(executable).launch(stream);
  }

  void replay(Executable& executable, Stream stream, Transfers before, Transfers after) override {
    refuse_capturing(stream);
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(stream.device));
    auto& graph = static_cast<CudaExecutable&>(executable);
    thread_local std::vector<Transfer> first, last;
    first.clear(), last.clear();
    for (const Transfer* t = before.data; t != before.data + before.count; ++t) {
      if (t->bytes == 0) continue;
      if (t->src != nullptr)
        first.push_back(*t);
      else
        transfer(stream, t, 1);  // only where a batch is smaller than the one before it
    }
    for (const Transfer* t = after.data; t != after.data + after.count; ++t)
      if (t->bytes != 0) last.push_back(*t);
    if (first.empty() && last.empty()) {
      graph.launch(stream);
    } else if (CopyingInstance* copying = graph.copying(first, last)) {
      copying->launch(stream);
    } else {
      transfer(stream, first.data(), first.size());
      graph.launch(stream);
      transfer(stream, last.data(), last.size());
    }
  }

 private:
  static c10::MempoolId_t mempool(PoolId pool) { return {0, pool}; }

  std::mutex mutex_;
  std::map<PoolId, std::size_t> peak_used_;  // as far as pool_stats() saw
};

}  // namespace

std::unique_ptr<GraphRuntime> make_cuda_runtime() { return std::make_unique<CudaRuntime>(); }

}  // namespace xpugraph
