# SPDX-License-Identifier: MIT
"""Recipe: what is needed to record a module again without its samples, and its JSON form."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from .call import Argument, TensorArgument, is_integer
from .errors import ConfigError
from .structure import Spec

_DEEPEST = 32  # of containers in containers
_MOST_ROWS = 1 << 20  # as BatchGrid
_MOST_ITEMS = 1 << 40  # of a tensor


@dataclasses.dataclass
class Recipe:
    """How a module is called, for which batch sizes, on which device."""

    arguments: list[Argument]
    tensors: list[TensorArgument]
    batch_sizes: list[int]
    device: torch.device


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Plain JSON values.

    Raises:
        ConfigError: An argument has no JSON form; names it.
    """
    return {
        "batch_sizes": list(recipe.batch_sizes),
        "device": str(recipe.device),
        "arguments": [dict(vars(a), spec=_spec_to_json(a.spec, a.name or "*args")) for a in recipe.arguments],
        "tensors": [_tensor_to_dict(t) for t in recipe.tensors],
    }


def recipe_from_dict(state: dict[str, Any]) -> Recipe:
    """The inverse of recipe_to_dict.

    Raises:
        ConfigError: `state` is anything else; it may come from outside, and graphs are recorded by it.
    """
    try:
        tensors = [_tensor_from_dict(entry) for entry in state["tensors"]]
        arguments = [Argument(**dict(entry, spec=_spec_from_json(entry["spec"]))) for entry in state["arguments"]]
        recipe = Recipe(arguments, tensors, list(state["batch_sizes"]), _device(state["device"]))
        _check(recipe)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"state: no recipe ({error!r})") from error
    return recipe


def _tensor_to_dict(tensor: TensorArgument) -> dict[str, Any]:
    ranges = None if tensor.ranges is None else [list(places) for places in tensor.ranges]
    shape, strides, dtype = list(tensor.shape), list(tensor.strides), str(tensor.dtype).removeprefix("torch.")
    return dict(vars(tensor), dtype=dtype, shape=shape, strides=strides, ranges=ranges)


