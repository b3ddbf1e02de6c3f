// SPDX-License-Identifier: MIT
// Operators that are about the device itself: making, viewing and resizing tensors, copies, waiting for a value; and a
// few composite operators whose decomposition is replaced.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "runtime/sycl_cpu_hooks.h"
#include "runtime/sycl_streams.h"
#include "torch/sycl_fallback.h"
#include "torch/sycl_register.h"
#include "torch/sycl_tensor.h"

namespace xpugraph::sycl_device {

namespace {

using at::Tensor;
using OptionalDtype = std::optional<at::ScalarType>;
using OptionalLayout = std::optional<at::Layout>;
using OptionalDevice = std::optional<at::Device>;
using OptionalFormat = std::optional<at::MemoryFormat>;

// ---- making ---------------------------------------------------------------------------------------------------------

Tensor empty(at::IntArrayRef size, OptionalDtype dtype, OptionalLayout layout, OptionalDevice, std::optional<bool>,
             OptionalFormat format) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::layout_or_default(layout) == at::kStrided, "the sycl device has dense tensors only");
  return at::detail::empty_generic(size, allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   at::dtype_or_default(dtype), format);
}

Tensor empty_strided_op(at::IntArrayRef size, at::IntArrayRef stride, OptionalDtype dtype, OptionalLayout layout,
                        OptionalDevice, std::optional<bool>) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::layout_or_default(layout) == at::kStrided, "the sycl device has dense tensors only");
  return empty_strided(size, stride, at::dtype_or_default(dtype));
}

// ---- storage --------------------------------------------------------------------------------------------------------

void ensure_storage(const Tensor& self) {
  const std::size_t needed =
      at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), self.storage_offset());
  if (self.numel() != 0 && self.storage().nbytes() < needed) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), needed);
  }
}

const Tensor& resize(const Tensor& self, at::IntArrayRef size, OptionalFormat format) {
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format.has_value()) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  ensure_storage(self);
  return self;
}

Tensor& set_strided(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  TORCH_CHECK(source.device().type() == kSycl, "set_ on a sycl tensor needs a storage of the sycl device");
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (stride.data() == nullptr) {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  ensure_storage(self);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source) {
  const int64_t count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_strided(self, std::move(source), 0, count, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_strided(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_empty(Tensor& self) {
  return set_strided(self, empty({0}, self.scalar_type(), {}, {}, {}, {}).storage(), 0, {0}, {});
}

void record_stream(Tensor& self, at::Stream stream) {
  sycl_cpu_hooks()->allocator().record_stream(self.storage().data_ptr().get(),
                                              sycl_cpu::stream(static_cast<int>(stream.id())));
}

// ---- copies ---------------------------------------------------------------------------------------------------------

Tensor copy_from(const Tensor& source, const Tensor& destination, bool) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Tensor from = source;
  if (!source.sizes().equals(destination.sizes())) from = source.expand_as(destination);  // or throws
  if (destination.numel() == 0) return destination;
  Aliases alias;
  if (destination.device().type() != kSycl) {
    TORCH_CHECK(destination.is_cpu(), "cannot copy from the sycl device to ", destination.device());
    refuse_if_capturing("aten::_copy_from (a copy to the CPU)");
    const Tensor seen = alias(from);
    run_here([&] { destination.copy_(seen); });
    return destination;
  }
  // What the host holds is copied by value: it may change or go before the copy runs, and, in a capture, before every
  // replay.
  TORCH_CHECK(from.is_cpu() || from.device().type() == kSycl, "cannot copy from ", from.device(),
              " to the sycl device");
  const Tensor seen = from.is_cpu() ? from.clone() : alias(from);
  submit_here([target = alias(destination), seen] { target.copy_(seen); });
  return destination;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& destination) {
  destination.resize_(source.sizes());
  return copy_from(source, destination, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  refuse_if_capturing("aten::_local_scalar_dense (Tensor.item() or a Python number or condition made from a tensor)");
  sycl_cpu::synchronize(current_stream());
  return at::_local_scalar_dense(Aliases()(self));
}

// ---- composites whose decomposition is replaced ---------------------------------------------------------------------

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0) {
    return {input.clone(), at::ones(input.sizes(), input.options().dtype(at::kBool))};
  }
  const Tensor mask = at::empty(input.sizes(), input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0. : 1 / (1 - p)), mask};
}

bool needs_grad(at::TensorList tensors) {
  return at::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.defined() && t.requires_grad(); });
}

/// Runs `name` as one kernel, by the boxed fallback.
template <typename... Arguments>
torch::jit::Stack whole(const char* name, const char* overload, const Arguments&... arguments) {
  torch::jit::Stack stack;
  torch::jit::push(stack, arguments...);
  fallback(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), &stack);
  return stack;
}

/// A tensor of torch.compile's, which has a shape but no memory. What is traced must be made of operators that go
/// through the dispatcher.
bool is_fake(const Tensor& tensor) { return tensor.key_set().has(c10::DispatchKey::Python); }

/// Whether the CPU's fused attention takes these arguments, as torch decides it for the CPU.
bool fits_fused_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask) {
  if (mask.defined() && (mask.scalar_type() != query.scalar_type() || (mask.dim() != 2 && mask.dim() != 4)))
    return false;
  for (const Tensor& tensor : {query, key, value}) {
    if (tensor.dim() != 4 || !at::isFloatingType(tensor.scalar_type()) || tensor.sym_stride(3) != 1) return false;
    for (const int64_t d : {0, 1, 3}) {
      if (tensor.sym_size(d) != query.sym_size(d)) return false;
    }
  }
  return query.sym_size(2) != 0 && key.sym_size(2) != 0;
}

