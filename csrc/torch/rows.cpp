// SPDX-License-Identifier: MIT
#include "torch/rows.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>

namespace xpugraph {
namespace {

std::size_t elements(at::IntArrayRef sizes, std::int64_t except) {
  std::size_t count = 1;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (static_cast<std::int64_t>(i) != except) count *= sizes[i];
  return count;
}

/// Strides agree wherever a dimension has more than one entry.
bool strides_agree(at::IntArrayRef sizes, at::IntArrayRef a, at::IntArrayRef b) {
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] > 1 && a[i] != b[i]) return false;
  return true;
}

bool plain(const at::Tensor& tensor) { return !tensor.is_conj() && !tensor.is_neg(); }

const char* bytes_of(const at::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); }

}  // namespace

bool items_are_adjacent(const TensorSpec& spec, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (!spec.batched()) return false;
  const std::int64_t row = elements(sizes, spec.batch_dim);
  if (sizes[spec.batch_dim] > 1 && strides[spec.batch_dim] != row) return false;
  // The other dimensions must fill one row without gaps or overlap.
  std::vector<std::int64_t> rest_sizes(sizes.begin(), sizes.end()), rest_strides(strides.begin(), strides.end());
  rest_sizes[spec.batch_dim] = 1;
  return strides_agree(rest_sizes, at::infer_dense_strides(rest_sizes, rest_strides), rest_strides);
}

Slot::Slot(TensorSpec spec, at::Device device, std::int64_t capacity) : spec_(std::move(spec)) {
  const std::vector<std::int64_t> sizes = spec_.shape_for(capacity);
  const auto dense = at::infer_dense_strides(sizes, spec_.strides);
  strides_.assign(dense.begin(), dense.end());
  buffer_ = at::zeros({static_cast<std::int64_t>(elements(sizes, -1))}, at::dtype(spec_.dtype).device(device));
  if (items_are_adjacent(spec_, sizes, strides_) && buffer_.numel() > 0) {
    const std::size_t item = elements(sizes, spec_.batch_dim) * spec_.rows_per_item * buffer_.element_size();
    rows_.emplace(buffer_.mutable_data_ptr(), item, capacity);
  }
}

at::Tensor Slot::view(std::int64_t size) const {
  const std::vector<std::int64_t> sizes = spec_.shape_for(size);
  return buffer_.as_strided(sizes, at::infer_dense_strides(sizes, strides_));
}

bool Slot::same_layout(const at::Tensor& source) const {
  return plain(source) && strides_agree(source.sizes(), source.strides(), strides_);
}

void Slot::fill(const at::Tensor& source, const Chunk& chunk, std::vector<Transfer>& transfers) {
  if (source.numel() == 0) return;
  if (!spec_.batched()) {
    if (same_layout(source))
      transfers.push_back({buffer_.mutable_data_ptr(), source.const_data_ptr(), buffer_.nbytes()});
    else
      view(chunk.size).copy_(source);
    return;
  }
  if (rows_ && same_layout(source)) {
    Transfer filled[PaddedInput::kMaxTransfers];
    const Transfer* end =
        rows_->append_fill(filled, chunk.size, chunk.rows, bytes_of(source) + chunk.offset * rows_->row_bytes());
    transfers.insert(transfers.end(), static_cast<const Transfer*>(filled), end);
    if (spec_.written) touch(chunk.size);
    return;
  }
  touch(chunk.size);
  const std::int64_t k = spec_.rows_per_item, dim = spec_.batch_dim;
  const at::Tensor slot = view(chunk.size);
  slot.narrow(dim, 0, k * chunk.rows).copy_(source.narrow(dim, k * chunk.offset, k * chunk.rows));
  if (chunk.rows < chunk.size) slot.narrow(dim, k * chunk.rows, k * (chunk.size - chunk.rows)).zero_();
}

void Slot::touch(std::int64_t size) {
  if (rows_) rows_->touch(size);
}