def _tensor_from_dict(entry: dict[str, Any]) -> TensorArgument:
    dtype = getattr(torch, entry["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"state: {entry['dtype']!r} is no dtype")
    shape, strides, ranges = tuple(entry["shape"]), tuple(entry["strides"]), entry.get("ranges")
    if ranges is not None:
        ranges = tuple((low, high) for low, high in ranges)
    tensor = TensorArgument(**dict(entry, dtype=dtype, shape=shape, strides=strides, ranges=ranges))
    dim, dims = tensor.batch_dim, len(shape)
    numbers = (tensor.low, tensor.high)
    right = (
        isinstance(tensor.name, str)
        and all(_whole(length, 0) for length in (*tensor.shape, *tensor.strides))
        and math.prod(tensor.shape) <= _MOST_ITEMS
        and len(tensor.strides) == dims
        and (dim is None or _whole(dim, 0, dims - 1))
        and _whole(tensor.rows_per_item, 1)
        and all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        and tensor.low <= tensor.high
        and type(tensor.written) is bool
        and (ranges is None or _are_ranges(ranges, tensor))
    )
    if not right:
        raise ConfigError(f"state: {entry!r} describes no tensor")
    return tensor


def _are_ranges(ranges: tuple[tuple[Any, Any], ...], tensor: TensorArgument) -> bool:
    """Whether there is one range of int64 values (the end of randint, high + 1, included) for each place of an item."""
    places = tensor.rows_per_item * math.prod(
        length for dim, length in enumerate(tensor.shape) if dim != tensor.batch_dim
    )
    whole = all(type(low) is type(high) is int and -(1 << 63) <= low <= high < (1 << 63) - 1 for low, high in ranges)
    return is_integer(tensor.dtype) and whole and len(ranges) == places


def _device(name: str) -> torch.device:
    """The device; "sycl", which this process need not have, is PyTorch's PrivateUse1 by any name."""
    if type(name) is not str:  # torch takes numbers for an accelerator's index
        raise ConfigError(f"state: device {name!r} is no name of one")
    try:
        return torch.device(name)
    except RuntimeError as error:
        kind, colon, index = name.partition(":")
        if kind == "sycl" and torch._C._get_privateuse1_backend_name() == "privateuseone":
            return torch.device(f"privateuseone{colon}{index}")
        raise ConfigError(f"state: device {name!r} is unknown to this torch") from error


def _whole(value: Any, least: int, most: int = 1 << 40) -> bool:
    return type(value) is int and least <= value <= most


def _check(recipe: Recipe) -> None:
    """Raises ConfigError for what no call of a module is described by."""
    sizes, arguments = recipe.batch_sizes, recipe.arguments
    if not sizes or not all(_whole(size, 1, _MOST_ROWS) for size in sizes) or sorted(set(sizes)) != sizes:
        raise ConfigError(f"state: {sizes!r} are no batch sizes")
    if all(tensor.batch_dim is None for tensor in recipe.tensors):
        raise ConfigError("state: no tensor follows the batch")
    seen: list[int] = []
    for argument in arguments:
        before = len(seen)
        _collect(argument.spec, seen)
        right = isinstance(argument.name, str) and type(argument.positional) is type(argument.omittable) is bool
        if not right or (argument.omittable and len(seen) > before):
            raise ConfigError(f"state: argument {argument.name!r} is not as an argument can be")
    if seen != list(range(len(recipe.tensors))):
        raise ConfigError(f"state: the arguments hold the tensors {seen}, of {len(recipe.tensors)}")
    names = [argument.name for argument in arguments if argument.name or not argument.positional]
    order = [argument.positional for argument in arguments]
    if "" in names or len(set(names)) < len(names) or sorted(order, reverse=True) != order:
        raise ConfigError(f"state: no function has the arguments {names}")


def _collect(spec: Spec, seen: list[int]) -> None:
    if spec[0] == "tensor":
        seen.append(spec[1])
    elif spec[0] != "const":
        for child in spec[-1]:
            _collect(child, seen)


def _spec_to_json(spec: Spec, name: str, depth: int = 0) -> list[Any]:
    kind = spec[0]
    if depth > _DEEPEST:
        raise ConfigError(f"{name}: containers nested deeper than {_DEEPEST} cannot be saved")
    if kind == "tensor":
        return ["tensor", spec[1]]
    if kind == "const":
        if not _plain(spec[1]):
            raise ConfigError(f"{name}: {spec[1]!r} cannot be saved; None, bool, int, finite float and str can")
        return ["const", spec[1]]
    if kind == "node":
        raise ConfigError(f"{name}: a {spec[1].__qualname__} cannot be saved; tuples, lists and dicts can")
    children = [_spec_to_json(child, name, depth + 1) for child in spec[-1]]
    if kind == "dict":
        if not all(type(key) in (str, int) for key in spec[1]):
            raise ConfigError(f"{name}: dict keys other than str and int cannot be saved")
        return ["dict", list(spec[1]), children]
    return [kind, children]


def _plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))


def _spec_from_json(state: list[Any], depth: int = 0) -> Spec:
    if type(state) is not list or depth > _DEEPEST:
        raise ConfigError(f"state: {state!r} is no structure, or it is nested too deep")
    kind = state[0]
    if (kind == "tensor" and len(state) == 2 and type(state[1]) is int) or (
        kind == "const" and len(state) == 2 and _plain(state[1])
    ):
        return (kind, state[1])
    if kind in ("tuple", "list") and len(state) == 2 and type(state[1]) is list:
        return (kind, [_spec_from_json(child, depth + 1) for child in state[1]])
    if kind == "dict" and len(state) == 3 and type(state[1]) is type(state[2]) is list:
        keys = state[1]
        if all(type(key) in (str, int) for key in keys) and len(set(keys)) == len(keys) == len(state[2]):
            return ("dict", list(keys), [_spec_from_json(child, depth + 1) for child in state[2]])
    raise ConfigError(f"state: {kind!r} is no kind of structure, or it has other parts than such have")
