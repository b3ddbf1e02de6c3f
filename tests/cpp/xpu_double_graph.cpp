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

#if SYCL_EXT_ONEAPI_GRAPH >= 2
/// The constructor of a graph's base, which a command_graph calls: without the property of native recording where that is
/// to work.
void make_graph(sycl::ext::oneapi::experimental::detail::modifiable_command_graph*, const sycl::context&,
                const sycl::device&,
                const sycl::property_list&) asm(XPUGRAPH_GRAPH_CLASS
                                                "C2ERKNS0_7contextERKNS0_6deviceERKNS0_13property_listE");
void make_graph(sycl::ext::oneapi::experimental::detail::modifiable_command_graph* graph, const sycl::context& context,
                const sycl::device& device, const sycl::property_list& properties) {
  using Function = void (*)(void*, const sycl::context&, const sycl::device&, const sycl::property_list&);
  static const auto real =
      next<Function>(XPUGRAPH_GRAPH_CLASS "C2ERKNS0_7contextERKNS0_6deviceERKNS0_13property_listE");
  const bool native =
      properties.has_property<sycl::ext::oneapi::experimental::property::graph::enable_native_recording>();
  if (native) xpugraph::xpu_double::note("native");
  const bool strip = native && xpugraph::xpu_double::native() == xpugraph::xpu_double::Native::works;
  real(graph, context, device, strip ? sycl::property_list{} : properties);
}
#endif

sycl::backend sycl::_V1::queue::get_backend() const noexcept {
  if (xpugraph::xpu_double::native() != xpugraph::xpu_double::Native::absent) return backend::ext_oneapi_level_zero;
  return get_context().get_backend();
}

namespace sycl::_V1::ext::oneapi::experimental {

namespace detail {

void modifiable_command_graph::begin_recording(queue& recording, const property_list& properties) {
  xpugraph::xpu_double::note("begin_recording");
  using Function = void (*)(modifiable_command_graph*, queue&, const property_list&);
  static const auto real = next<Function>(XPUGRAPH_GRAPH_CLASS "15begin_recordingERNS0_5queueERKNS0_13property_listE");
  real(this, recording, properties);
}

void modifiable_command_graph::end_recording() {
  xpugraph::xpu_double::note("end_recording");
  using Function = void (*)(modifiable_command_graph*);
  static const auto real = next<Function>(XPUGRAPH_GRAPH_CLASS "13end_recordingEv");
  real(this);
}

command_graph<graph_state::executable> modifiable_command_graph::finalize(const property_list& properties) const {
  xpugraph::xpu_double::note("finalize");
  using Function = command_graph<graph_state::executable> (*)(const modifiable_command_graph*, const property_list&);
  static const auto real = next<Function>(XPUGRAPH_CONST_GRAPH_CLASS "8finalizeERKNS0_13property_listE");
  return real(this, properties);
}

}  // namespace detail

}  // namespace sycl::_V1::ext::oneapi::experimental
