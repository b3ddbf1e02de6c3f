// SPDX-License-Identifier: MIT
/// xpugraph._C: registration only.
#include <torch/csrc/utils/pybind.h>

#include <memory>

#ifdef XPUGRAPH_WITH_SYCL
#include "bindings/sycl_bindings.h"
#endif
#include "core/batch_grid.h"
#include "core/batch_plan.h"
#include "core/error.h"
#include "torch/graphed_call.h"
#include "torch/runtimes.h"

namespace py = pybind11;
using namespace xpugraph;

namespace {

/// GraphedModule's lock may be held by a call that waits for the device, whose operators may need the GIL.
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

/// Each C++ error becomes the Python class of the same name in xpugraph.errors.
void raise_in_python(const char* name, const std::exception& error) {
  const py::object type = py::module_::import("xpugraph.errors").attr(name);
  PyErr_SetString(type.ptr(), error.what());
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const ConfigError& e) {
    raise_in_python("ConfigError", e);
  } catch (const InputError& e) {
    raise_in_python("InputError", e);
  } catch (const StateError& e) {
    raise_in_python("StateError", e);
  } catch (const CaptureError& e) {
    raise_in_python("CaptureError", e);
  } catch (const OutOfMemoryError& e) {
    raise_in_python("OutOfMemoryError", e);
  } catch (const DeviceError& e) {
    raise_in_python("DeviceError", e);
  } catch (const Error& e) {
    raise_in_python("XPUGraphError", e);
  }
}

std::unique_ptr<GraphedCall> make_graphed_call(const at::Device& device, const BatchGrid& grid,
                                               std::vector<Parameter> parameters, std::vector<TensorSpec> inputs,
                                               const py::tuple& result, std::vector<TensorSpec> outputs,
                                               bool copy_outputs, std::size_t pool_limit_bytes, py::object flatten_node,
                                               py::object unflatten_node, py::object reject) {
  std::unique_ptr<GraphedModule> module;
  {
    const py::gil_scoped_release release;
    module = std::make_unique<GraphedModule>(runtime_for(device), device, grid, inputs, std::move(outputs),
                                             GraphedModuleOptions{copy_outputs, pool_limit_bytes});
  }
  CallSignature signature(std::move(parameters), std::move(inputs), device, std::move(flatten_node));
  return std::make_unique<GraphedCall>(std::move(module), std::move(signature), Node::parse(result),
                                       std::move(unflatten_node), std::move(reject));
}

void bind_core(py::module_& m) {
  py::class_<BatchGrid>(m, "BatchGrid")
      .def_static("regular", &BatchGrid::regular, py::arg("largest_seen"), py::arg("cap"))
      .def_static("from_sizes", &BatchGrid::from_sizes, py::arg("sizes"))
      .def_property_readonly("sizes", &BatchGrid::sizes)
      .def_property_readonly("largest", &BatchGrid::largest)
      .def("ceil", &BatchGrid::ceil, py::arg("batch"));
  py::class_<Chunk>(m, "Chunk")
      .def_readonly("size", &Chunk::size)
      .def_readonly("offset", &Chunk::offset)
      .def_readonly("rows", &Chunk::rows);
  py::class_<PoolStats>(m, "PoolStats")
      .def_readonly("reserved", &PoolStats::reserved)
      .def_readonly("used", &PoolStats::used)
      .def_readonly("peak_used", &PoolStats::peak_used);
}

