// SPDX-License-Identifier: MIT
/// @file Slot and Result: how rows get from a caller's tensor into a padded buffer, and from a graph's output to the caller.
/// A Slot owns its buffer. A Result owns the output only where the graph's pool does not.
/// Rows that lie one after another in memory on both sides become Transfers, submitted together by the caller; anything else
/// (another memory format, a batch dimension that is not outermost) is copied by torch on the current stream.
/// Throws what torch throws. Not thread-safe: GraphedModule's lock covers them.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/batch_plan.h"
#include "core/padded_input.h"
#include "runtime/graph_runtime.h"
#include "torch/tensor_spec.h"

namespace xpugraph {

/// True when the items of a tensor with these strides lie one after another without gaps, batch dimension outermost.
bool items_are_adjacent(const TensorSpec& spec, at::IntArrayRef sizes, at::IntArrayRef strides);

class Slot {
 public:
  Slot(TensorSpec spec, at::Device device, std::int64_t capacity);

  const TensorSpec& spec() const { return spec_; }
  /// What the graph of `size` reads. Whoever writes to it calls touch().
  at::Tensor view(std::int64_t size) const;
  /// Puts the chunk's rows of `source` in, and zeroes what is not zero of the rows up to the chunk's size.
  void fill(const at::Tensor& source, const Chunk& chunk, std::vector<Transfer>& transfers);
  /// The first `size` items may hold anything from now on.
  void touch(std::int64_t size);
  /// Puts the chunk's rows back into `target` (for arguments that the forward writes to).
  void write_back(at::Tensor target, const Chunk& chunk) const;
  std::size_t bytes() const { return buffer_.nbytes(); }

 private:
  bool same_layout(const at::Tensor& source) const;

  TensorSpec spec_;
  at::Tensor buffer_;                  ///< one dimension, holds the largest size
  std::vector<std::int64_t> strides_;  ///< of the dense view of the largest size
  std::optional<PaddedInput> rows_;    ///< set when rows can be transferred; one row = one item
};

class Result {
 public:
  /// `output` is what the graph writes. It is kept only when `keep`; otherwise its memory may be used again by the next
  /// capture into the same pool, which `pool` keeps alive: replays of one pool run one after another and are copied out in
  /// between.
  Result(const TensorSpec& spec, const at::Tensor& output, bool keep, std::shared_ptr<void> pool);

  /// A new tensor for `batch_size` items. The device is the thread's current one.
  at::Tensor allocate(std::int64_t batch_size) const;
  /// Transfers that put the chunk's rows into `target`, at the chunk's offset; none where rows cannot be transferred.
  void transfer_to(at::Tensor& target, const Chunk& chunk, std::vector<Transfer>& transfers) const;
  /// Puts them there, after the replay, exactly where transfer_to does not.
  void copy_to(at::Tensor& target, const Chunk& chunk) const;
  /// The first `items` items, in the graph's own memory.
  at::Tensor lend(std::int64_t items) const;

 private:
  bool transferable(const at::Tensor& target) const;

  const TensorSpec* spec_;
  at::Tensor alias_;            ///< over the output's memory; keeps the pool, not the block
  at::Tensor kept_;             ///< the output itself, or nothing
  std::size_t item_bytes_ = 0;  ///< 0: rows are not adjacent
  bool dense_ = false;
  c10::Allocator* allocator_;
  c10::DispatchKeySet keys_;
};

}  // namespace xpugraph
