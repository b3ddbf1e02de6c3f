// SPDX-License-Identifier: MIT
/// @file ModuleWatch: notices that a module no longer is what was recorded: a parameter or buffer replaced or moved
/// (load_state_dict(assign=True), .to(), p.data = …), a submodule exchanged, train() called, a plain attribute toggled.
/// In-place changes of weights are seen by the graphs and are no change here.
/// Owns references to the watched dicts and to the recorded objects, so that memory the graphs read is never freed.
/// Throws nothing. Threads: check() needs the GIL.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

namespace xpugraph {

namespace py = pybind11;

class ModuleWatch {
 public:
  /// Watches that `dict[key]` stays `value`; `name` is what a message calls it.
  void add(py::dict dict, py::str key, py::object value, std::string name);
  /// Name of the first thing that changed, or an empty string. One dict lookup a watched entry.
  const std::string& changed() const;
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    py::dict dict;
    py::str key;
    py::object value;
    const void* data = nullptr;  ///< tensors only: where the recorded memory is
    bool is_tensor = false;
    bool by_value = false;  ///< plain attribute: an equal value of the same type is no change
    std::string name;
  };
  std::vector<Entry> entries_;
};

}  // namespace xpugraph
