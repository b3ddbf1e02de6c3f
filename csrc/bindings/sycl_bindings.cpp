// SPDX-License-Identifier: MIT
#include "bindings/sycl_bindings.h"

#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <optional>

#include "core/error.h"
#include "runtime/sycl_cpu_hooks.h"
#include "runtime/sycl_engine.h"
#include "runtime/sycl_streams.h"
#include "torch/runtimes.h"
#include "torch/sycl_device.h"
#include "torch/sycl_generator.h"
#include "torch/sycl_kernel.h"

namespace py = pybind11;

namespace xpugraph {

namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

GraphRuntime& runtime() { return *runtime_for(c10::Device(c10::DeviceType::PrivateUse1, 0)); }

Stream stream_or_current(std::optional<int> id) { return id ? sycl_cpu::stream(*id) : runtime().current_stream(0); }

std::optional<std::string> missing() {
  std::string why;
  if (sycl_cpu::available(&why)) return std::nullopt;
  return why;
}

py::dict memory_stats() {
  const MemoryStats stats = sycl_device::memory_stats();
  py::dict result;
  result["reserved_bytes"] = stats.reserved;
  result["allocated_bytes"] = stats.used;
  result["peak_allocated_bytes"] = stats.peak_used;
  result["segments"] = stats.segments;
  result["blocks"] = stats.blocks;
  result["device_allocations"] = stats.device_allocations;
  result["device_frees"] = stats.device_frees;
  result["retries"] = stats.retries;
  result["failures"] = stats.failures;
  return result;
}

py::dict pool_stats(PoolId pool) {
  const PoolStats stats = runtime().pool_stats(pool);
  py::dict result;
  result["reserved_bytes"] = stats.reserved;
  result["used_bytes"] = stats.used;
  result["peak_used_bytes"] = stats.peak_used;
  return result;
}

py::dict recorded() {
  const sycl_engine::Recorded counts = sycl_engine::recorded();
  py::dict result;
  result["native recording"] = counts.native;
  result["command graph"] = counts.command_graph;
  result["refusal"] = counts.refusal;
  return result;
}

/// A graph waits for its replays before it goes, and they may be running an operator written in Python.
struct WithoutGil {
  void operator()(Executable* graph) const {
    std::optional<py::gil_scoped_release> release;
    if (PyGILState_Check() != 0) release.emplace();
    delete graph;
  }
};

/// Arguments are tensors and whole numbers; the call returns before the kernel runs.
void launch(const sycl_device::Kernel& kernel, const py::args& args) {
  sycl_device::Kernel::Launch launch(kernel);
  for (const py::handle argument : args) {
    if (THPVariable_Check(argument.ptr())) {
      launch.add(THPVariable_Unpack(argument.ptr()));
    } else {
      launch.add(py::cast<std::int64_t>(argument));
    }
  }
  const py::gil_scoped_release release;  // a full stream makes the host wait, maybe for an operator written in Python
  std::move(launch).submit();
}

}  // namespace

void bind_sycl(py::module_& module) {
  py::module_ sycl = module.def_submodule("sycl", "The sycl torch device and bare capture and replay on it.");
  sycl.def("missing", &missing, "Why there is no SYCL CPU device, or None when there is one.");
  sycl.def("describe", &sycl_cpu::describe);
  sycl.def("build", &sycl_engine::build, "The SYCL that this extension was compiled against.");
  sycl.def("devices", &sycl_engine::devices, "All devices that SYCL sees, with the engine that records on each.");
  sycl.def("recorded", &recorded,
           "Graphs recorded in this process by engine, and why native recording refused or failed last.");
  sycl.def("enable", &sycl_device::enable, py::arg("worker_threads") = 0);
  sycl.def("drain", &sycl_cpu::drain, ReleaseGil());
  sycl.def("set_gather", &sycl_device::set_gather);
  sycl.def("is_capturing", &sycl_device::is_capturing);
  sycl.def("captured_random_ops", &sycl_device::captured_random_ops);
  sycl.def("default_generator", [] { return sycl_device::default_generator(); });

  sycl.def("memory_stats", &memory_stats);
  sycl.def("reset_peak_memory", &sycl_device::reset_peak_memory);
  sycl.def("empty_cache", &sycl_device::empty_cache, ReleaseGil());
  sycl.def("set_memory_limit", &sycl_device::set_memory_limit);

  py::class_<Executable, std::unique_ptr<Executable, WithoutGil>>(
      sycl, "Graph", "A recorded graph. Keep the tensors it reads and its pool until it is gone.")
      .def_property_readonly("nodes", &Executable::nodes)
      .def(
          "replay",
          [](Executable& self, std::optional<int> stream) { runtime().replay(self, stream_or_current(stream)); },
          py::arg("stream") = py::none(), ReleaseGil());
  py::class_<sycl_device::Kernel>(sycl, "Kernel", "A compiled function, launched on the calling thread's stream.")
      .def(py::init<std::string, std::uintptr_t, std::size_t>(), py::arg("name"), py::arg("function"),
           py::arg("arguments"))
      .def_property_readonly("name", &sycl_device::Kernel::name)
      .def("__call__", &launch);
  sycl.def("create_pool", [] { return runtime().create_pool(0); });
  sycl.def("release_pool", [](PoolId pool) { runtime().release_pool(pool); }, ReleaseGil());
  sycl.def("pool_stats", &pool_stats);
  sycl.def("begin_capture", [](PoolId pool) { runtime().begin_capture(0, pool); }, ReleaseGil());
  sycl.def(
      "end_capture", [] { return std::unique_ptr<Executable, WithoutGil>(runtime().end_capture().release()); },
      ReleaseGil());
  sycl.def("abort_capture", [] { runtime().abort_capture(); }, ReleaseGil());
  sycl.def(
      "synchronize", [](std::optional<int> stream) { runtime().synchronize(stream_or_current(stream)); },
      py::arg("stream") = py::none(), ReleaseGil());
}

}  // namespace xpugraph
