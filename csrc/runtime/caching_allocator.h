// SPDX-License-Identifier: MIT
/// @file CachingAllocator: gives out device memory in blocks and keeps freed blocks for the next request of the same
/// pool and stream. A block freed is reusable at once: streams run in order, so whoever gets it next comes later. Owns
/// the memory it takes from RawMemory until it gives it back (empty_cache, release_pool). Never frees at destruction:
/// work may be in flight. Throws OutOfMemoryError, ConfigError. Threads: any; routing to a pool is per thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/graph_runtime.h"

namespace xpugraph {

/// What the allocator needs of the device.
struct RawMemory {
  std::function<void*(std::size_t)> allocate;  ///< throws OutOfMemoryError
  std::function<void(void*)> release;
  /// Blocks the host until everything submitted so far has run; memory may go back to the device only then.
  std::function<void()> drain;
  /// Makes later work on `after` wait for what `before` holds now. May throw CaptureError while one of them records.
  std::function<void(Stream after, Stream before)> order;
};

struct MemoryStats {
  std::size_t reserved = 0, used = 0, peak_used = 0;
  std::size_t segments = 0;                                                         ///< pieces held from the device
  std::size_t blocks = 0;                                                           ///< blocks handed out now
  std::size_t device_allocations = 0, device_frees = 0, retries = 0, failures = 0;  ///< since the start
};

class CachingAllocator {
 public:
  explicit CachingAllocator(RawMemory raw);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// Memory for `stream`, aligned as RawMemory's. nullptr for 0 bytes.
  void* allocate(std::size_t bytes, Stream stream);
  /// @pre `pointer` came from allocate, or is null.
  void free(void* pointer) noexcept;
  /// `stream` uses the block too: once freed, it is reused only after what `stream` holds then.
  void record_stream(void* pointer, Stream stream);

  PoolId create_pool();
  /// The pool's segments go back to the device as soon as no block of theirs is handed out.
  void release_pool(PoolId pool) noexcept;
  /// Of pool 0, the default, or of a pool that is not released. @throws ConfigError otherwise.
  PoolStats pool_stats(PoolId pool) const;
  /// Routes what the calling thread allocates on `stream` to `pool`. Nests. @throws ConfigError for an unknown pool.
  void begin_allocate_to_pool(Stream stream, PoolId pool);
  void end_allocate_to_pool(Stream stream, PoolId pool) noexcept;

  MemoryStats stats() const;
  void reset_peak();
  /// Gives back what the default pool holds and nobody uses.
  void empty_cache();
  /// Most bytes to take from the device, all pools together; 0 is no limit.
  void set_limit(std::size_t bytes);

 private:
  struct Block;
  struct Pool;

  Pool& routed_pool(Stream stream);
  static bool is_small(const Pool& pool, std::size_t size);
  Block* take_free(Pool& pool, Stream stream, std::size_t size);
  Block* new_segment(Pool& pool, Stream stream, std::size_t size);
  void* take_from_device(std::size_t bytes);
  void release_free_segments(Pool& pool);
  bool order_after_users(Block& block) noexcept;
  void make_free(Block* block);
  void retry_deferred();

  RawMemory raw_;
  mutable std::mutex mutex_;
  std::unordered_map<PoolId, std::unique_ptr<Pool>> pools_;  ///< 0 is the default pool
  std::unordered_map<void*, Block*> handed_out_;
  std::vector<Block*> deferred_;  ///< freed, but a stream that used them is recording and cannot be waited for yet
  PoolId next_pool_ = 1;
  std::size_t limit_ = 0;
  MemoryStats stats_;
};

}  // namespace xpugraph