void bind_torch(py::module_& m) {
  py::class_<TensorSpec>(m, "TensorSpec")
      .def(py::init([](std::string name, at::ScalarType dtype, std::vector<std::int64_t> shape,
                       std::vector<std::int64_t> strides, std::int64_t batch_dim, std::int64_t rows_per_item,
                       bool written) {
             return TensorSpec{std::move(name), dtype,         std::move(shape), std::move(strides),
                               batch_dim,       rows_per_item, written};
           }),
           py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("strides"), py::arg("batch_dim") = -1,
           py::arg("rows_per_item") = 1, py::arg("written") = false);
  py::class_<Parameter>(m, "Parameter")
      .def(py::init([](std::string name, bool positional, bool omittable, const py::tuple& node) {
             return Parameter{std::move(name), positional, omittable, Node::parse(node)};
           }),
           py::arg("name"), py::arg("positional"), py::arg("omittable"), py::arg("node"));
  py::class_<ModuleWatch>(m, "ModuleWatch")
      .def(py::init<>())
      .def("add", &ModuleWatch::add, py::arg("group"), py::arg("key"), py::arg("value"), py::arg("name"))
      .def("add_size", &ModuleWatch::add_size, py::arg("group"), py::arg("name"))
      .def("add_items", &ModuleWatch::add_items, py::arg("items"), py::arg("name"))
      .def("changed", &ModuleWatch::changed)
      .def("__len__", &ModuleWatch::size);
  py::class_<GraphedCall>(m, "GraphedCall")
      .def(py::init(&make_graphed_call), py::arg("device"), py::arg("grid"), py::arg("parameters"), py::arg("inputs"),
           py::arg("result"), py::arg("outputs"), py::arg("copy_outputs"), py::arg("pool_limit_bytes"),
           py::arg("flatten_node"), py::arg("unflatten_node"), py::arg("reject"))
      .def("__call__", &GraphedCall::operator())
      .def(
          "trial",
          [](GraphedCall& call, std::int64_t size, const py::args& args, const py::kwargs& kwargs) {
            return call.trial(args, kwargs, size);
          },
          py::arg("size"))
      .def("need_unchanged", &GraphedCall::need_unchanged)
      .def(
          "publish", [](GraphedCall& call, std::int64_t size) { call.module().publish(size); }, py::arg("size"),
          ReleaseGil())
      .def("record", &GraphedCall::record, py::arg("size"), py::arg("forward"), py::arg("publish") = true)
      .def("replay", &GraphedCall::replay, py::arg("size"))
      .def("serve", &GraphedCall::serve, py::arg("watch"))
      .def("report_seen", &GraphedCall::report_seen, py::arg("times"), py::arg("largest"), py::arg("on_seen"))
      .def(
          "static_inputs", [](GraphedCall& call, std::int64_t size) { return call.module().static_inputs(size); },
          py::arg("size"), ReleaseGil())
      .def(
          "set_costs",
          [](GraphedCall& call, std::map<std::int64_t, double> costs, double min_gain, double exact_gain) {
            call.module().set_costs(std::move(costs), {min_gain, exact_gain});
          },
          py::arg("costs"), py::arg("min_gain"), py::arg("exact_gain"), ReleaseGil())
      .def(
          "plan", [](GraphedCall& call, std::int64_t batch_size) { return call.module().plan(batch_size); },
          py::arg("batch_size"), ReleaseGil())
      .def(
          "drop", [](GraphedCall& call, std::int64_t size) { call.module().drop(size); }, py::arg("size"), ReleaseGil())
      .def(
          "nodes", [](GraphedCall& call, std::int64_t size) { return call.module().nodes(size); }, py::arg("size"),
          ReleaseGil())
      .def(
          "pool_bytes_of", [](GraphedCall& call, std::int64_t size) { return call.module().pool_bytes_of(size); },
          py::arg("size"), ReleaseGil())
      .def_property_readonly("sizes",
                             py::cpp_function([](GraphedCall& call) { return call.module().sizes(); }, ReleaseGil()))
      .def_property_readonly(
          "pool_stats", py::cpp_function([](GraphedCall& call) { return call.module().pool_stats(); }, ReleaseGil()))
      .def_property_readonly("input_bytes", [](GraphedCall& call) { return call.module().input_bytes(); })
      .def_property_readonly(
          "recordings", py::cpp_function([](GraphedCall& call) { return call.module().recordings(); }, ReleaseGil()))
      .def_property_readonly("replays",
                             py::cpp_function([](GraphedCall& call) { return call.module().replays(); }, ReleaseGil()))
      .def_property_readonly("calls", &GraphedCall::calls);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ core of xpugraph. Use it through the xpugraph package.";
  py::register_exception_translator(translate);
  m.def(
      "storage_id",
      [](const at::Tensor& tensor) {
        return tensor.has_storage() ? reinterpret_cast<std::uintptr_t>(tensor.storage().unsafeGetStorageImpl()) : 0;
      },
      py::arg("tensor"),
      "Address of a tensor's storage object; 0 without one. Makes no Python object that would hold it.");
  m.def("runtimes", &built_runtimes, "Names of the graph runtimes this build has.");
  bind_core(m);
  bind_torch(m);
#ifdef XPUGRAPH_WITH_SYCL
  bind_sycl(m);
#endif
}
