// SPDX-License-Identifier: MIT
/// @file GraphRuntime: the few calls a device must offer so that graphs can be recorded and replayed on it.
/// Owns: implementations own their executables' device state, nothing else. Throws: the leaves of core/error.h.
/// Threads: every call may come from any thread; begin/end/abort of one capture come from the same thread.
/// Knows nothing of models, tensors or batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace xpugraph {

/// A stream (in-order queue) of one device. `handle` is the runtime's own object (sycl::queue*, cudaStream_t);
/// two Streams are the same stream exactly if both fields are equal.
struct Stream {
  int device = 0;
  void* handle = nullptr;
  bool operator==(const Stream& other) const { return device == other.device && handle == other.handle; }
  bool operator!=(const Stream& other) const { return !(*this == other); }
};

/// One piece of memory to copy, or to zero when `src` is null. `bytes` may be 0 (then nothing happens).
struct Transfer {
  void* dst = nullptr;
  const void* src = nullptr;
  std::size_t bytes = 0;
};

/// Transfers of one submission, in order. Does not own them.
struct Transfers {
  const Transfer* data = nullptr;
  std::size_t count = 0;
};

/// Names a memory pool of the device's allocator. 0 is no pool.
using PoolId = std::uint64_t;

/// Bytes of one pool. `reserved`: taken from the device; `used`: handed out now; `peak_used`: most ever handed out.
struct PoolStats {
  std::size_t reserved = 0;
  std::size_t used = 0;
  std::size_t peak_used = 0;
};

/// A recorded, finalised graph. Nobody destroys one while a replay is in flight (SYCL's waits for it); the pool it was
/// recorded into must outlive it.
class Executable {
 public:
  virtual ~Executable() = default;
  /// Number of nodes that were recorded (before any optimisation by the runtime). Never 0: empty captures throw. 1 where
  /// the device's driver records and does not tell.
  virtual std::size_t nodes() const = 0;
};

class GraphRuntime {
 public:
  virtual ~GraphRuntime() = default;

  /// "sycl", "cuda" or "fake".
  virtual std::string name() const = 0;

  // ---- streams ----------------------------------------------------------------------------------------------------
  /// The calling thread's current stream of `device`.
  virtual Stream current_stream(int device) = 0;
  /// Makes later work on `after` wait for all work submitted to `before` so far. Does not block the host.
  virtual void order(Stream after, Stream before) = 0;
  /// Blocks until `stream` is idle. Throws DeviceError if work on it failed. Never waits for the whole device.
  virtual void synchronize(Stream stream) = 0;
  /// Blocks until `stream` is idle. An error of the device stays pending for whoever synchronises for results.
  virtual void wait_idle(Stream stream) noexcept = 0;

  // ---- memory -----------------------------------------------------------------------------------------------------
  virtual PoolId create_pool(int device) = 0;
  /// Gives the pool's memory back once no tensor lives in it. All its executables must be gone and idle.
  virtual void release_pool(PoolId pool) noexcept = 0;
  virtual PoolStats pool_stats(PoolId pool) = 0;
  /// Performs `count` transfers on `stream`, in order, asynchronously, as few submissions as the device allows.
  /// All memory is device memory of the stream's device and stays alive until the stream has passed this point.
  virtual void transfer(Stream stream, const Transfer* transfers, std::size_t count) = 0;

  // ---- capture and replay -----------------------------------------------------------------------------------------
  /// Makes the device's capture stream the calling thread's current stream, routes the thread's allocations to
  /// `pool` and starts recording. There is one capture stream per device, so that all graphs of a pool share blocks.
  /// Strong guarantee: on a throw, stream and allocations are as before the call.
  /// @throws CaptureError when this thread is capturing already, or the device cannot record.
  virtual Stream begin_capture(int device, PoolId pool) = 0;
  /// Ends the recording, restores the thread's stream and allocation routing (also when it throws), finalises.
  /// @throws CaptureError when nothing was recorded or finalising failed.
  virtual std::unique_ptr<Executable> end_capture() = 0;
  /// Drops the recording in progress and restores as end_capture does. Without a capture in progress: does nothing.
  virtual void abort_capture() noexcept = 0;
  /// To be asked after a capture that failed or was aborted: true when the device has another way to record and the
  /// calling thread's next capture will take it. That one should do the same work; it is never repeated again.
  virtual bool repeat_capture() noexcept { return false; }
  /// Submits the graph to `stream`. The caller orders replays that share memory.
  virtual void replay(Executable& executable, Stream stream) = 0;
  /// The same between two groups of transfers. A device that can do all three in one submission does.
  virtual void replay(Executable& executable, Stream stream, Transfers before, Transfers after) {
    if (before.count != 0) transfer(stream, before.data, before.count);
    replay(executable, stream);
    if (after.count != 0) transfer(stream, after.data, after.count);
  }
};

}  // namespace xpugraph
