// SPDX-License-Identifier: MIT
/// @file SyclRuntime: command graphs by queue recording (sycl_ext_oneapi_graph). Serves torch.xpu and the sycl torch
/// device alike; whose queues and pools those are is behind DeviceHooks. Stream::handle is a sycl::queue*.
/// Owns the modifiable graph while one is being recorded. No SYCL type appears here: only sycl_*.cpp of this
/// folder include SYCL. Which of SYCL's two engines records is in sycl_engine.h. Throws and thread rules: see graph_runtime.h.
#pragma once

#include <memory>

#include "runtime/device_hooks.h"
#include "runtime/graph_runtime.h"

namespace xpugraph {

/// `hooks` is shared with whoever else needs it and lives as long as the runtime.
std::unique_ptr<GraphRuntime> make_sycl_runtime(std::shared_ptr<DeviceHooks> hooks);

}  // namespace xpugraph
