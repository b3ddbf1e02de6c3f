// SPDX-License-Identifier: MIT
#include "runtime/caching_allocator.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace xpugraph {

namespace {

constexpr std::size_t kGrain = 512;              // every block is a multiple of this
constexpr std::size_t kSegmentGrain = 2u << 20;  // and every segment of this
constexpr std::size_t kSmallRequest = 1u << 20;

std::size_t round_up(std::size_t bytes, std::size_t grain) { return (bytes + grain - 1) / grain * grain; }

struct Route {
  const void* allocator;
  Stream stream;
  PoolId pool;
};
/// Innermost last. Per thread, so that what another thread allocates during a capture stays out of its pool.
thread_local std::vector<Route> routes;

}  // namespace

/// A piece of a segment. The pieces of a segment are linked in address order.
struct CachingAllocator::Block {
  Pool* pool;
  Stream stream;
  char* pointer;
  std::size_t size;
  bool small;  ///< its segment is for small requests
  Block* previous = nullptr;
  Block* next = nullptr;
  bool free = false;
  std::vector<Stream> users{};  ///< other streams that use it

  bool is_segment() const { return previous == nullptr && next == nullptr; }
  auto order_key() const { return std::make_tuple(stream.device, stream.handle, small, size, pointer); }
};

struct CachingAllocator::Pool {
  struct BySize {
    bool operator()(const Block* a, const Block* b) const { return a->order_key() < b->order_key(); }
  };

  const PoolId id;
  std::set<Block*, BySize> free{};
  PoolStats stats{};
  bool released = false;
};

CachingAllocator::CachingAllocator(RawMemory raw) : raw_(std::move(raw)) {
  pools_.emplace(0, std::unique_ptr<Pool>(new Pool{0}));
}

CachingAllocator::~CachingAllocator() = default;

void* CachingAllocator::allocate(std::size_t bytes, Stream stream) {
  if (bytes == 0) return nullptr;
  const std::size_t size = round_up(bytes, kGrain);
  std::lock_guard<std::mutex> lock(mutex_);
  retry_deferred();
  Pool& pool = routed_pool(stream);
  Block* block = take_free(pool, stream, size);
  if (block == nullptr) block = new_segment(pool, stream, size);
  if (block->size > size) {
    Block* rest = new Block{&pool, stream, block->pointer + size, block->size - size, block->small, block, block->next};
    if (rest->next != nullptr) rest->next->previous = rest;
    block->next = rest;
    block->size = size;
    rest->free = true;
    pool.free.insert(rest);
  }
  handed_out_.emplace(block->pointer, block);
  for (auto [used, peak] : {std::pair{&pool.stats.used, &pool.stats.peak_used}, {&stats_.used, &stats_.peak_used}}) {
    *used += block->size;
    *peak = std::max(*peak, *used);
  }
  ++stats_.blocks;
  return block->pointer;
}

void CachingAllocator::free(void* pointer) noexcept {
  if (pointer == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  retry_deferred();
  const auto found = handed_out_.find(pointer);
  if (found == handed_out_.end()) return;
  Block* block = found->second;
  handed_out_.erase(found);
  block->pool->stats.used -= block->size;
  stats_.used -= block->size;
  --stats_.blocks;
  if (order_after_users(*block)) {
    make_free(block);
  } else {
    deferred_.push_back(block);
  }
}

void CachingAllocator::record_stream(void* pointer, Stream stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = handed_out_.find(pointer);
  if (found == handed_out_.end() || found->second->stream == stream) return;
  std::vector<Stream>& users = found->second->users;
  if (std::find(users.begin(), users.end(), stream) == users.end()) users.push_back(stream);
}

PoolId CachingAllocator::create_pool() {
  std::lock_guard<std::mutex> lock(mutex_);
  const PoolId id = next_pool_++;
  pools_.emplace(id, std::unique_ptr<Pool>(new Pool{id}));
  return id;
}

void CachingAllocator::release_pool(PoolId pool) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pools_.find(pool);
  if (pool == 0 || found == pools_.end()) return;
  found->second->released = true;
  release_free_segments(*found->second);
}

PoolStats CachingAllocator::pool_stats(PoolId pool) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pools_.find(pool);
  if (found == pools_.end() || found->second->released) throw ConfigError("there is no pool " + std::to_string(pool));
  return found->second->stats;
}

void CachingAllocator::begin_allocate_to_pool(Stream stream, PoolId pool) {
  pool_stats(pool);  // throws for an unknown one
  routes.push_back(Route{this, stream, pool});
}

void CachingAllocator::end_allocate_to_pool(Stream stream, PoolId pool) noexcept {
  for (auto route = routes.rbegin(); route != routes.rend(); ++route) {
    if (route->allocator != this || route->stream != stream || route->pool != pool) continue;
    routes.erase(std::next(route).base());
    return;
  }
}

MemoryStats CachingAllocator::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

