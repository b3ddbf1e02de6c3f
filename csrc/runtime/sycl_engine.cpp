// SPDX-License-Identifier: MIT
#include "runtime/sycl_engine.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sycl/sycl.hpp>

#include "core/error.h"

namespace xpugraph::sycl_engine {

namespace {

namespace syclex = sycl::ext::oneapi::experimental;

struct Notes {
  std::mutex mutex;
  Recorded recorded;
};

Notes& notes() {
  static Notes& instance = *new Notes();
  return instance;
}

std::string backend_name(sycl::backend backend) {
  switch (backend) {
    case sycl::backend::ext_oneapi_level_zero:
      return "level_zero";
    case sycl::backend::opencl:
      return "opencl";
    default:
      return "backend " + std::to_string(static_cast<int>(backend));
  }
}

/// The first line; the runtime's texts may have several.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string engine(const sycl::device& device) {
  const bool graphs = device.has(sycl::aspect::ext_oneapi_limited_graph) || device.has(sycl::aspect::ext_oneapi_graph);
#if SYCL_EXT_ONEAPI_GRAPH >= 2
  try {
    const syclex::command_graph<syclex::graph_state::modifiable> graph(
        sycl::context(device), device, {syclex::property::graph::enable_native_recording{}});
    return native_wanted() ? "native recording" : "command graph (native recording is turned off)";
  } catch (const sycl::exception& error) {
    if (graphs) return "command graph (no native recording: " + first_line(error.what()) + ")";
  }
#endif
  return graphs ? "command graph" : "none";
}

}  // namespace

bool native_wanted() {
  const char* const value = std::getenv("XPUGRAPH_NATIVE_RECORDING");
  if (value != nullptr && std::strcmp(value, "0") != 0 && std::strcmp(value, "1") != 0)
    throw ConfigError(std::string("XPUGRAPH_NATIVE_RECORDING is '") + value + "': accepted are 0 and 1");
#if SYCL_EXT_ONEAPI_GRAPH >= 2
  return value == nullptr || std::strcmp(value, "0") != 0;
#else
  return false;
#endif
}

Recorded recorded() {
  std::lock_guard<std::mutex> lock(notes().mutex);
  return notes().recorded;
}

void note_recorded(bool native) {
  std::lock_guard<std::mutex> lock(notes().mutex);
  ++(native ? notes().recorded.native : notes().recorded.command_graph);
}

void note_refusal(const std::string& why) {
  std::lock_guard<std::mutex> lock(notes().mutex);
  notes().recorded.refusal = first_line(why);
}

std::string build() {
  return "libsycl major: " + std::to_string(__LIBSYCL_MAJOR_VERSION) +
         "\ngraph extension: " + std::to_string(SYCL_EXT_ONEAPI_GRAPH) +
         "\nheader date: " + std::to_string(__SYCL_COMPILER_VERSION) + "\n";
}

std::string devices() {
  std::string text;
  try {
    for (const sycl::platform& platform : sycl::platform::get_platforms()) {
      for (const sycl::device& device : platform.get_devices()) {
        const auto has = [&device](sycl::aspect aspect) { return std::string(device.has(aspect) ? "yes" : "no"); };
        text += "name: " + device.get_info<sycl::info::device::name>() +
                "; platform: " + platform.get_info<sycl::info::platform::name>() +
                "; backend: " + backend_name(device.get_backend()) +
                "; driver: " + device.get_info<sycl::info::device::driver_version>() +
                "; full graph: " + has(sycl::aspect::ext_oneapi_graph) +
                "; limited graph: " + has(sycl::aspect::ext_oneapi_limited_graph) + "; engine: " + engine(device) +
                "\n";
      }
    }
  } catch (const sycl::exception& error) {
    text += std::string("the SYCL runtime failed to list its devices: ") + first_line(error.what()) + "\n";
  }
  return text;
}

}  // namespace xpugraph::sycl_engine
