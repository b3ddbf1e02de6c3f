# SPDX-License-Identifier: MIT
"""Calls: the arguments of a module taken apart into structure and tensors."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .errors import ConfigError
from .structure import Leaves, Spec, describe, first_difference, rebuild


@dataclasses.dataclass
class Argument:
    """One parameter of forward and what it was recorded with."""

    name: str
    positional: bool
    omittable: bool
    spec: Spec


def is_integer(dtype: torch.dtype) -> bool:
    """Whether values of this dtype may be indices; bool is none."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


@dataclasses.dataclass
class TensorArgument:
    """One tensor of a call.

    Attributes:
        name: As a user writes it, ``x`` or ``x['mask'][0]``.
        dtype: Never cast.
        shape: Of the largest sample.
        strides: Of the largest sample; tell the memory format.
        batch_dim: Which dimension follows the batch; None for a tensor that does not.
        rows_per_item: Length of that dimension over the batch size.
        low: Smallest value of the sample, for data made from the recipe alone.
        high: Largest value of the sample.
        ranges: Smallest and largest value at each place of an item, of integers with few places: columns of indices
            have ranges of their own. None: `low` and `high` hold everywhere.
        written: The forward writes to it in place.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    batch_dim: int | None = None
    rows_per_item: int = 1
    low: float = 0.0
    high: float = 0.0
    ranges: tuple[tuple[int, int], ...] | None = None
    written: bool = False

    @property
    def integer_range(self) -> tuple[int, int]:
        """Smallest and largest value as whole numbers, of which the next one is an int64 too."""
        least, most = -(1 << 63), (1 << 63) - 2
        return max(least, min(int(self.low), most)), max(least, min(int(self.high), most))

    def rows(self, batch_size: int) -> int:
        """Length of the batch dimension at `batch_size`."""
        return self.rows_per_item * batch_size


@dataclasses.dataclass
class Call:
    """One call taken apart: its arguments in the order of forward's parameters, defaults filled in, and its tensors."""

    arguments: list[Argument]
    leaves: Leaves

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments around other tensors."""
        return rebuild_call(self.arguments, tensors)


def rebuild_call(
    arguments: Sequence[Argument], tensors: Sequence[torch.Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a call around `tensors`."""
    args = tuple(rebuild(a.spec, tensors) for a in arguments if a.positional)
    kwargs = {a.name: rebuild(a.spec, tensors) for a in arguments if not a.positional}
    return args, kwargs


class CallForm:
    """Brings calls of a forward into the form in which rebuild_call() makes them, for whoever tells calls by it."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._signature = inspect.signature(forward)
        kinds = [parameter.kind for parameter in self._signature.parameters.values()]
        simple = all(
            kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds
        )
        self._positions = len(kinds) if simple else -1

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """By position what can be, with the defaults. Raises TypeError for a call that does not fit."""
        if not kwargs and len(args) == self._positions:
            return args, kwargs
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named = bound.kwargs
        others = sorted(name for name in named if name not in self._signature.parameters)
        return bound.args, {name: named[name] for name in [n for n in named if n not in others] + others}


def as_call(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A sample as arguments: a tuple or list is ``*args``, a dict ``**kwargs``, anything else the one argument."""
    if isinstance(sample, Mapping) and all(isinstance(key, str) for key in sample):
        return (), dict(sample)
    if type(sample) in (tuple, list):
        return tuple(sample), {}
    return (sample,), {}


def take_apart(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Binds a call to forward's signature.

    Raises:
        ConfigError: It does not fit, or holds something that is neither tensor, container nor plain value.
    """
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(f"samples: {error} (forward{signature})") from None
    bound.apply_defaults()
    leaves = Leaves()
    arguments: list[Argument] = []
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            arguments += [Argument("", True, False, describe(v, f"{name}[{i}]", leaves)) for i, v in enumerate(value)]
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments += [Argument(k, False, False, describe(value[k], k, leaves)) for k in sorted(value)]
        else:
            positional = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
            count = len(leaves.tensors)
            spec = describe(value, name, leaves)
            omittable = parameter.default is not inspect.Parameter.empty and _same(value, parameter.default)
            omittable = (
                omittable and len(leaves.tensors) == count
            )  # a default that is a tensor would have to be copied in
            known = "" if parameter.kind is inspect.Parameter.POSITIONAL_ONLY else name
            arguments.append(Argument(known, positional, omittable, spec))
    return Call(arguments, leaves)


def _same(value: Any, default: Any) -> bool:
    if value is default:
        return True
    return type(value) is type(default) and isinstance(value, (bool, int, float, str)) and value == default


def check_same_structure(calls: Sequence[Call]) -> None:
    """All samples differ in nothing but the batch.

    Raises:
        ConfigError: Names the argument that differs.
    """
    first = calls[0]
    for number, call in enumerate(calls[1:], start=1):
        if [a.name for a in call.arguments] != [a.name for a in first.arguments]:
            raise ConfigError(f"samples[{number}] has other arguments than samples[0]")
        for a, b in zip(first.arguments, call.arguments, strict=True):
            if difference := first_difference(a.spec, b.spec, a.name or "*args"):
                raise ConfigError(f"samples[0] and samples[{number}] differ in more than the batch: {difference}")
        for name, x, y in zip(first.leaves.names, first.leaves.tensors, call.leaves.tensors, strict=True):
            if x.dtype != y.dtype or x.device != y.device or x.dim() != y.dim():
                raise ConfigError(
                    f"samples[{number}]: {name} is {y.dtype} with {y.dim()} dimensions on {y.device}; "
                    f"in samples[0] it is {x.dtype} with {x.dim()} on {x.device}"
                )
