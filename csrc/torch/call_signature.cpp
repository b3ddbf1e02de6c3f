// SPDX-License-Identifier: MIT
#include "torch/call_signature.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "core/error.h"
#include "torch/plain_value.h"

namespace xpugraph {
namespace {

using Reason = std::optional<std::string>;

std::string repr(PyObject* object) {
  try {
    std::string text = py::repr(py::handle(object));
    return text.size() <= 80 ? text : text.substr(0, 77) + "...";
  } catch (py::error_already_set&) {
    return std::string("a ") + Py_TYPE(object)->tp_name;
  }
}

std::string type_of(PyObject* object) { return Py_TYPE(object)->tp_name; }

bool is_parameter(PyObject* object) {
  static PyObject* const type = py::object(py::module_::import("torch.nn").attr("Parameter")).release().ptr();
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type;
}

const char* kind_name(Node::Kind kind) {
  switch (kind) {
    case Node::Kind::kTuple:
      return "tuple";
    case Node::Kind::kList:
      return "list";
    case Node::Kind::kDict:
      return "dict";
    default:
      return "object";
  }
}

std::vector<Node> parse_children(const py::handle& specs) {
  std::vector<Node> children;
  for (const py::handle& spec : specs) children.push_back(Node::parse(spec));
  return children;
}

}  // namespace

Node Node::parse(const py::handle& spec) {
  const auto parts = py::cast<py::tuple>(spec);
  const auto kind = py::cast<std::string>(parts[0]);
  Node node;
  if (kind == "tensor") {
    node.kind = Kind::kTensor;
    node.index = py::cast<std::size_t>(parts[1]);
  } else if (kind == "const") {
    node.value = parts[1];
  } else if (kind == "tuple" || kind == "list") {
    node.kind = kind == "tuple" ? Kind::kTuple : Kind::kList;
    node.children = parse_children(parts[1]);
  } else if (kind == "dict") {
    node.kind = Kind::kDict;
    for (const py::handle& key : parts[1]) node.keys.push_back(py::reinterpret_borrow<py::object>(key));
    node.children = parse_children(parts[2]);
  } else if (kind == "node") {
    node.kind = Kind::kOpaque;
    node.value = parts[1];
    node.context = parts[2];
    node.children = parse_children(parts[3]);
  } else {
    throw ConfigError("structure: unknown node kind '" + kind + "'");
  }
  return node;
}

std::string list_of(at::IntArrayRef sizes) {
  std::string text = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

std::string describe_shape(const TensorSpec& spec) {
  std::string text = "[";
  for (std::size_t i = 0; i < spec.shape.size(); ++i) {
    if (i) text += ", ";
    if (static_cast<std::int64_t>(i) != spec.batch_dim)
      text += std::to_string(spec.shape[i]);
    else if (spec.rows_per_item == 1)
      text += "batch";
    else
      text += std::to_string(spec.rows_per_item) + "*batch";
  }
  return text + "]";
}

CallSignature::CallSignature(std::vector<Parameter> parameters, std::vector<TensorSpec> tensors, at::Device device,
                             py::object flatten_node)
    : parameters_(std::move(parameters)),
      tensors_(std::move(tensors)),
      device_(device),
      flatten_node_(std::move(flatten_node)) {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (tensors_[i].written) written_.push_back(i);
  for (const Parameter& parameter : parameters_) {
    positional_count_ += parameter.positional;
    names_.push_back(py::reinterpret_steal<py::object>(PyUnicode_InternFromString(parameter.name.c_str())));
  }
}

Reason CallSignature::match(PyObject* args, PyObject* kwargs, Match& match) const {
  match.tensors.clear();
  match.tensors.resize(tensors_.size());
  match.batch_size = -1;
  const std::size_t given = PyTuple_GET_SIZE(args);
  if (given > positional_count_)
    return std::to_string(given) + " positional arguments were given; recorded with " +
           std::to_string(positional_count_);
  const Py_ssize_t named = kwargs ? PyDict_GET_SIZE(kwargs) : 0;
  Py_ssize_t used = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    PyObject* object = i < given ? PyTuple_GET_ITEM(args, i) : nullptr;
    if (!object && named && !parameter.name.empty()) {
      object = PyDict_GetItemWithError(kwargs, names_[i].ptr());
      used += object != nullptr;
    }
    if (!object) {
      PyErr_Clear();
      if (parameter.omittable) continue;
      return "argument '" + (parameter.name.empty() ? "*args[" + std::to_string(i) + "]" : parameter.name) +
             "' is missing";
    }
    if (Reason reason = match_node(parameter.node, object, match)) {
      // A reason that starts with '.' or '[' or ' ' continues the argument's name.
      return (parameter.name.empty() ? "args[" + std::to_string(i) + "]" : parameter.name) + *reason;
    }
  }
  if (used != named) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(kwargs, &position, &key, &value)) {
      const auto same = [&](const py::object& name) { return PyUnicode_Compare(name.ptr(), key) == 0; };
      const auto found = std::find_if(names_.begin(), names_.end(), same);
      if (found == names_.end() || static_cast<std::size_t>(found - names_.begin()) < given)
        return "argument '" + py::cast<std::string>(py::handle(key)) + "' is not among the recorded ones";
    }
  }
  return shared_with_written(match);
}

