// SPDX-License-Identifier: MIT
/// @file PaddedInput: the byte layout of the one buffer that every graph reads a prefix of, for one tensor argument, and which
/// of its rows are known to be zero.
/// Does not own the memory it names and never touches it: it says which transfers fill it.
/// Throws InputError and OutOfMemoryError (sizes that overflow). Not thread-safe: the caller locks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/graph_runtime.h"

namespace xpugraph {

class PaddedInput {
 public:
  /// append_fill writes at most this many transfers.
  static constexpr std::size_t kMaxTransfers = 2;

  /// `data` is the start of `capacity` rows of `row_bytes` bytes each, batch dimension first, without gaps. What they hold
  /// is not known yet.
  /// @throws InputError when capacity is below 1, or data is null although there are bytes to hold.
  PaddedInput(void* data, std::size_t row_bytes, std::int64_t capacity);

  /// Before a replay of the graph of `size`: rows 0..rows become those at `src`, and rows..size zero where they are not so
  /// already. Writes to `out` the transfers that do so (none of 0 bytes) and returns the end of what it wrote. They must be
  /// performed, in the order of the calls; otherwise call touch().
  /// @throws InputError unless 0 <= rows <= size <= capacity() and, when there are bytes to copy, src is not null.
  Transfer* append_fill(Transfer* out, std::int64_t size, std::int64_t rows, const void* src);

  /// Rows 0..rows may hold anything from now on: somebody else wrote to them.
  void touch(std::int64_t rows);

  void* data() const { return data_; }
  std::size_t row_bytes() const { return row_bytes_; }
  std::int64_t capacity() const { return capacity_; }
  /// Bytes of the whole buffer.
  std::size_t bytes() const { return row_bytes_ * static_cast<std::size_t>(capacity_); }

 private:
  void* data_;
  std::size_t row_bytes_;
  std::int64_t capacity_;
  // Rows 0..head_ and tail_..end_ may hold anything (head_ <= tail_ <= end_); all others are zero.
  std::int64_t head_;
  std::int64_t tail_;
  std::int64_t end_;
};

}  // namespace xpugraph
