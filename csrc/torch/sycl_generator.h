// SPDX-License-Identifier: MIT
/// @file The device's random generator: a CPU generator that only work on the device draws from, in stream order.
/// Because a recorded operator draws when it is replayed, each replay draws new numbers.
/// Seeding holds for work submitted after it; reading and setting the state wait for the device first. Neither is
/// possible in a capture. Threads: any.
#pragma once

#include <ATen/core/Generator.h>

namespace xpugraph::sycl_device {

const at::Generator& default_generator();
at::Generator new_generator();

/// The CPU generator behind `generator`, for a kernel that runs on the device. @throws c10::Error for another device's.
at::Generator cpu_generator(const at::Generator& generator);

}  // namespace xpugraph::sycl_device
