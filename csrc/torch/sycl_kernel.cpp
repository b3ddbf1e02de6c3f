// SPDX-License-Identifier: MIT
#include "torch/sycl_kernel.h"

#include <exception>
#include <utility>

#include "core/error.h"
#include "torch/sycl_tensor.h"

namespace xpugraph::sycl_device {

namespace {

std::int64_t address_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()));
}

}  // namespace

Kernel::Kernel(std::string name, std::uintptr_t function, std::size_t arguments)
    : name_(std::move(name)), function_(reinterpret_cast<Function>(function)), arguments_(arguments) {
  if (function == 0) throw ConfigError("kernel " + name_ + ": its address is null");
}

Kernel::Launch::Launch(const Kernel& kernel) : kernel_(kernel) { values_.reserve(kernel.arguments_); }

void Kernel::Launch::add(std::int64_t value) { values_.push_back(value); }

void Kernel::Launch::add(const at::Tensor& tensor) {
  if (tensor.device().type() == kSycl) {
    values_.push_back(address_of(tensor));
    return;
  }
  if (!tensor.is_cpu() || tensor.dim() != 0) {
    throw ConfigError("kernel " + kernel_.name_ + ": argument " + std::to_string(values_.size()) + " is on " +
                      tensor.device().str() + "; accepted are tensors of the sycl device and scalars of the CPU");
  }
  copies_.push_back(tensor.clone());
  values_.push_back(address_of(copies_.back()));
}

void Kernel::Launch::submit() && {
  if (values_.size() != kernel_.arguments_) {
    throw ConfigError("kernel " + kernel_.name_ + ": " + std::to_string(values_.size()) + " arguments were given; it " +
                      "takes " + std::to_string(kernel_.arguments_));
  }
  submit_here(
      [function = kernel_.function_, name = kernel_.name_, values = std::move(values_), copies = std::move(copies_)] {
        try {
          function(values.data());
        } catch (const std::exception& error) {
          throw DeviceError("kernel " + name + " failed on the sycl device: " + error.what());
        }
      });
}

}  // namespace xpugraph::sycl_device