void Slot::write_back(at::Tensor target, const Chunk& chunk) const {
  if (!spec_.batched()) {
    target.copy_(view(chunk.size));
    return;
  }
  const std::int64_t k = spec_.rows_per_item, dim = spec_.batch_dim;
  target.narrow(dim, k * chunk.offset, k * chunk.rows).copy_(view(chunk.size).narrow(dim, 0, k * chunk.rows));
}

Result::Result(const TensorSpec& spec, const at::Tensor& output, bool keep, std::shared_ptr<void> pool)
    : spec_(&spec),
      allocator_(c10::GetAllocator(output.device().type())),
      keys_(c10::computeDispatchKey(output.scalar_type(), c10::kStrided, output.device())) {
  void* data = output.numel() > 0 ? output.mutable_data_ptr() : nullptr;
  alias_ = at::for_blob(data, output.sizes())
               .strides(output.strides())
               .deleter([pool = std::move(pool)](void*) {})
               .options(output.options())
               .target_device(output.device())
               .make_tensor();
  if (items_are_adjacent(spec, output.sizes(), output.strides()))
    item_bytes_ = elements(output.sizes(), spec.batch_dim) * spec.rows_per_item * output.element_size();
  dense_ = output.is_non_overlapping_and_dense();
  if (keep) kept_ = output;
}

at::Tensor Result::allocate(std::int64_t batch_size) const {
  at::DimVector sizes(at::IntArrayRef(spec_->shape)), strides(alias_.strides());
  if (spec_->batched()) sizes[spec_->batch_dim] = spec_->rows_per_item * batch_size;
  if (item_bytes_ == 0) {
    const auto dense = at::infer_dense_strides(sizes, strides);
    strides.assign(dense.begin(), dense.end());
  } else {
    strides[spec_->batch_dim] = item_bytes_ / alias_.element_size() / spec_->rows_per_item;
  }
  // Without a way through the dispatcher, which takes as long as everything else here.
  return at::detail::empty_strided_generic(sizes, strides, allocator_, keys_, alias_.scalar_type());
}

bool Result::transferable(const at::Tensor& target) const {
  if (!spec_->batched()) return dense_;
  if (item_bytes_ == 0) return false;
  // The target may have been laid out for a graph of another size.
  const std::int64_t row = item_bytes_ / alias_.element_size() / spec_->rows_per_item;
  for (std::int64_t d = 0; d < target.dim(); ++d) {
    const std::int64_t stride = d == spec_->batch_dim ? row : alias_.stride(d);
    if (target.size(d) > 1 && target.stride(d) != stride) return false;
  }
  return true;
}

void Result::transfer_to(at::Tensor& target, const Chunk& chunk, std::vector<Transfer>& transfers) const {
  if (target.numel() == 0 || !transferable(target)) return;
  if (spec_->batched()) {
    char* to = static_cast<char*>(target.mutable_data_ptr()) + chunk.offset * item_bytes_;
    transfers.push_back({to, alias_.const_data_ptr(), chunk.rows * item_bytes_});
  } else if (chunk.offset == 0) {  // the same for every chunk
    transfers.push_back({target.mutable_data_ptr(), alias_.const_data_ptr(), alias_.nbytes()});
  }
}

void Result::copy_to(at::Tensor& target, const Chunk& chunk) const {
  if (target.numel() == 0 || transferable(target)) return;
  const std::int64_t k = spec_->rows_per_item, dim = spec_->batch_dim;
  if (spec_->batched())
    target.narrow(dim, k * chunk.offset, k * chunk.rows).copy_(alias_.narrow(dim, 0, k * chunk.rows));
  else if (chunk.offset == 0)
    target.copy_(alias_);
}

at::Tensor Result::lend(std::int64_t items) const {
  return spec_->batched() ? alias_.narrow(spec_->batch_dim, 0, spec_->rows_per_item * items) : alias_;
}

}  // namespace xpugraph
