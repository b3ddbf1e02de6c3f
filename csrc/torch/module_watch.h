// SPDX-License-Identifier: MIT
/// @file ModuleWatch: notices that a module no longer is what was recorded: a parameter or buffer replaced or moved
/// (load_state_dict(assign=True), .to(), p.data = …), a submodule exchanged, train() called, a plain attribute toggled.
/// In-place changes of weights are seen by the graphs and are no change here.
/// Owns references to the watched dicts and to the recorded objects, so that memory the graphs read is never freed.
/// Throws nothing. Threads: needs the GIL.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace xpugraph {

namespace py = pybind11;

class ModuleWatch {
 public:
  /// Watches that `dict[key]` stays `value`; `name` is what a message calls it.
  void add(py::dict dict, py::str key, py::object value, std::string name);
  /// Watches that nothing is added to `dict` or removed from it.
  void add_size(py::dict dict, std::string name);
  /// Watches that `list` keeps its items.
  void add_items(py::list list, std::string name);
  /// Name of the first thing that changed, or an empty string. It runs in every call, when the work of the replay has
  /// pushed all of this out of the caches: entries are looked up only where their dict says it was written to.
  const std::string& changed();
  std::size_t size() const { return size_; }

 private:
  struct Entry {
    py::str key;
    py::object value;
    bool by_value;  ///< plain attribute: an equal value of the same type is no change
    std::string name;
  };
  struct Group {
    py::dict dict;
    std::uint64_t version = 0;  ///< of the dict when it was last found unchanged
    Py_ssize_t size = -1;       ///< number of keys; -1: not watched
    std::string size_name;
    std::vector<Entry> entries;
  };
  struct Items {
    py::list list;
    std::vector<py::object> values;
    std::string name;
  };
  struct Memory {
    at::Tensor tensor;
    const void* data;  ///< where the graphs read it
  };
  static const std::string* changed_entry(const Group& group);
  Group& group(py::dict dict);
  void watch_memory(const py::object& value, const std::string& name);

  std::vector<Group> groups_;
  std::unordered_map<PyObject*, std::size_t> group_of_;
  std::vector<Items> items_;
  std::vector<Memory> memory_;
  std::vector<std::string> memory_names_;
  std::vector<c10::Storage> storages_;  ///< keep what the graphs read alive
  std::size_t size_ = 0;
};

}  // namespace xpugraph