Reason CallSignature::shared_with_written(const Match& match) const {
  for (const std::size_t i : written_) {
    for (std::size_t j = 0; j < match.tensors.size(); ++j) {
      if (i != j && match.tensors[i].is_alias_of(match.tensors[j]))
        return tensors_[j].name + " shares memory with " + tensors_[i].name + ", which forward writes to";
    }
  }
  return std::nullopt;
}

Reason CallSignature::match_node(const Node& node, PyObject* object, Match& match) const {
  switch (node.kind) {
    case Node::Kind::kTensor:
      return match_tensor(tensors_[node.index], object, match);
    case Node::Kind::kConstant:
      if (same_value(node.value.ptr(), object)) return std::nullopt;
      return " is " + repr(object) + "; recorded with " + repr(node.value.ptr());
    case Node::Kind::kOpaque:
      return match_opaque(node, object, match);
    case Node::Kind::kDict: {
      if (!PyDict_CheckExact(object)) return " is a " + type_of(object) + "; recorded with a dict";
      for (std::size_t i = 0; i < node.children.size(); ++i) {
        const std::string at = "[" + repr(node.keys[i].ptr()) + "]";
        const auto child = py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(object, node.keys[i].ptr()));
        if (!child) {
          PyErr_Clear();
          return at + " is missing";
        }
        if (Reason reason = match_node(node.children[i], child.ptr(), match)) return at + *reason;
      }
      if (static_cast<std::size_t>(PyDict_GET_SIZE(object)) != node.children.size())
        return " has " + std::to_string(PyDict_GET_SIZE(object)) + " entries; recorded with " +
               std::to_string(node.children.size());
      return std::nullopt;
    }
    case Node::Kind::kTuple:
    case Node::Kind::kList: {
      const bool is_tuple = node.kind == Node::Kind::kTuple;
      if (is_tuple ? !PyTuple_CheckExact(object) : !PyList_CheckExact(object))
        return " is a " + type_of(object) + "; recorded with a " + kind_name(node.kind);
      const auto length = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(object));
      if (length != node.children.size())
        return " has " + std::to_string(length) + " items; recorded with " + std::to_string(node.children.size());
      for (std::size_t i = 0; i < length; ++i) {
        if (static_cast<Py_ssize_t>(i) >= PySequence_Fast_GET_SIZE(object)) return " changed while it was looked at";
        const auto child = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(object, i));
        if (Reason reason = match_node(node.children[i], child.ptr(), match))
          return "[" + std::to_string(i) + "]" + *reason;
      }
      return std::nullopt;
    }
  }
  return std::nullopt;
}

