// SPDX-License-Identifier: MIT
#include "torch/module_watch.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>

namespace xpugraph {
namespace {

const void* data_of(PyObject* tensor) {
  const at::Tensor& unpacked = THPVariable_Unpack(tensor);
  return unpacked.has_storage() ? unpacked.const_data_ptr() : nullptr;
}

bool is_plain(PyObject* object) {
  return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
         PyUnicode_CheckExact(object) || PyTuple_CheckExact(object);
}

}  // namespace

void ModuleWatch::add(py::dict dict, py::str key, py::object value, std::string name) {
  Entry entry{std::move(dict), std::move(key), std::move(value), nullptr, false, false, std::move(name)};
  entry.is_tensor = THPVariable_Check(entry.value.ptr());
  entry.by_value = is_plain(entry.value.ptr());
  if (entry.is_tensor) entry.data = data_of(entry.value.ptr());
  entries_.push_back(std::move(entry));
}

const std::string& ModuleWatch::changed() const {
  static const std::string nothing;
  for (const Entry& entry : entries_) {
    PyObject* now = PyDict_GetItemWithError(entry.dict.ptr(), entry.key.ptr());
    if (now == entry.value.ptr()) {
      if (entry.is_tensor && data_of(now) != entry.data) return entry.name;
      continue;
    }
    if (!now) {
      PyErr_Clear();
      return entry.name;
    }
    if (!entry.by_value || Py_TYPE(now) != Py_TYPE(entry.value.ptr())) return entry.name;
    const int equal = PyObject_RichCompareBool(now, entry.value.ptr(), Py_EQ);
    if (equal < 0) PyErr_Clear();
    if (equal != 1) return entry.name;
  }
  return nothing;
}

}  // namespace xpugraph
