// SPDX-License-Identifier: MIT
/// @file Tensors of the sycl device seen from both sides: making them, and seeing their memory as CPU tensors.
/// Owns nothing. Throws c10::Error and Error leaves. Threads: any.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <functional>
#include <utility>
#include <vector>

#include "runtime/graph_runtime.h"

namespace xpugraph::sycl_device {

inline constexpr c10::DeviceType kSycl = c10::DeviceType::PrivateUse1;

inline c10::Device the_device() { return c10::Device(kSycl, 0); }

/// The allocator registered for the device; allocates for the calling thread's current stream.
c10::Allocator* allocator();

/// Memory is not initialised.
at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);

/// Makes CPU tensors over the memory of device tensors, for one call of an operator. Two tensors that share a storage
/// share one in the alias too, so that kernels see overlaps. Aliases own nothing and cannot be resized: a kernel that
/// wants to throws instead of writing elsewhere. Only work that runs in stream order may touch what they point to.
class Aliases {
 public:
  at::Tensor operator()(const at::Tensor& tensor);

 private:
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
  std::vector<std::pair<const c10::TensorImpl*, at::Tensor>> tensors_;
};

/// The current stream of the calling thread.
Stream current_stream();
/// Submits to the current stream (records, in a capture).
void submit_here(std::function<void()> work);
/// Runs `work` on the worker after everything on the current stream, waits, and lets its exceptions through unchanged.
/// @pre the current stream is not recording.
void run_here(const std::function<void()>& work);
/// Throws the error of an operator that cannot be part of a graph, if the current stream is recording.
void refuse_if_capturing(const std::string& what);

}  // namespace xpugraph::sycl_device
