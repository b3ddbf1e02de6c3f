// SPDX-License-Identifier: MIT
#include "torch/sycl_op_call.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cstring>

#include "torch/sycl_generator.h"
#include "torch/sycl_tensor.h"

namespace xpugraph::sycl_device {

namespace {

using at::Tensor;
using c10::IValue;

enum Tag : std::int64_t { kNone, kTensor, kUndefined, kBool, kInt, kDouble, kComplex, kString, kList, kOther };

std::int64_t bits(double value) {
  std::int64_t result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

void append(Signature& to, const Tensor& tensor) {
  if (!tensor.defined()) {
    to.push_back(kUndefined);
    return;
  }
  to.push_back(kTensor);
  to.push_back(tensor.dim() | static_cast<std::int64_t>(tensor.scalar_type()) << 8 |
               std::int64_t{tensor.is_conj()} << 16 | std::int64_t{tensor.is_neg()} << 17 |
               std::int64_t{tensor.is_cpu()} << 18 |
               std::int64_t{tensor.unsafeGetTensorImpl()->is_wrapped_number()} << 19);
  to.insert(to.end(), tensor.sizes().begin(), tensor.sizes().end());
  to.insert(to.end(), tensor.strides().begin(), tensor.strides().end());
}

void append(Signature& to, const IValue& value) {
  if (value.isTensor()) {
    append(to, value.toTensor());
  } else if (value.isNone()) {
    to.push_back(kNone);
  } else if (value.isBool()) {
    to.insert(to.end(), {kBool, std::int64_t{value.toBool()}});
  } else if (value.isInt()) {
    to.insert(to.end(), {kInt, value.toInt()});
  } else if (value.isDouble()) {
    to.insert(to.end(), {kDouble, bits(value.toDouble())});
  } else if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    to.insert(to.end(), {kComplex, bits(number.real()), bits(number.imag())});
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    to.insert(to.end(), {kString, static_cast<std::int64_t>(text.size())});
    to.insert(to.end(), text.begin(), text.end());
  } else if (value.isList()) {
    const auto list = value.toListRef();
    to.insert(to.end(), {kList, static_cast<std::int64_t>(list.size())});
    for (const IValue& element : list) append(to, element);
  } else {
    to.push_back(kOther);  // devices and generators
  }
}

/// A CPU tensor that came along with device tensors.
Tensor host_value(const OpInfo& info, std::size_t index, const Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu() && (tensor.dim() == 0 || info.cpu_arguments),
              "Expected all tensors to be on the same device, but found at least two devices, ", the_device(), " and ",
              tensor.device(), "! (when checking argument for argument ", info.op.schema().arguments()[index].name(),
              " in method ", info.name, ")");
  Tensor value = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) value.unsafeGetTensorImpl()->set_wrapped_number(true);
  return value;
}

IValue translate_value(const OpInfo& info, std::size_t index, const IValue& value, const Translation& translation) {
  if (value.isTensor()) {
    const Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return value;
    if (tensor.device().type() == kSycl) return translation.tensor(tensor, index);
    return host_value(info, index, tensor);
  }
  if (value.isList()) {
    const auto list = value.toListRef();
    if (std::none_of(list.begin(), list.end(), [](const IValue& element) { return element.isTensor(); })) return value;
    c10::impl::GenericList translated(value.toList().elementType());
    translated.reserve(list.size());
    for (const IValue& element : list) translated.push_back(translate_value(info, index, element, translation));
    return translated;
  }
  if (value.isDevice()) return translation.device;
  return value;
}

bool is_fresh(const OpInfo& info, std::size_t result) { return info.returns[result] < 0; }

}  // namespace

Signature signature_of(Arguments arguments) {
  Signature signature;
  signature.reserve(arguments.size() * 8);
  for (const IValue& argument : arguments) append(signature, argument);
  return signature;
}

torch::jit::Stack translate(const OpInfo& info, Arguments arguments, const Translation& translation) {
  torch::jit::Stack stack;
  stack.reserve(arguments.size() + info.returns.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (static_cast<int>(i) != info.generator) {
      stack.push_back(translate_value(info, i, arguments[i], translation));
    } else if (translation.scratch_generator) {
      stack.emplace_back(at::detail::createCPUGenerator());
    } else {
      stack.emplace_back(cpu_generator(arguments[i].isNone() ? default_generator() : arguments[i].toGenerator()));
    }
  }
  return stack;
}

TensorSpec spec_of(const Tensor& tensor) {
  TensorSpec spec;
  if (!tensor.defined()) return spec;
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, "the sycl device has dense tensors only");
  spec.defined = true;
  spec.sizes = tensor.sizes().vec();
  spec.strides = tensor.strides().vec();
  spec.dtype = tensor.scalar_type();
  return spec;
}

Outcome describe(const OpInfo& info, const torch::jit::Stack& inputs, const torch::jit::Stack& results) {
  Outcome outcome;
  for (const std::size_t index : info.out_arguments) {
    if (inputs[index].isTensor()) outcome.outs.push_back(spec_of(inputs[index].toTensor()));
  }
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (!is_fresh(info, r)) continue;
    outcome.list_sizes.push_back(results[r].isTensorList() ? static_cast<std::int64_t>(results[r].toListRef().size())
                                                           : -1);
  }
  for (const Tensor& tensor : fresh_tensors(info, results)) outcome.fresh.push_back(spec_of(tensor));
  return outcome;
}

std::vector<Tensor> fresh_tensors(const OpInfo& info, const torch::jit::Stack& results) {
  std::vector<Tensor> tensors;
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (!is_fresh(info, r)) continue;
    if (results[r].isTensor()) {
      tensors.push_back(results[r].toTensor());
    } else if (results[r].isTensorList()) {
      for (const IValue& element : results[r].toListRef()) tensors.push_back(element.toTensor());
    }
  }
  return tensors;
}

}  // namespace xpugraph::sycl_device
