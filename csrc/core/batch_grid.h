// SPDX-License-Identifier: MIT
/// @file BatchGrid: the batch sizes that are recorded as graphs, and the lookup from a batch to its size.
/// A value: owns its sizes and table, immutable after construction, any thread may read it.
/// Throws ConfigError from the factories and InputError from lookups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace xpugraph {

class BatchGrid {
 public:
  /// No grid names a batch size above this.
  static constexpr std::int64_t kMaxBatchSize = std::int64_t{1} << 20;

  /// A grid without sizes. It holds no batch.
  BatchGrid() = default;

  /// 1, 2, 4 and every multiple of 8 up to `limit` = min(largest_seen, cap), and `limit` itself when it is none of
  /// these, so that the largest batch seen is never split. 35 sizes for a limit of 256.
  /// @throws ConfigError when either is below 1, or the limit is above kMaxBatchSize.
  static BatchGrid regular(std::int64_t largest_seen, std::int64_t cap);

  /// Exactly these sizes, sorted, each once.
  /// @throws ConfigError when there is none, or one is below 1 or above kMaxBatchSize.
  static BatchGrid from_sizes(std::vector<std::int64_t> sizes);

  /// Ascending, without repeats.
  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  bool empty() const { return sizes_.empty(); }
  /// 0 for the empty grid.
  std::int64_t largest() const { return sizes_.empty() ? 0 : sizes_.back(); }
  bool contains(std::int64_t size) const;

  /// The smallest recorded size that holds `batch` rows: one array access.
  /// @throws InputError when `batch` is not in 1..largest().
  std::int64_t ceil(std::int64_t batch) const;

  /// The same grid lacking `size`; possibly empty. A size that is not on the grid changes nothing.
  BatchGrid without(std::int64_t size) const;

 private:
  /// `sizes` is sorted, unique and in range; may be empty.
  explicit BatchGrid(std::vector<std::int64_t> sizes);

  std::vector<std::int64_t> sizes_;
  std::vector<std::int32_t> ceil_;  // ceil_[b] for b in 0..largest(); the entry of 0 is not used
};

}  // namespace xpugraph
