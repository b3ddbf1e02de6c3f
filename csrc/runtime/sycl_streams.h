// SPDX-License-Identifier: MIT
/// @file The SYCL CPU device's streams, events and raw memory, as the sycl torch device needs them, without a SYCL
/// type. Work is given as closures; one closure is one host_task of an in-order queue (one node of a graph while
/// recording), or, in gathered mode, consecutive closures recorded into one graph become one node. Owns the queues
/// (created on first use, alive until the process ends). Threads: any thread, except where said. Throws DeviceError. A
/// closure that throws leaves an error that every stream raises once, at its next synchronisation, unless it began its
/// work after the error was reported. Closures that come after a failed one run all the same, as on a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "runtime/graph_runtime.h"

namespace xpugraph::sycl_cpu {

using Closure = std::function<void()>;

/// True when a SYCL CPU device that can record graphs exists. Otherwise `why` says what is missing.
bool available(std::string* why);
/// Name, driver and runtime versions and graph aspects of the CPU device, one "key: value" per line (for `xpugraph
/// env`).
std::string describe();

/// Stream number `id`. 0 is the default stream; others come from new_stream. @throws ConfigError for an unknown id.
Stream stream(int id);
int stream_id(Stream stream);
/// A new in-order queue, or, once there are 32, one of them in turn.
int new_stream();
/// The capture stream's id (always the same). new_stream never gives it out.
int capture_stream_id();

/// Says that work is about to be submitted to `stream`: an idle stream has no part in failures reported before.
void begin_work(Stream stream);
/// Runs `closure` on `stream` after everything submitted before. While recording: records it, does not run it.
void submit(Stream stream, Closure closure);
/// Blocks the calling thread until `stream` is idle, then raises a pending error.
/// @throws CaptureError while `stream` is recording.
void synchronize(Stream stream);
/// Blocks until `stream` is idle (at once while it records) and leaves errors pending.
void wait_idle(Stream stream) noexcept;
/// Blocks until every stream that is not recording is idle. Raises nothing.
void drain() noexcept;
/// Raises an error that nobody was told of yet, for whoever waited for all streams; none of them raises it again.
void raise_pending();
bool idle(Stream stream);
bool recording(Stream stream);

/// Gathered (default) or one node per closure (debug).
void set_gather(bool gather);
bool gather();
/// Has `before` and `after` run around what is gathered on `stream` now, once it is flushed, even where a closure
/// fails. They must not throw. False when nothing is gathered.
bool enclose_gathered(Stream stream, Closure before, Closure after);
/// Records what was gathered on `stream` as one node; forgets it.
void flush_gathered(Stream stream);
void discard_gathered(Stream stream) noexcept;

/// An event marks a point of a stream. Cheap to copy.
class Event {
 public:
  /// Marks the end of what is submitted to `stream` now. @throws CaptureError while `stream` is recording.
  static Event record(Stream stream);
  bool done() const;
  void wait() const;  ///< blocks the host, raises a pending error
  void block(
      Stream stream) const;  ///< later work on `stream` waits for this event; CaptureError if that must be recorded
  /// @throws StateError while either event is pending.
  double elapsed_ms_until(const Event& later) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Device USM, aligned to 64 bytes. Throws OutOfMemoryError.
void* malloc_device(std::size_t bytes);
void free_device(void* pointer) noexcept;

/// `closure` runs once on each worker thread before its first closure: the place to set its number of OpenMP threads.
void on_worker_start(Closure closure);

}  // namespace xpugraph::sycl_cpu
