// SPDX-License-Identifier: MIT
/// @file CallSignature: the shape of the calls a module was recorded for, and how one call is matched against it.
/// Owns references to the recorded constants, keys and types. Throws nothing for a call that does not match: it says why.
/// Threads: immutable after construction; match() needs the GIL.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <vector>

#include "torch/tensor_spec.h"

namespace xpugraph {

namespace py = pybind11;

/// A pytree of arguments or results. Tensors are leaves numbered in order; everything else is compared by value.
struct Node {
  enum class Kind { kTensor, kConstant, kTuple, kList, kDict, kOpaque };
  Kind kind = Kind::kConstant;
  std::size_t index = 0;         ///< kTensor: number of the leaf
  py::object value;              ///< kConstant: the value; kOpaque: the type
  py::object context;            ///< kOpaque: what the type's flattening says beside the children
  std::vector<py::object> keys;  ///< kDict: one a child
  std::vector<Node> children;

  /// From the nested tuples of xpugraph.structure: ("tensor", i), ("const", v), ("tuple"|"list", [..]),
  /// ("dict", keys, [..]), ("node", type, context, [..]).
  static Node parse(const py::handle& spec);
};

/// One parameter of forward.
struct Parameter {
  std::string name;        ///< empty for an item of *args
  bool positional = true;  ///< may be given by position
  bool omittable = false;  ///< recorded with its default value, so a call may leave it out
  Node node;
};

class CallSignature {
 public:
  /// @param flatten_node  Python callable (object) -> (children, context) for the types of kOpaque
  CallSignature(std::vector<Parameter> parameters, std::vector<TensorSpec> tensors, at::Device device,
                py::object flatten_node);

  struct Match {
    std::vector<at::Tensor> tensors;
    std::int64_t batch_size = 0;
  };
  /// Fills `match` and returns nothing; or says which argument differs, what was given and what was recorded.
  /// Dict entries match by key, in any order; arguments match by position or by name.
  std::optional<std::string> match(PyObject* args, PyObject* kwargs, Match& match) const;

  at::Device device() const { return device_; }

 private:
  std::optional<std::string> match_node(const Node& node, PyObject* object, Match& match) const;
  std::optional<std::string> match_tensor(const TensorSpec& spec, PyObject* object, Match& match) const;
  std::optional<std::string> match_opaque(const Node& node, PyObject* object, Match& match) const;

  /// The copies of two arguments that share memory would not: what is written to one would not be seen in the other.
  std::optional<std::string> shared_with_written(const Match& match) const;

  std::vector<Parameter> parameters_;
  std::vector<TensorSpec> tensors_;
  at::Device device_;
  py::object flatten_node_;
  std::vector<std::size_t> written_;  ///< tensors that forward writes to
  std::size_t positional_count_ = 0;
  std::vector<py::object> names_;  ///< interned, one a parameter
};

/// Builds the Python object that `node` describes around `tensors`.
/// @param unflatten_node  Python callable (type, context, children) -> object for kOpaque
py::object build_object(const Node& node, const std::vector<at::Tensor>& tensors, const py::object& unflatten_node);

}  // namespace xpugraph
