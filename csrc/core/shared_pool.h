// SPDX-License-Identifier: MIT
/// @file SharedPool: the memory pool that all graphs of one backend and device draw from, its limit and byte accounts.
/// Owns one pool of the runtime's, created at the first acquire() and given back by release() or the destructor.
/// Throws ConfigError and what GraphRuntime::create_pool and pool_stats throw. Not thread-safe: the caller locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "runtime/graph_runtime.h"

namespace xpugraph {

class SharedPool {
 public:
  /// `limit_bytes` 0 is no limit. No pool is created yet.
  /// @throws ConfigError when there is no runtime.
  SharedPool(std::shared_ptr<GraphRuntime> runtime, int device, std::size_t limit_bytes = 0);
  ~SharedPool() { release(); }
  /// The moved-from pool holds none; it may only be destroyed or assigned to.
  SharedPool(SharedPool&& other) noexcept;
  SharedPool& operator=(SharedPool&& other) noexcept;

  /// The pool, created now if there is none.
  PoolId acquire();
  /// The pool, or 0 when there is none.
  PoolId id() const { return id_; }
  /// Gives the pool back and forgets the accounts; the next acquire() creates a fresh one.
  /// Executables recorded into it must be gone and idle.
  void release() noexcept;

  /// All zero while there is no pool.
  PoolStats stats() const;
  std::size_t limit_bytes() const { return limit_bytes_; }
  /// True when there is a limit and more is reserved than it allows.
  bool over_limit() const { return limit_bytes_ != 0 && stats().reserved > limit_bytes_; }

  // ---- accounts: what recording each batch size added to the reserved bytes ---------------------------------------
  /// Notes that recording `size` made the pool grow by `bytes`; a second note for the same size adds up.
  void note_growth(std::int64_t size, std::size_t bytes);
  /// Bytes that recording `size` added; 0 for a size that was never noted. Stays when a graph is dropped, since the
  /// memory stays in the pool.
  std::size_t bytes_of(std::int64_t size) const;
  const std::map<std::int64_t, std::size_t>& growth() const { return growth_; }

 private:
  std::shared_ptr<GraphRuntime> runtime_;
  int device_;
  std::size_t limit_bytes_;
  PoolId id_ = 0;
  std::map<std::int64_t, std::size_t> growth_;
};

}  // namespace xpugraph
