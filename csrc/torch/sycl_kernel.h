// SPDX-License-Identifier: MIT
/// @file Kernel: one C++ function that a compiler of the host (Torch Inductor) generated, launched on the sycl device
/// as an operator is: asynchronously, in stream order, recorded while capturing. Owns nothing but its name; the library
/// that holds the function must stay loaded. Throws ConfigError and what the stream throws. A function that throws on
/// the device is a DeviceError at the next synchronisation. Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace xpugraph::sycl_device {

class Kernel {
 public:
  /// What the function gets: one 64-bit value for every argument, an address or a whole number.
  using Function = void (*)(const std::int64_t* values);

  /// `function` is the address of a Function that takes `arguments` values. @throws ConfigError when it is null.
  Kernel(std::string name, std::uintptr_t function, std::size_t arguments);

  const std::string& name() const { return name_; }
  std::size_t arguments() const { return arguments_; }

  /// The arguments of one launch.
  class Launch {
   public:
    explicit Launch(const Kernel& kernel);
    void add(std::int64_t value);
    /// A tensor of the device is passed by address. A scalar of the CPU (of 0 dimensions), which may change or go before
    /// the kernel runs, is copied now. @throws ConfigError for any other tensor.
    void add(const at::Tensor& tensor);
    /// Submits to the calling thread's current stream. @throws ConfigError when arguments are missing or too many.
    void submit() &&;

   private:
    const Kernel& kernel_;
    std::vector<std::int64_t> values_;
    std::vector<at::Tensor> copies_;
  };

 private:
  std::string name_;
  Function function_;
  std::size_t arguments_;
};

}  // namespace xpugraph::sycl_device
