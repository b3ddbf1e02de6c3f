// SPDX-License-Identifier: MIT
/// @file The GraphRuntime of a torch device, one for each kind of device and process.
/// Throws ConfigError for a device that cannot record graphs in this build. Any thread.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/graph_runtime.h"

namespace xpugraph {

/// The torch devices whose work this build can record: "sycl", "xpu", "cuda".
std::vector<std::string> built_runtimes();
std::shared_ptr<GraphRuntime> runtime_for(c10::Device device);

}  // namespace xpugraph
