// SPDX-License-Identifier: MIT
#include "core/batch_grid.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "core/error.h"

namespace xpugraph {

BatchGrid::BatchGrid(std::vector<std::int64_t> sizes) : sizes_(std::move(sizes)) {
  if (sizes_.empty()) return;
  ceil_.reserve(static_cast<std::size_t>(largest()) + 1);
  ceil_.push_back(0);
  for (std::int64_t size : sizes_) ceil_.resize(static_cast<std::size_t>(size) + 1, static_cast<std::int32_t>(size));
}

BatchGrid BatchGrid::regular(std::int64_t largest_seen, std::int64_t cap) {
  if (largest_seen < 1) {
    throw ConfigError("the largest batch seen is " + std::to_string(largest_seen) + ", it must be at least 1");
  }
  if (cap < 1) throw ConfigError("max_recorded_batch_size is " + std::to_string(cap) + ", it must be at least 1");
  const std::int64_t limit = std::min(largest_seen, cap);
  if (limit > kMaxBatchSize) {
    throw ConfigError("max_recorded_batch_size is " + std::to_string(cap) + " and the largest batch seen is " +
                      std::to_string(largest_seen) + ", one of them must be at most " + std::to_string(kMaxBatchSize));
  }
  std::vector<std::int64_t> sizes;
  for (std::int64_t size : {1, 2, 4}) {
    if (size <= limit) sizes.push_back(size);
  }
  for (std::int64_t size = 8; size <= limit; size += 8) sizes.push_back(size);
  if (sizes.back() != limit) sizes.push_back(limit);
  return BatchGrid(std::move(sizes));
}

BatchGrid BatchGrid::from_sizes(std::vector<std::int64_t> sizes) {
  if (sizes.empty()) throw ConfigError("batch_sizes is empty, it must name at least one batch size");
  for (std::int64_t size : sizes) {
    if (size < 1 || size > kMaxBatchSize) {
      throw ConfigError("batch_sizes holds " + std::to_string(size) + ", each must be in 1.." +
                        std::to_string(kMaxBatchSize));
    }
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return BatchGrid(std::move(sizes));
}

bool BatchGrid::contains(std::int64_t size) const {
  return size >= 1 && size <= largest() && ceil_[static_cast<std::size_t>(size)] == size;
}

std::int64_t BatchGrid::ceil(std::int64_t batch) const {
  if (batch < 1 || batch > largest()) {
    throw InputError("a batch of " + std::to_string(batch) + " rows fits no recorded batch size (1.." +
                     std::to_string(largest()) + ")");
  }
  return ceil_[static_cast<std::size_t>(batch)];
}

BatchGrid BatchGrid::without(std::int64_t size) const {
  std::vector<std::int64_t> kept;
  std::copy_if(sizes_.begin(), sizes_.end(), std::back_inserter(kept), [size](std::int64_t s) { return s != size; });
  return BatchGrid(std::move(kept));
}

}  // namespace xpugraph
