// SPDX-License-Identifier: MIT
/// @file BatchPlan: which replays serve a batch. One replay of the smallest recorded size that holds it; a batch above
/// the largest size is chunks of the largest size, then the remainder by the same rule.
/// A cursor over a grid it does not own (the grid must outlive it); never allocates. Throws InputError from the
/// constructor only. Any thread.
///
///   for (Chunk chunk : BatchPlan(grid, rows)) { ... }
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "core/batch_grid.h"

namespace xpugraph {

/// One replay: rows offset..offset + rows of the batch go into the graph of `size` (rows <= size).
struct Chunk {
  std::int64_t size = 0;
  std::int64_t offset = 0;
  std::int64_t rows = 0;
  bool operator==(const Chunk& other) const {
    return size == other.size && offset == other.offset && rows == other.rows;
  }
};

class BatchPlan {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Chunk;
    using difference_type = std::ptrdiff_t;
    using pointer = const Chunk*;
    using reference = Chunk;

    Iterator(const BatchGrid& grid, std::int64_t batch, std::int64_t offset)
        : grid_(&grid), batch_(batch), offset_(offset) {}
    Chunk operator*() const {
      const std::int64_t rows = rows_here();
      return {grid_->ceil(rows), offset_, rows};
    }
    Iterator& operator++() {
      offset_ += rows_here();
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& other) const { return offset_ == other.offset_; }
    bool operator!=(const Iterator& other) const { return offset_ != other.offset_; }

   private:
    std::int64_t rows_here() const {
      const std::int64_t left = batch_ - offset_;
      return left < grid_->largest() ? left : grid_->largest();
    }
    const BatchGrid* grid_;
    std::int64_t batch_;
    std::int64_t offset_;
  };

  /// A batch of 0 rows is no chunk. @throws InputError when `batch` is negative, or above 0 and the grid is empty.
  BatchPlan(const BatchGrid& grid, std::int64_t batch);

  Iterator begin() const { return Iterator(*grid_, batch_, 0); }
  Iterator end() const { return Iterator(*grid_, batch_, batch_); }
  /// The number of replays.
  std::int64_t chunks() const { return batch_ == 0 ? 0 : (batch_ - 1) / grid_->largest() + 1; }
  std::int64_t batch() const { return batch_; }

 private:
  const BatchGrid* grid_;
  std::int64_t batch_;
};

}  // namespace xpugraph
