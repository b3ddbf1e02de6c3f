# SPDX-License-Identifier: MIT
"""Recipe: what is needed to record a module again without its samples, and its JSON form."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .call import Argument, TensorArgument
from .errors import ConfigError
from .structure import Spec


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
        "tensors": [
            dict(vars(t), dtype=str(t.dtype).removeprefix("torch."), shape=list(t.shape), strides=list(t.strides))
            for t in recipe.tensors
        ],
    }


def recipe_from_dict(state: dict[str, Any]) -> Recipe:
    """The inverse of recipe_to_dict. Raises ConfigError, KeyError or TypeError for anything else."""
    tensors = []
    for entry in state["tensors"]:
        dtype = getattr(torch, entry["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise ConfigError(f"state: {entry['dtype']!r} is no dtype")
        tensors.append(
            TensorArgument(**dict(entry, dtype=dtype, shape=tuple(entry["shape"]), strides=tuple(entry["strides"])))
        )
    arguments = [Argument(**dict(entry, spec=_spec_from_json(entry["spec"]))) for entry in state["arguments"]]
    return Recipe(arguments, tensors, [int(size) for size in state["batch_sizes"]], torch.device(state["device"]))


def _spec_to_json(spec: Spec, name: str) -> list[Any]:
    kind = spec[0]
    if kind == "tensor":
        return ["tensor", spec[1]]
    if kind == "const":
        if spec[1] is None or type(spec[1]) in (bool, int, float, str):
            return ["const", spec[1]]
        raise ConfigError(f"{name}: {spec[1]!r} cannot be saved; None, bool, int, float and str can")
    if kind == "node":
        raise ConfigError(f"{name}: a {spec[1].__qualname__} cannot be saved; tuples, lists and dicts can")
    children = [_spec_to_json(child, name) for child in spec[-1]]
    if kind == "dict":
        if not all(type(key) in (str, int) for key in spec[1]):
            raise ConfigError(f"{name}: dict keys other than str and int cannot be saved")
        return ["dict", list(spec[1]), children]
    return [kind, children]


def _spec_from_json(state: list[Any]) -> Spec:
    kind = state[0]
    if kind in ("tensor", "const"):
        return (kind, state[1])
    children = [_spec_from_json(child) for child in state[-1]]
    if kind == "dict":
        return ("dict", list(state[1]), children)
    if kind in ("tuple", "list"):
        return (kind, children)
    raise ConfigError(f"state: {kind!r} is no kind of structure")
