// SPDX-License-Identifier: MIT
/// @file DeviceHooks: what a GraphRuntime asks of whoever owns a device's streams and its allocator (torch.xpu, torch.cuda,
/// or the sycl torch device). One small implementation per torch device.
/// Owns nothing of the runtime's. Throws Error leaves. Threads: all calls from any thread; "current" is per thread.
#pragma once

#include <functional>

#include "runtime/graph_runtime.h"

namespace xpugraph {

class DeviceHooks {
 public:
  virtual ~DeviceHooks() = default;

  virtual Stream current_stream(int device) = 0;
  /// Makes `stream` the calling thread's current stream.
  virtual void set_current_stream(Stream stream) = 0;
  /// The one stream of `device` on which everything is captured; the same one at every call, until it is renewed.
  virtual Stream capture_stream(int device) = 0;
  /// The driver left the capture stream recording, so that it is of no use: from now on it is another one. Blocks that a
  /// pool has for the old one are not reused on the new. Called between captures.
  virtual void renew_capture_stream(int device) noexcept { (void)device; }
  /// Blocks until `stream` is idle and throws DeviceError for work that failed on it.
  virtual void synchronize(Stream stream) = 0;
  /// Blocks until `stream` is idle and leaves errors of its work pending for synchronize. A stream that records has nothing
  /// to wait for: returns at once. A wait that fails by itself is logged, never thrown.
  virtual void wait_idle(Stream stream) noexcept = 0;

  /// Called before work is submitted to `stream` other than by the device itself.
  virtual void begin_work(Stream stream) { (void)stream; }
  /// Makes later work on `after` wait for `before` by the device's own means; false when a barrier of the queues will do.
  virtual bool order(Stream after, Stream before) {
    (void)after, (void)before;
    return false;
  }

  virtual PoolId create_pool(int device) = 0;
  virtual void release_pool(PoolId pool) noexcept = 0;
  virtual PoolStats pool_stats(PoolId pool) = 0;
  /// Routes the calling thread's allocations on `stream` to `pool`, until end_allocate_to_pool.
  virtual void begin_allocate_to_pool(Stream stream, PoolId pool) = 0;
  virtual void end_allocate_to_pool(Stream stream, PoolId pool) noexcept = 0;

  /// Has `before` and `after` run around what was gathered on `stream`, at every replay of the capture in progress. They
  /// must not throw. False when the device runs no host code in its streams, or nothing was gathered.
  virtual bool enclose_capture(Stream stream, std::function<void()> before, std::function<void()> after) {
    (void)stream, (void)before, (void)after;
    return false;
  }
  /// Called right before recording ends: submit what the device has gathered but not yet submitted to `stream`.
  /// May throw a pending error of the capture (for example an operator that cannot be captured).
  virtual void flush_capture(Stream stream) { (void)stream; }
  /// Called when a capture is dropped: forget what was gathered.
  virtual void discard_capture(Stream stream) noexcept { (void)stream; }
};

}  // namespace xpugraph
