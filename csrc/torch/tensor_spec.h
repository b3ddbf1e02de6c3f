// SPDX-License-Identifier: MIT
/// @file TensorSpec: what one tensor of a call, or of a result, looks like for any batch size.
/// A value; any thread.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

namespace xpugraph {

struct TensorSpec {
  std::string name;                   ///< as a user writes it: x, x['mask'][0], output[1]
  at::ScalarType dtype{};             ///< never cast: another dtype is a mismatch
  std::vector<std::int64_t> shape;    ///< of the largest batch
  std::vector<std::int64_t> strides;  ///< of the largest batch; tell the memory format
  std::int64_t batch_dim = -1;        ///< -1: does not follow the batch
  std::int64_t rows_per_item = 1;     ///< length of the batch dimension = rows_per_item × batch size
  bool written = false;               ///< an argument that the forward writes to in place

  bool batched() const { return batch_dim >= 0; }
  /// The shape for `batch_size`.
  std::vector<std::int64_t> shape_for(std::int64_t batch_size) const {
    std::vector<std::int64_t> sizes = shape;
    if (batched()) sizes[batch_dim] = rows_per_item * batch_size;
    return sizes;
  }
};

/// "[8, 256]".
std::string list_of(at::IntArrayRef sizes);

/// "[batch, 256]" for a batched tensor, "[8, 256]" otherwise.
std::string describe_shape(const TensorSpec& spec);

}  // namespace xpugraph
