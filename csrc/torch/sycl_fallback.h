// SPDX-License-Identifier: MIT
/// @file The boxed kernel behind every operator that has none of its own on the sycl device: it runs the CPU kernel on
/// the same memory, on the queue's worker, without waiting. Owns nothing. Throws what the operator throws for its
/// arguments, CaptureError for what cannot be captured. Threads: any.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace xpugraph::sycl_device {

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace xpugraph::sycl_device
