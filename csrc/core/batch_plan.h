// SPDX-License-Identifier: MIT
/// @file PlanTable and BatchPlan: which replays serve a batch.
/// A PlanTable says, for any number of rows, into which recorded size the next of them go: by the plain rule (the smallest
/// size that holds them; chunks of the largest size above it), or by measured cost. A BatchPlan walks it over one batch.
/// PlanTable: a value. BatchPlan: a cursor over a table it does not own; never allocates.
/// Throws ConfigError (cheapest) and InputError (BatchPlan's constructor).
///
///   for (Chunk chunk : BatchPlan(table, rows)) { ... }
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

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

class PlanTable {
 public:
  /// Serves nothing.
  PlanTable() = default;

  /// The plain rule.
  static PlanTable padded(const BatchGrid& grid);

  /// How much cheaper, as a ratio, a cover must be than what it replaces.
  struct Gains {
    double min = 0.0;    ///< than the plain rule
    double exact = 0.0;  ///< than the own replay of a batch of a recorded size
  };
  /// The cheapest cover of every batch by recorded sizes; a replay of grid.sizes()[i] costs costs[i], in any unit. Up to
  /// twice the largest size by dynamic programming: cost(n) = min over sizes s of cost of s + cost(n - s), where no rows
  /// cost nothing; but the plain rule stays where it costs at most 1 / (1 - gain) of that. So no batch of up to twice the
  /// largest size costs more than by the plain rule. Above, chunks of the size that is cheapest for each row go first.
  /// @throws ConfigError unless there is one positive, finite cost for each size, and the gains are in [0, 1).
  static PlanTable cheapest(const BatchGrid& grid, const std::vector<double>& costs, Gains gains);

  /// From now on a batch of exactly `size` rows, at most the largest size, is one replay of that size.
  void serve_exactly(std::int64_t size) { next_[static_cast<std::size_t>(size)] = static_cast<std::int32_t>(size); }

  /// The recorded size that the next rows go into when `left` >= 1 rows are left; 0 of a table that serves nothing.
  std::int64_t next(std::int64_t left) const {
    return left < static_cast<std::int64_t>(next_.size()) ? next_[static_cast<std::size_t>(left)] : beyond_;
  }
  bool empty() const { return beyond_ == 0; }

 private:
  std::vector<std::int32_t> next_;  // by rows left; the entry of 0 is not used
  std::int64_t beyond_ = 0;         // for more rows than that
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

    Iterator(const PlanTable& table, std::int64_t batch, std::int64_t offset)
        : table_(&table), batch_(batch), offset_(offset) {}
    Chunk operator*() const {
      const std::int64_t left = batch_ - offset_, size = table_->next(left);
      return {size, offset_, left < size ? left : size};
    }
    Iterator& operator++() {
      offset_ += (**this).rows;
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
    const PlanTable* table_;
    std::int64_t batch_;
    std::int64_t offset_;
  };

  /// A batch of 0 rows is no chunk. @throws InputError when `batch` is negative, or above 0 and the table is empty.
  BatchPlan(const PlanTable& table, std::int64_t batch);

  Iterator begin() const { return Iterator(*table_, batch_, 0); }
  Iterator end() const { return Iterator(*table_, batch_, batch_); }
  /// True when one replay serves the batch.
  bool single() const { return batch_ > 0 && table_->next(batch_) >= batch_; }
  std::int64_t batch() const { return batch_; }

 private:
  const PlanTable* table_;
  std::int64_t batch_;
};

}  // namespace xpugraph
