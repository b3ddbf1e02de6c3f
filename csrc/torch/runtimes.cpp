// SPDX-License-Identifier: MIT
#include "torch/runtimes.h"

#include "core/error.h"
#ifdef XPUGRAPH_WITH_CUDA
#include "runtime/cuda_runtime.h"
#endif
#ifdef XPUGRAPH_WITH_SYCL
#include "runtime/sycl_runtime.h"
#include "torch/sycl_device.h"
#endif
#ifdef XPUGRAPH_WITH_XPU
#include "torch/xpu_hooks.h"
#endif

namespace xpugraph {

std::vector<std::string> built_runtimes() {
  std::vector<std::string> names;
#ifdef XPUGRAPH_WITH_CUDA
  names.push_back("cuda");
#endif
#ifdef XPUGRAPH_WITH_SYCL
  names.push_back("sycl");
#endif
#ifdef XPUGRAPH_WITH_XPU
  names.push_back("xpu");
#endif
  return names;
}

std::shared_ptr<GraphRuntime> runtime_for(c10::Device device) {
  // Alive until the process ends: graphs may be destroyed by Python's last garbage collection.
#ifdef XPUGRAPH_WITH_CUDA
  if (device.type() == c10::DeviceType::CUDA) {
    static auto* const runtime = new std::shared_ptr<GraphRuntime>(make_cuda_runtime());
    return *runtime;
  }
#endif
#ifdef XPUGRAPH_WITH_SYCL
  if (device.type() == c10::DeviceType::PrivateUse1) {
    static auto* const runtime = new std::shared_ptr<GraphRuntime>(make_sycl_runtime(sycl_device::hooks()));
    return *runtime;
  }
#endif
#ifdef XPUGRAPH_WITH_XPU
  if (device.type() == c10::DeviceType::XPU) {
    static auto* const runtime = new std::shared_ptr<GraphRuntime>(make_sycl_runtime(make_xpu_hooks()));
    return *runtime;
  }
#else
  if (device.type() == c10::DeviceType::XPU) {
    throw ConfigError("device: xpugraph was built beside a torch without XPU, so it records nothing on '" +
                      device.str() +
                      "'; build it again beside the torch that is installed now "
                      "(pip install --no-build-isolation --force-reinstall --no-deps .)");
  }
#endif
  throw ConfigError("device: this build records no graphs on '" + device.str() +
                    "'; it does on the sycl device (xpugraph.enable_sycl_device())");
}

}  // namespace xpugraph
