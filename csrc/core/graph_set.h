// SPDX-License-Identifier: MIT
/// @file GraphSet: one recorded graph per batch size, all in one shared pool, replayed one after another.
/// Owns the pool and the executables; destroys the executables before the pool. Throws CaptureError, StateError,
/// OutOfMemoryError, ConfigError, and as is whatever the body of a recording or the runtime throws.
/// Not thread-safe: the caller holds one lock from enter() until its last use of the outputs is submitted.
/// Knows nothing of tensors: what a graph reads and writes is the business of the body that records it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/shared_pool.h"
#include "runtime/graph_runtime.h"

namespace xpugraph {

class GraphSet {
 public:
  /// `pool_limit_bytes` 0 is no limit. Touches no device yet.
  /// @throws ConfigError when there is no runtime.
  GraphSet(std::shared_ptr<GraphRuntime> runtime, int device, std::size_t pool_limit_bytes = 0);
  /// As clear().
  ~GraphSet();
  GraphSet(const GraphSet&) = delete;
  GraphSet& operator=(const GraphSet&) = delete;

  // ---- recording --------------------------------------------------------------------------------------------------
  /// Records what `body` submits as the graph of `size`. Recording the largest size first keeps the pool smallest.
  /// On any throw nothing is registered, the capture is aborted (stream and allocations of the thread are as before),
  /// and earlier graphs still replay. The pool keeps what the failed recording made it grow by, unless there is no graph
  /// left: then it is given back, and the next recording gets a fresh one.
  /// @throws CaptureError when called from the body of a recording of this set; changes nothing.
  /// @throws ConfigError when `size` is not in 1..BatchGrid::kMaxBatchSize.
  /// @throws StateError when `size` is recorded already.
  /// @throws OutOfMemoryError when the pool grew above its limit; names size, bytes and limit.
  void record(std::int64_t size, const std::function<void()>& body);
  /// Forgets the graph of `size`, after waiting for the last replay. With the last graph the pool goes too.
  /// @throws StateError when `size` is not recorded, or a recording is in progress.
  void drop(std::int64_t size);
  /// Waits for the last replay (errors of the device are not raised here), destroys the graphs, gives the pool back.
  /// The set may be recorded into again. Does nothing from the body of a recording.
  void clear() noexcept;

  // ---- replay -----------------------------------------------------------------------------------------------------
  /// Makes work submitted to `stream` from now on wait for everything that used this set before, wherever that ran.
  /// Call it before filling the inputs of a replay. `stream` must live until another one is entered or clear() returns.
  /// @throws CaptureError when a recording is in progress.
  void enter(Stream stream);
  /// Submits the graph of `size` to `stream`; enters the stream first when that has not been done.
  /// @throws StateError when `size` is not recorded. @throws CaptureError when a recording is in progress.
  void replay(std::int64_t size, Stream stream);
  /// The same between two groups of transfers, which fill the inputs of this replay and take its outputs.
  void replay(std::int64_t size, Stream stream, Transfers before, Transfers after);

  /// Waits until the last replay is done; errors of the device are not raised here.
  void wait_idle() noexcept;

  // ---- queries ----------------------------------------------------------------------------------------------------
  bool contains(std::int64_t size) const { return find(size) != nullptr; }
  /// Ascending.
  std::vector<std::int64_t> sizes() const;
  /// Number of recorded nodes of the graph of `size`. @throws StateError when `size` is not recorded.
  std::size_t nodes(std::int64_t size) const;
  /// True inside the body of a recording.
  bool recording() const { return recording_; }
  /// Its over_limit() is true after a refused recording whose memory the pool still holds.
  const SharedPool& pool() const { return pool_; }
  /// The stream that was entered last; nothing before the first replay.
  std::optional<Stream> last_stream() const { return last_; }

 private:
  Executable* find(std::int64_t size) const {
    const auto index = static_cast<std::size_t>(size);  // a negative size becomes a huge one
    return index < graphs_.size() ? graphs_[index].get() : nullptr;
  }
  Executable& at(std::int64_t size) const;
  std::unique_ptr<Executable> capture(const std::function<void()>& body);
  void enforce_limit(std::int64_t size, std::size_t reserved, std::size_t growth) const;
  void release_unused_pool() noexcept;

  std::shared_ptr<GraphRuntime> runtime_;
  int device_;
  SharedPool pool_;                                  // before graphs_: members are destroyed in reverse order
  std::vector<std::unique_ptr<Executable>> graphs_;  // indexed by batch size
  std::size_t count_ = 0;
  std::optional<Stream> last_;
  bool recording_ = false;
};

}  // namespace xpugraph
