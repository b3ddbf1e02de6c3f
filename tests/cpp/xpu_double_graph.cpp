// SPDX-License-Identifier: MIT
/// The steps of recording a graph, defined in the test's executable and so found before libsycl's: each is written down,
/// may fail, and calls libsycl's. So are the state of queues and their wait.
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

#include "xpu_double.h"

namespace {

namespace syclex = sycl::ext::oneapi::experimental;
using xpugraph::xpu_double::Native;
using xpugraph::xpu_double::native;
using xpugraph::xpu_double::note;

/// The next definition of `symbol`, as a function that takes the object first.
template <typename Function>
Function next(const char* symbol) {
  void* const found = dlsym(RTLD_NEXT, symbol);
  if (found == nullptr) throw std::runtime_error(std::string("libsycl has no ") + symbol);
  return reinterpret_cast<Function>(found);
}

#define XPUGRAPH_GRAPH_CLASS "_ZN4sycl3_V13ext6oneapi12experimental6detail24modifiable_command_graph"
#define XPUGRAPH_CONST_GRAPH_CLASS "_ZNK4sycl3_V13ext6oneapi12experimental6detail24modifiable_command_graph"

std::mutex mutex;
/// Queues that a native recording was left in by an end that failed.
std::vector<sycl::queue>& stuck() {
  static auto& instance = *new std::vector<sycl::queue>();
  return instance;
}
bool is_stuck(const sycl::queue& queue) {
  const std::lock_guard<std::mutex> lock(mutex);
  return std::find(stuck().begin(), stuck().end(), queue) != stuck().end();
}

#if SYCL_EXT_ONEAPI_GRAPH >= 2
/// Graphs that seem to be recorded natively, by id, with the queue while there is one.
std::map<std::size_t, std::vector<sycl::queue>>& native_graphs() {
  static auto& instance = *new std::map<std::size_t, std::vector<sycl::queue>>();
  return instance;
}

using Graph = syclex::detail::modifiable_command_graph;

bool is_native(const Graph& graph) {
  const std::lock_guard<std::mutex> lock(mutex);
  return native_graphs().count(graph.get_id()) != 0;
}
bool is_being_recorded(const Graph& graph) {
  const std::lock_guard<std::mutex> lock(mutex);
  return !native_graphs().at(graph.get_id()).empty();
}
void set_queues(const Graph& graph, std::vector<sycl::queue> queues) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = native_graphs().find(graph.get_id()); found != native_graphs().end())
    found->second = std::move(queues);
}
void leave_stuck(const Graph& graph) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = native_graphs().find(graph.get_id()); found != native_graphs().end())
    stuck().insert(stuck().end(), found->second.begin(), found->second.end());
}

void refuse(const char* what) { throw sycl::exception(sycl::make_error_code(sycl::errc::feature_not_supported), what); }
#endif

}  // namespace

#if SYCL_EXT_ONEAPI_GRAPH >= 2
/// The constructor of a graph's base, which a command_graph calls: without the property of native recording where that is
/// to work.
void make_graph(Graph*, const sycl::context&, const sycl::device&,
                const sycl::property_list&) asm(XPUGRAPH_GRAPH_CLASS
                                                "C2ERKNS0_7contextERKNS0_6deviceERKNS0_13property_listE");
void make_graph(Graph* graph, const sycl::context& context, const sycl::device& device,
                const sycl::property_list& properties) {
  using Function = void (*)(void*, const sycl::context&, const sycl::device&, const sycl::property_list&);
  static const auto real =
      next<Function>(XPUGRAPH_GRAPH_CLASS "C2ERKNS0_7contextERKNS0_6deviceERKNS0_13property_listE");
  const bool wanted = properties.has_property<syclex::property::graph::enable_native_recording>();
  if (wanted) note("native");
  const bool strip = wanted && native() == Native::works;
  real(graph, context, device, strip ? sycl::property_list{} : properties);
  if (!strip) return;
  const std::lock_guard<std::mutex> lock(mutex);
  native_graphs()[graph->get_id()];
}
#endif

sycl::backend sycl::_V1::queue::get_backend() const noexcept {
  if (xpugraph::xpu_double::native() != Native::absent) return backend::ext_oneapi_level_zero;
  return get_context().get_backend();
}

syclex::queue_state sycl::_V1::queue::ext_oneapi_get_state() const {
  using Function = syclex::queue_state (*)(const queue*);
  static const auto real = next<Function>("_ZNK4sycl3_V15queue20ext_oneapi_get_stateEv");
  return is_stuck(*this) ? syclex::queue_state::recording : real(this);
}

void sycl::_V1::queue::wait_proxy(const detail::code_location& where) {
  note("wait");
  using Function = void (*)(queue*, const detail::code_location&);
  static const auto real = next<Function>("_ZN4sycl3_V15queue10wait_proxyERKNS0_6detail13code_locationE");
  real(this, where);
}

namespace sycl::_V1::ext::oneapi::experimental {

namespace detail {

void modifiable_command_graph::begin_recording(queue& recording, const property_list& properties) {
  note("begin_recording");
  if (is_stuck(recording)) throw exception(make_error_code(errc::invalid), "the queue records already");
  using Function = void (*)(modifiable_command_graph*, queue&, const property_list&);
  static const auto real = next<Function>(XPUGRAPH_GRAPH_CLASS "15begin_recordingERNS0_5queueERKNS0_13property_listE");
  real(this, recording, properties);
#if SYCL_EXT_ONEAPI_GRAPH >= 2
  set_queues(*this, {recording});
#endif
}

void modifiable_command_graph::end_recording() {
#if SYCL_EXT_ONEAPI_GRAPH >= 2
  try {
    note("end_recording");
  } catch (const exception&) {
    if (xpugraph::xpu_double::sticks_when_end_fails()) leave_stuck(*this);
    throw;
  }
  set_queues(*this, {});
#else
  note("end_recording");
#endif
  using Function = void (*)(modifiable_command_graph*);
  static const auto real = next<Function>(XPUGRAPH_GRAPH_CLASS "13end_recordingEv");
  real(this);
}

#if SYCL_EXT_ONEAPI_GRAPH >= 2
std::vector<node> modifiable_command_graph::get_nodes() const {
  if (is_native(*this)) refuse("get_nodes() is not supported for graphs created with enable_native_recording");
  using Function = std::vector<node> (*)(const modifiable_command_graph*);
  static const auto real = next<Function>(XPUGRAPH_CONST_GRAPH_CLASS "9get_nodesEv");
  return real(this);
}

bool modifiable_command_graph::empty() const {
  if (is_native(*this)) {
    note("empty");
    if (is_being_recorded(*this)) refuse("a graph that is being recorded does not tell");
  }
  using Function = bool (*)(const modifiable_command_graph*);
  static const auto real = next<Function>(XPUGRAPH_CONST_GRAPH_CLASS "5emptyEv");
  return real(this);
}
#endif

command_graph<graph_state::executable> modifiable_command_graph::finalize(const property_list& properties) const {
  note("finalize");
  using Function = command_graph<graph_state::executable> (*)(const modifiable_command_graph*, const property_list&);
  static const auto real = next<Function>(XPUGRAPH_CONST_GRAPH_CLASS "8finalizeERKNS0_13property_listE");
  return real(this, properties);
}

}  // namespace detail

}  // namespace sycl::_V1::ext::oneapi::experimental
