// SPDX-License-Identifier: MIT
/// @file CudaRuntime: CUDA graphs by stream capture, over torch.cuda's streams and caching allocator. Stream::handle is a
/// cudaStream_t (null: the default stream). Serves every CUDA device.
/// Owns one capture stream a device, for as long as the process lives. No CUDA type appears here: only cuda_runtime.cpp
/// includes CUDA. Throws and thread rules: see graph_runtime.h.
#pragma once

#include <memory>

#include "runtime/graph_runtime.h"

namespace xpugraph {

std::unique_ptr<GraphRuntime> make_cuda_runtime();

}  // namespace xpugraph
