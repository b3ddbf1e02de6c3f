// SPDX-License-Identifier: MIT
#include "torch/sycl_tensor.h"

#include <ATen/EmptyTensor.h>

#include <exception>

#include "runtime/sycl_cpu_hooks.h"
#include "runtime/sycl_streams.h"

namespace xpugraph::sycl_device {

namespace {

template <typename Key, typename Value>
const Value* find(const std::vector<std::pair<const Key*, Value>>& pairs, const Key* key) {
  for (const auto& [k, value] : pairs) {
    if (k == key) return &value;
  }
  return nullptr;
}

}  // namespace

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  return at::detail::empty_strided_generic(sizes, strides, allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
}

at::Tensor Aliases::operator()(const at::Tensor& tensor) {
  const c10::TensorImpl* source = tensor.unsafeGetTensorImpl();
  if (const at::Tensor* known = find(tensors_, source)) return *known;
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.is_quantized(),
                              "the sycl device has dense tensors only");

  const c10::StorageImpl* source_storage = tensor.storage().unsafeGetStorageImpl();
  const c10::Storage* known_storage = find(storages_, source_storage);
  if (known_storage == nullptr) {
    c10::DataPtr memory(source_storage->data_ptr().get(), c10::Device(c10::kCPU));
    storages_.emplace_back(source_storage, c10::Storage(c10::Storage::use_byte_size_t(), source_storage->nbytes(),
                                                        std::move(memory), nullptr, /*resizable=*/false));
    known_storage = &storages_.back().second;
  }
  at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(*known_storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  c10::TensorImpl* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (source->is_wrapped_number()) impl->set_wrapped_number(true);
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  tensors_.emplace_back(source, alias);
  return alias;
}

Stream current_stream() { return sycl_cpu_hooks()->current_stream(0); }

void submit_here(std::function<void()> work) { sycl_cpu::submit(current_stream(), std::move(work)); }

void run_here(const std::function<void()>& work) {
  std::exception_ptr failure;
  submit_here([&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  sycl_cpu::synchronize(current_stream());
  if (failure) std::rethrow_exception(failure);
}

void refuse_if_capturing(const std::string& what) {
  const auto hooks = sycl_cpu_hooks();
  if (hooks->capturing()) hooks->refuse_capture(what + " needs the host to wait for the device and cannot be captured");
}

}  // namespace xpugraph::sycl_device