Reason CallSignature::match_opaque(const Node& node, PyObject* object, Match& match) const {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != node.value.ptr())
    return " is a " + type_of(object) + "; recorded with a " + repr(node.value.ptr());
  const auto flat = py::cast<py::tuple>(flatten_node_(py::handle(object)));
  const auto children = py::cast<py::list>(flat[0]);
  if (children.size() != node.children.size() || !same_value(node.context.ptr(), flat[1].ptr()))
    return " has other fields than were recorded";
  for (std::size_t i = 0; i < node.children.size(); ++i)
    if (Reason reason = match_node(node.children[i], children[i].ptr(), match))
      return "<" + std::to_string(i) + ">" + *reason;
  return std::nullopt;
}

Reason CallSignature::match_tensor(const TensorSpec& spec, PyObject* object, Match& match) const {
  if (!THPVariable_CheckExact(object) && !is_parameter(object))
    return " is a " + type_of(object) + "; recorded with a Tensor of shape " + describe_shape(spec);
  const at::Tensor& tensor = THPVariable_Unpack(object);
  const auto expected = [&] { return "; recorded for shape " + describe_shape(spec); };
  if (tensor.layout() != at::kStrided) return " is not a strided tensor";
  if (tensor.device() != device_) return " is on " + tensor.device().str() + "; recorded on " + device_.str();
  if (tensor.scalar_type() != spec.dtype)
    return std::string(" has dtype ") + c10::toString(tensor.scalar_type()) + "; recorded with " +
           c10::toString(spec.dtype);
  const auto sizes = tensor.sizes();
  if (sizes.size() != spec.shape.size()) return " has shape " + list_of(sizes) + expected();
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (static_cast<std::int64_t>(i) != spec.batch_dim && sizes[i] != spec.shape[i])
      return " has shape " + list_of(sizes) + expected();
  if (spec.batched()) {
    const std::int64_t rows = sizes[spec.batch_dim];
    const std::int64_t batch = rows / spec.rows_per_item;
    if (batch * spec.rows_per_item != rows) return " has shape " + list_of(sizes) + expected();
    if (match.batch_size >= 0 && match.batch_size != batch)
      return " has shape " + list_of(sizes) + expected() + ", and the batch size of the arguments before it is " +
             std::to_string(match.batch_size);
    match.batch_size = batch;
  }
  if (tensor.requires_grad() && at::GradMode::is_enabled())
    return " requires a gradient, which a recorded graph does not compute (call under torch.no_grad())";
  match.tensors[&spec - tensors_.data()] = tensor;
  return std::nullopt;
}

py::object build_object(const Node& node, const std::vector<at::Tensor>& tensors, const py::object& unflatten_node) {
  const auto child = [&](std::size_t i) { return build_object(node.children[i], tensors, unflatten_node); };
  switch (node.kind) {
    case Node::Kind::kTensor:
      return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensors[node.index]));
    case Node::Kind::kConstant:
      return node.value;
    case Node::Kind::kTuple: {
      py::tuple tuple(node.children.size());
      for (std::size_t i = 0; i < node.children.size(); ++i) tuple[i] = child(i);
      return std::move(tuple);
    }
    case Node::Kind::kDict: {
      py::dict dict;
      for (std::size_t i = 0; i < node.children.size(); ++i) dict[node.keys[i]] = child(i);
      return std::move(dict);
    }
    case Node::Kind::kList:
    case Node::Kind::kOpaque: {
      py::list list(node.children.size());
      for (std::size_t i = 0; i < node.children.size(); ++i) list[i] = child(i);
      if (node.kind == Node::Kind::kList) return std::move(list);
      return unflatten_node(node.value, node.context, list);
    }
  }
  return py::none();
}

}  // namespace xpugraph
