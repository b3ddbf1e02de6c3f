// SPDX-License-Identifier: MIT
#include "torch/module_watch.h"

#include <torch/csrc/autograd/python_variable.h>

#include "torch/plain_value.h"

namespace xpugraph {
namespace {

const void* data_of(const at::Tensor& tensor) { return tensor.has_storage() ? tensor.const_data_ptr() : nullptr; }

bool is_plain(PyObject* object) {
  return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
         PyUnicode_CheckExact(object) || PyTuple_CheckExact(object);
}

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
std::uint64_t writes = 1;  // to any watched dict, of any watch; the GIL guards it

int on_write(PyDict_WatchEvent, PyObject*, PyObject*, PyObject*) {
  ++writes;
  return 0;
}

/// -1: the interpreter has no watcher left.
int watcher() {
  static const int id = [] {
    const int made = PyDict_AddWatcher(on_write);
    if (made < 0) PyErr_Clear();
    return made;
  }();
  return id;
}
#endif

/// Lets version_of tell of writes to `dict` from now on. It stays so: another watch may look at the same dict.
void watch_writes(const py::dict& dict) {
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
  if (watcher() >= 0 && PyDict_Watch(watcher(), dict.ptr()) < 0) throw py::error_already_set();
#else
  (void)dict;
#endif
}

/// Changes with every write to the dict; 0, which is never current, where nothing tells. Python up to 3.11 counts in the
/// dict (PEP 509), 3.12 calls watchers. What 3.13 does with attributes that lie in the object was not tried.
std::uint64_t version_of(const py::dict& dict) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(dict.ptr())->ma_version_tag;
#elif PY_VERSION_HEX < 0x030D0000
  return watcher() >= 0 ? writes : 0;
#else
  return 0;
#endif
}

}  // namespace

ModuleWatch::Group& ModuleWatch::group(py::dict dict) {
  const auto [position, inserted] = group_of_.emplace(dict.ptr(), groups_.size());
  if (inserted) {
    watch_writes(dict);
    groups_.push_back({std::move(dict), 0, -1, {}, {}});
  }
  return groups_[position->second];
}

void ModuleWatch::add(py::dict dict, py::str key, py::object value, std::string name) {
  watch_memory(value, name);
  const bool by_value = is_plain(value.ptr());
  group(std::move(dict)).entries.push_back({std::move(key), std::move(value), by_value, std::move(name)});
  ++size_;
}

void ModuleWatch::add_size(py::dict dict, std::string name) {
  Group& watched = group(std::move(dict));
  watched.size = PyDict_GET_SIZE(watched.dict.ptr());
  watched.size_name = std::move(name);
  ++size_;
}

void ModuleWatch::add_items(py::list list, std::string name) {
  Items items{std::move(list), {}, std::move(name)};
  for (const py::handle& item : items.list) {
    items.values.push_back(py::reinterpret_borrow<py::object>(item));
    watch_memory(items.values.back(), items.name);
  }
  items_.push_back(std::move(items));
  ++size_;
}

void ModuleWatch::watch_memory(const py::object& value, const std::string& name) {
  if (!THPVariable_Check(value.ptr())) return;
  const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
  memory_.push_back({tensor, data_of(tensor)});
  memory_names_.push_back(name);
  if (tensor.has_storage()) storages_.push_back(tensor.storage());
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
  for (const Items& items : items_) {
    if (static_cast<std::size_t>(PyList_GET_SIZE(items.list.ptr())) != items.values.size()) return items.name;
    for (std::size_t i = 0; i < items.values.size(); ++i) {
      PyObject* now = PyList_GET_ITEM(items.list.ptr(), i);
      PyObject* then = items.values[i].ptr();
      if (now != then && !(is_plain(then) && same_value(now, then))) return items.name;
    }
  }
  for (std::size_t i = 0; i < memory_.size(); ++i)
    if (data_of(memory_[i].tensor) != memory_[i].data) return memory_names_[i];
  return nothing;
}

const std::string* ModuleWatch::changed_entry(const Group& group) {
  for (const Entry& entry : group.entries) {
    PyObject* now = PyDict_GetItemWithError(group.dict.ptr(), entry.key.ptr());
    if (now == entry.value.ptr()) continue;
    PyErr_Clear();
    if (!now || !entry.by_value || !same_value(now, entry.value.ptr())) return &entry.name;
  }
  if (group.size >= 0 && PyDict_GET_SIZE(group.dict.ptr()) != group.size) return &group.size_name;
  return nullptr;
}

}  // namespace xpugraph
