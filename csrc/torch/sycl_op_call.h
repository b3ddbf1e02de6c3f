// SPDX-License-Identifier: MIT
/// @file One call of an operator as the boxed fallback sees it: the signature of its arguments, and its arguments
/// translated for another device. Owns nothing. Throws c10::Error for arguments of the wrong device. Threads: any.
#pragma once

#include <functional>

#include "torch/sycl_op_info.h"

namespace xpugraph::sycl_device {

using Arguments = c10::ArrayRef<c10::IValue>;

/// Everything about the arguments that output shapes can depend on, other than the values in tensors.
Signature signature_of(Arguments arguments);

/// How to translate a call's arguments.
struct Translation {
  /// A device tensor, the index of the argument it is (part of).
  std::function<at::Tensor(const at::Tensor&, std::size_t)> tensor;
  at::Device device;               ///< replaces Device arguments
  bool scratch_generator = false;  ///< draw from a throw-away generator instead of the device's
};

/// The arguments as the CPU or meta kernel gets them. CPU scalars (0-dim tensors) are copied by value.
/// @throws c10::Error "Expected all tensors to be on the same device …" for other tensors that are not on the device.
torch::jit::Stack translate(const OpInfo& info, Arguments arguments, const Translation& translation);

/// Describes what a kernel returned and what it left in its out= arguments.
Outcome describe(const OpInfo& info, const torch::jit::Stack& inputs, const torch::jit::Stack& results);
/// The tensors among the fresh returns, lists flattened.
std::vector<at::Tensor> fresh_tensors(const OpInfo& info, const torch::jit::Stack& results);
TensorSpec spec_of(const at::Tensor& tensor);

}  // namespace xpugraph::sycl_device
