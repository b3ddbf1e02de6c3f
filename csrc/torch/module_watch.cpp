// SPDX-License-Identifier: MIT
#include "torch/module_watch.h"

#include <torch/csrc/autograd/python_variable.h>

namespace xpugraph {
namespace {

const void* data_of(const at::Tensor& tensor) { return tensor.has_storage() ? tensor.const_data_ptr() : nullptr; }

bool is_plain(PyObject* object) {
  return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
         PyUnicode_CheckExact(object);
}

/// Changes with every write to the dict (PEP 509). Python 3.12 gave the field up: there it is 0, which is never current.
std::uint64_t version_of(const py::dict& dict) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(dict.ptr())->ma_version_tag;
#else
  return 0;
#endif
}

}  // namespace

void ModuleWatch::add(py::dict dict, py::str key, py::object value, std::string name) {
  const auto [position, inserted] = group_of_.emplace(dict.ptr(), groups_.size());
  if (inserted) groups_.push_back({std::move(dict), 0, {}});
  if (THPVariable_Check(value.ptr())) {
    const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
    memory_.push_back({tensor, data_of(tensor)});
    memory_names_.push_back(name);
    if (tensor.has_storage()) storages_.push_back(tensor.storage());
  }
  const bool by_value = is_plain(value.ptr());
  groups_[position->second].entries.push_back({std::move(key), std::move(value), by_value, std::move(name)});
  ++size_;
}

const std::string& ModuleWatch::changed() {
  static const std::string nothing;
  for (const Group& group : groups_) __builtin_prefetch(group.dict.ptr());
  for (const Memory& memory : memory_) __builtin_prefetch(memory.tensor.unsafeGetTensorImpl());
  for (Group& group : groups_) {
    const std::uint64_t version = version_of(group.dict);
    if (version != 0 && version == group.version) continue;
    if (const std::string* name = changed_entry(group)) return *name;
    group.version = version;
  }
  for (std::size_t i = 0; i < memory_.size(); ++i)
    if (data_of(memory_[i].tensor) != memory_[i].data) return memory_names_[i];
  return nothing;
}

const std::string* ModuleWatch::changed_entry(const Group& group) {
  for (const Entry& entry : group.entries) {
    PyObject* now = PyDict_GetItemWithError(group.dict.ptr(), entry.key.ptr());
    if (now == entry.value.ptr()) continue;
    if (!now || !entry.by_value || Py_TYPE(now) != Py_TYPE(entry.value.ptr())) {
      PyErr_Clear();
      return &entry.name;
    }
    const int equal = PyObject_RichCompareBool(now, entry.value.ptr(), Py_EQ);
    if (equal < 0) PyErr_Clear();
    if (equal != 1) return &entry.name;
  }
  return nullptr;
}

}  // namespace xpugraph
