# SPDX-License-Identifier: MIT
"""Pytrees of arguments and results: their description, their tensors, and how to build them again.

A description is a nested tuple that the C++ core parses: ``("tensor", index)``, ``("const", value)``,
``("tuple" | "list", children)``, ``("dict", keys, children)`` and ``("node", type, context, children)`` for everything
else that holds tensors (named tuples, dataclasses, mappings, and whatever is registered with ``torch.utils._pytree``).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .errors import ConfigError

Spec = tuple[Any, ...]

_CONSTANTS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    slice,
    range,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)


def flatten_node(value: Any) -> tuple[list[Any], Any]:
    """Children and context of a container that is no plain tuple, list or dict.

    Raises:
        TypeError: The value is no container that could be taken apart and built again.
    """
    kind = type(value)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return list(value), tuple(kind._fields)
    if kind in pytree.SUPPORTED_NODES:
        children, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
        return list(children), context
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value))
        return [getattr(value, name) for name in names], names
    if isinstance(value, Mapping):
        return list(value.values()), tuple(value.keys())
    raise TypeError(kind.__qualname__)


def unflatten_node(kind: type, context: Any, children: Sequence[Any]) -> Any:
    """The inverse of flatten_node."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*children)
    if kind in pytree.SUPPORTED_NODES:
        return pytree.SUPPORTED_NODES[kind].unflatten_fn(list(children), context)
    if dataclasses.is_dataclass(kind):
        value = object.__new__(kind)
        for name, child in zip(context, children, strict=True):
            object.__setattr__(value, name, child)
        return value
    return kind(dict(zip(context, children, strict=True)))  # type: ignore[call-arg]


@dataclasses.dataclass
class Leaves:
    """The tensors of a pytree in order, each with the name a user would write."""

    names: list[str] = dataclasses.field(default_factory=list)
    tensors: list[torch.Tensor] = dataclasses.field(default_factory=list)


def describe(value: Any, name: str, leaves: Leaves) -> Spec:
    """The description of `value`; its tensors are appended to `leaves`.

    Raises:
        ConfigError: Something in it is neither a tensor, a container nor a plain value that can be compared.
    """
    if isinstance(value, torch.Tensor):
        leaves.names.append(name)
        leaves.tensors.append(value)
        return ("tensor", len(leaves.tensors) - 1)
    kind = type(value)
    if kind in (tuple, list):
        return (kind.__name__, [describe(item, f"{name}[{i}]", leaves) for i, item in enumerate(value)])
    if kind is dict:
        keys = list(value)
        return ("dict", keys, [describe(value[key], f"{name}[{key!r}]", leaves) for key in keys])
    if isinstance(value, _CONSTANTS):
        return ("const", value)
    try:
        children, context = flatten_node(value)
    except TypeError:
        raise ConfigError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}; accepted are tensors, plain values (None, bool, "
            "int, float, str, dtype, …) and tuples, lists, dicts, named tuples, dataclasses, mappings and registered "
            "pytrees of them"
        ) from None
    names = context if isinstance(context, tuple) and len(context) == len(children) else range(len(children))
    specs = [
        describe(c, f"{name}.{n}" if isinstance(n, str) else f"{name}[{n!r}]", leaves)
        for n, c in zip(names, children, strict=True)
    ]
    return ("node", kind, context, specs)


def rebuild(spec: Spec, tensors: Sequence[torch.Tensor]) -> Any:
    """The pytree that `spec` describes around `tensors`."""
    kind = spec[0]
    if kind == "tensor":
        return tensors[spec[1]]
    if kind == "const":
        return spec[1]
    children = [rebuild(child, tensors) for child in spec[-1]]
    if kind == "tuple":
        return tuple(children)
    if kind == "list":
        return children
    if kind == "dict":
        return dict(zip(spec[1], children, strict=True))
    return unflatten_node(spec[1], spec[2], children)


def first_difference(a: Spec, b: Spec, name: str) -> str | None:
    """What differs first between two descriptions, or None when they are the same."""
    if a[0] != b[0]:
        return f"{name} is a {a[0]} and a {b[0]}"
    if a[0] == "tensor":
        return None
    if a[0] == "const":
        same = type(a[1]) is type(b[1]) and (a[1] is b[1] or a[1] == b[1])
        return None if same else f"{name} is {a[1]!r} and {b[1]!r}"
    if a[1:-1] != b[1:-1] or len(a[-1]) != len(b[-1]):
        return f"{name} has other entries"
    for i, (x, y) in enumerate(zip(a[-1], b[-1], strict=True)):
        label = f"{name}[{a[1][i]!r}]" if a[0] == "dict" else f"{name}[{i}]"
        if difference := first_difference(x, y, label):
            return difference
    return None
