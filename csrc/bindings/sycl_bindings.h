// SPDX-License-Identifier: MIT
/// @file Registers the sycl torch device as the submodule `sycl` of the extension.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace xpugraph {

void bind_sycl(pybind11::module_& module);

}  // namespace xpugraph