void CachingAllocator::reset_peak() {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.peak_used = stats_.used;
}

void CachingAllocator::empty_cache() {
  std::lock_guard<std::mutex> lock(mutex_);
  release_free_segments(*pools_.at(0));
}

void CachingAllocator::set_limit(std::size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  limit_ = bytes;
}

CachingAllocator::Pool& CachingAllocator::routed_pool(Stream stream) {
  for (auto route = routes.rbegin(); route != routes.rend(); ++route) {
    if (route->allocator != this || route->stream != stream) continue;
    const auto found = pools_.find(route->pool);
    if (found != pools_.end() && !found->second->released) return *found->second;
  }
  return *pools_.at(0);
}

/// The default pool lives long, and a small block in a large segment would keep all of it from being given back: small
/// requests have segments of their own there. A private pool is only ever released whole, and must not grow because a
/// later, smaller graph makes smaller requests.
bool CachingAllocator::is_small(const Pool& pool, std::size_t size) { return pool.id == 0 && size <= kSmallRequest; }

/// Best fit: the smallest free block of the stream that holds `size`. A large request may have a small segment's.
CachingAllocator::Block* CachingAllocator::take_free(Pool& pool, Stream stream, std::size_t size) {
  for (const bool small : {is_small(pool, size), true}) {
    Block wanted{&pool, stream, nullptr, size, small};
    const auto found = pool.free.lower_bound(&wanted);
    if (found == pool.free.end() || (*found)->stream != stream || (*found)->small != small) continue;
    Block* block = *found;
    pool.free.erase(found);
    block->free = false;
    return block;
  }
  return nullptr;
}

CachingAllocator::Block* CachingAllocator::new_segment(Pool& pool, Stream stream, std::size_t size) {
  const std::size_t bytes = round_up(size, kSegmentGrain);
  char* pointer = static_cast<char*>(take_from_device(bytes));
  pool.stats.reserved += bytes;
  stats_.reserved += bytes;
  ++stats_.segments;
  return new Block{&pool, stream, pointer, bytes, is_small(pool, size)};
}

void* CachingAllocator::take_from_device(std::size_t bytes) {
  const auto within_limit = [&] { return limit_ == 0 || stats_.reserved + bytes <= limit_; };
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (attempt == 1) {
      ++stats_.retries;
      release_free_segments(*pools_.at(0));
    }
    if (!within_limit()) continue;
    try {
      void* pointer = raw_.allocate(bytes);
      ++stats_.device_allocations;
      return pointer;
    } catch (const OutOfMemoryError&) {
      if (attempt == 1) {
        ++stats_.failures;
        throw;
      }
    }
  }
  ++stats_.failures;
  throw OutOfMemoryError("out of memory: " + std::to_string(bytes) + " bytes asked for, " +
                         std::to_string(stats_.reserved) + " reserved (" + std::to_string(stats_.used) +
                         " in use), limit " + std::to_string(limit_));
}

/// Gives back what is wholly free, and forgets a released pool that holds nothing any more.
void CachingAllocator::release_free_segments(Pool& pool) {
  std::vector<Block*> segments;
  for (Block* block : pool.free) {
    if (block->is_segment()) segments.push_back(block);
  }
  if (!segments.empty()) raw_.drain();
  for (Block* segment : segments) {
    pool.free.erase(segment);
    raw_.release(segment->pointer);
    pool.stats.reserved -= segment->size;
    stats_.reserved -= segment->size;
    --stats_.segments;
    ++stats_.device_frees;
    delete segment;
  }
  if (pool.released && pool.stats.reserved == 0) pools_.erase(pool.id);
}

bool CachingAllocator::order_after_users(Block& block) noexcept {
  try {
    while (!block.users.empty()) {
      raw_.order(block.stream, block.users.back());
      block.users.pop_back();
    }
    return true;
  } catch (const std::exception&) {
    return false;  // one of them records; tried again later
  }
}

/// Merges the block with its free neighbours and makes it available.
void CachingAllocator::make_free(Block* block) {
  Pool& pool = *block->pool;
  const auto absorb = [&](Block* left, Block* right) {
    left->size += right->size;
    left->next = right->next;
    if (right->next != nullptr) right->next->previous = left;
    delete right;
  };
  if (block->next != nullptr && block->next->free) {
    pool.free.erase(block->next);
    absorb(block, block->next);
  }
  if (block->previous != nullptr && block->previous->free) {
    Block* left = block->previous;
    pool.free.erase(left);
    absorb(left, block);
    block = left;
  }
  block->free = true;
  pool.free.insert(block);
  if (pool.released) release_free_segments(pool);
}

void CachingAllocator::retry_deferred() {
  if (deferred_.empty()) return;
  std::vector<Block*> waiting = std::exchange(deferred_, {});
  for (Block* block : waiting) {
    if (order_after_users(*block)) {
      make_free(block);
    } else {
      deferred_.push_back(block);
    }
  }
}

}  // namespace xpugraph
