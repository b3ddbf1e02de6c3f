// SPDX-License-Identifier: MIT
/// The steps of recording a graph, defined in the test's executable and so found before libsycl's: each is written down,
/// may fail, and calls libsycl's.
#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <sycl/sycl.hpp>

#include "xpu_double.h"

namespace {

/// The next definition of `symbol`, as a function that takes the object first.
template <typename Function>
Function next(const char* symbol) {
  void* const found = dlsym(RTLD_NEXT, symbol);
  if (found == nullptr) throw std::runtime_error(std::string("libsycl has no ") + symbol);
  return reinterpret_cast<Function>(found);
}

#define XPUGRAPH_GRAPH_CLASS "_ZN4sycl3_V13ext6oneapi12experimental6detail24modifiable_command_graph"
#define XPUGRAPH_CONST_GRAPH_CLASS "_ZNK4sycl3_V13ext6oneapi12experimental6detail24modifiable_command_graph"

}  // namespace

namespace sycl::_V1::ext::oneapi::experimental {

namespace detail {

void modifiable_command_graph::begin_recording(queue& recording, const property_list& properties) {
  xpugraph::xpu_double::note("begin_recording");
  using Function = void (*)(modifiable_command_graph*, queue&, const property_list&);
  static const auto real = next<Function>(XPUGRAPH_GRAPH_CLASS "15begin_recordingERNS0_5queueERKNS0_13property_listE");
  real(this, recording, properties);
}

void modifiable_command_graph::end_recording(queue& recording) {
  xpugraph::xpu_double::note("end_recording");
  using Function = void (*)(modifiable_command_graph*, queue&);
  static const auto real = next<Function>(XPUGRAPH_GRAPH_CLASS "13end_recordingERNS0_5queueE");
  real(this, recording);
}

command_graph<graph_state::executable> modifiable_command_graph::finalize(const property_list& properties) const {
  xpugraph::xpu_double::note("finalize");
  using Function = command_graph<graph_state::executable> (*)(const modifiable_command_graph*, const property_list&);
  static const auto real = next<Function>(XPUGRAPH_CONST_GRAPH_CLASS "8finalizeERKNS0_13property_listE");
  return real(this, properties);
}

}  // namespace detail

}  // namespace sycl::_V1::ext::oneapi::experimental