/// Attention and recurrent layers are one kernel each on the CPU. They are taken whole where nothing must be
/// differentiated and no dropout drawn (the kernel would draw from the CPU's generator), and decomposed otherwise.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
                 double dropout, bool causal, std::optional<double> scale, bool grouped) {
  const Tensor mask_or_none = mask.value_or(Tensor());
  if (dropout > 0 || needs_grad({query, key, value, mask_or_none})) {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale, grouped);
  }
  if (is_fake(query)) {
    if (grouped || !fits_fused_attention(query, key, value, mask_or_none))
      return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale, grouped);
    return std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, mask, scale));
  }
  return whole("aten::scaled_dot_product_attention", "", query, key, value, mask, dropout, causal, scale, grouped)[0]
      .toTensor();
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, at::TensorList state, at::TensorList params, bool biases,
                                        int64_t layers, double dropout, bool train, bool bidirectional,
                                        bool batch_first) {
  if ((train && dropout > 0) || is_fake(input) || needs_grad(input) || needs_grad(state) || needs_grad(params)) {
    return at::native::lstm(input, state, params, biases, layers, dropout, train, bidirectional, batch_first);
  }
  const auto out =
      whole("aten::lstm", "input", input, state, params, biases, layers, dropout, train, bidirectional, batch_first);
  return {out[0].toTensor(), out[1].toTensor(), out[2].toTensor()};
}

std::tuple<Tensor, Tensor> gru(const Tensor& input, const Tensor& state, at::TensorList params, bool biases,
                               int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  if ((train && dropout > 0) || is_fake(input) || needs_grad({input, state}) || needs_grad(params)) {
    return at::native::gru(input, state, params, biases, layers, dropout, train, bidirectional, batch_first);
  }
  const auto out =
      whole("aten::gru", "input", input, state, params, biases, layers, dropout, train, bidirectional, batch_first);
  return {out[0].toTensor(), out[1].toTensor()};
}

/// The cells that the decomposed layers call on every device but the CPU. Made of differentiable operators, so they
/// serve with and without autograd; the workspace, which only a fused backward would read, stays empty.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cell,
                                             const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  Tensor sum = input_gates + hidden_gates;
  if (input_bias && input_bias->defined()) sum = sum + *input_bias + *hidden_bias;
  const std::vector<Tensor> gates = sum.chunk(4, 1);
  const Tensor next_cell = gates[1].sigmoid() * cell + gates[0].sigmoid() * gates[2].tanh();
  return {gates[3].sigmoid() * next_cell.tanh(), next_cell, at::empty({0}, cell.options())};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hidden,
                                    const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  const auto biased = [](const Tensor& gates, const std::optional<Tensor>& bias) {
    return (bias && bias->defined() ? gates + *bias : gates).chunk(3, 1);
  };
  const std::vector<Tensor> in = biased(input_gates, input_bias);
  const std::vector<Tensor> held = biased(hidden_gates, hidden_bias);
  const Tensor reset = (in[0] + held[0]).sigmoid();
  const Tensor update = (in[1] + held[1]).sigmoid();
  const Tensor candidate = (in[2] + reset * held[2]).tanh();
  return {candidate + update * (hidden - candidate), at::empty({0}, hidden.options())};
}

}  // namespace

void register_native_ops() {
  // Libraries unregister when destroyed; these stay.
  static auto& device =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  device.impl("empty.memory_format", &empty);
  device.impl("empty_strided", &empty_strided_op);
  device.impl("as_strided", &at::native::as_strided_tensorimpl);
  device.impl("view", &at::native::view);
  device.impl("_reshape_alias", &at::native::_reshape_alias);
  device.impl("unfold", &at::native::unfold);
  device.impl("view_as_real", &at::native::view_as_real);
  device.impl("view_as_complex", &at::native::view_as_complex);
  device.impl("is_set_to", &at::native::is_set_to);
  device.impl("resize_", &resize);
  device.impl("set_.source_Storage", &set_storage);
  device.impl("set_.source_Storage_storage_offset", &set_strided);
  device.impl("set_.source_Tensor", &set_tensor);
  device.impl("set_", &set_empty);
  device.impl("record_stream", &record_stream);
  device.impl("_copy_from", &copy_from);
  device.impl("_copy_from_and_resize", &copy_from_and_resize);
  device.impl("_local_scalar_dense", &local_scalar_dense);
  device.impl("native_dropout", &native_dropout);
  // Composites that are one kernel on the CPU.
  for (const char* name : {"convolution", "convolution_backward", "native_layer_norm", "native_group_norm", "_stack",
                           "addr", "all.dims", "any.dims"}) {
    device.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }

  static auto& autograd =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  for (torch::Library* library : {&device, &autograd}) {
    library->impl("scaled_dot_product_attention", &attention);
    library->impl("lstm.input", &lstm);
    library->impl("gru.input", &gru);
    library->impl("_thnn_fused_lstm_cell", &lstm_cell);
    library->impl("_thnn_fused_gru_cell", &gru_cell);
  }

  // A lazily conjugated or negated source is resolved by the copy itself, on the worker; aliases carry the bits.
  for (const c10::DispatchKey key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    auto& lazy = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    lazy.impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
}

}  // namespace xpugraph::sycl_device
