# SPDX-License-Identifier: MIT
"""What eager tells before anything is recorded: the result's structure and batch dimensions, and what is written to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .batching import output_dims, take_rows
from .call import TensorArgument, rebuild_call
from .errors import BuildError
from .probe import Probe
from .recipe import Recipe
from .structure import Leaves, Spec, describe, first_difference


class EagerRaisesError(BuildError):
    """The forward raises in plain eager mode."""


@dataclasses.dataclass(frozen=True)
class Observation:
    """What two eager runs told.

    Attributes:
        result: Structure of the result.
        outputs: The tensors of the result, described as arguments are.
        casts_to_integers: The forward makes integers of floats, which may be indices.
    """

    result: Spec
    outputs: list[TensorArgument]
    casts_to_integers: bool


def observe(
    module: torch.nn.Module,
    recipe: Recipe,
    named: Iterable[tuple[str, torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    rows: int,
) -> Observation:
    """Runs eager at two batch sizes, and notes in `recipe` which arguments the forward writes to.

    Args:
        module: Whose forward runs.
        recipe: How it is called.
        named: The module's tensors, by the name that a message calls them.
        inputs: The tensors of a call of `rows` rows; they stay as they are.
        rows: More than the smallest recorded size.

    Raises:
        EagerRaisesError: The forward raises at `rows`.
        BuildError: A graph could not do what the forward does; says what.
    """
    many, few = Leaves(), Leaves()
    tensors = [x.clone() for x in inputs]
    places = [t.data_ptr() for t in tensors]
    args, kwargs = rebuild_call(recipe.arguments, tensors)
    try:
        with Probe(named, tensors) as probe:
            result = module(*args, **kwargs)
    except BuildError:
        raise
    except Exception as error:
        raise EagerRaisesError(f"eager itself raises at batch size {rows}: {error}") from error
    _need_same_arguments(recipe, args, kwargs, tensors, places)
    spec = describe(result, "output", many)
    fewer, result = _run_fewer(module, recipe, inputs, rows)
    other = describe(result, "output", few)
    if difference := first_difference(spec, other, "output"):
        raise BuildError(f"the result is built differently at batch sizes {rows} and {fewer}: {difference}")
    _note_written(recipe, probe.written)
    dims = output_dims(many.names, many.tensors, few.tensors, rows, fewer)
    for name, tensor in zip(many.names, many.tensors, strict=True):
        if tensor.device != recipe.device:
            raise BuildError(f"{name} is on {tensor.device}, and a graph only leaves results on {recipe.device}")
    outputs = [
        TensorArgument(name, t.dtype, tuple(t.shape), t.stride(), dim, per_item)
        for name, t, (dim, per_item) in zip(many.names, many.tensors, dims, strict=True)
    ]
    return Observation(spec, outputs, probe.casts_to_integers)


def _need_same_arguments(
    recipe: Recipe, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor], places: list[int]
) -> None:
    """A graph does not change Python objects, so a forward that changes its lists and dicts is not served."""
    leaves, values = Leaves(), iter(args)
    for argument in recipe.arguments:
        name = argument.name or "*args"
        value = next(values) if argument.positional else kwargs[argument.name]
        if difference := first_difference(argument.spec, describe(value, name, leaves), name):
            raise BuildError(f"forward changes its argument {name} ({difference}), which a graph would not do")
    for name, before, after, place in zip(leaves.names, tensors, leaves.tensors, places, strict=True):
        if before is not after or after.data_ptr() != place:
            raise BuildError(f"forward puts another tensor in the place of {name}, which a graph would not do")


def _run_fewer(module: torch.nn.Module, recipe: Recipe, inputs: Sequence[torch.Tensor], rows: int) -> tuple[int, Any]:
    """Eager at the next smaller recorded size that the forward takes."""
    failed: Exception | None = None
    for fewer in [size for size in reversed(recipe.batch_sizes) if size < rows] or [1]:
        try:
            tensors = [take_rows(x, t, 0, fewer).clone() for x, t in zip(inputs, recipe.tensors, strict=True)]
            args, kwargs = rebuild_call(recipe.arguments, tensors)
            return fewer, module(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  that size will be dropped and named when it is recorded
            failed = failed or error
    raise BuildError(f"eager itself raises at every batch size below {rows}: {failed}") from failed


def _note_written(recipe: Recipe, written: set[int]) -> None:
    for i in written:
        if recipe.tensors[i].batch_dim is None:
            raise BuildError(
                f"forward writes in place to {recipe.tensors[i].name}, which does not follow the batch; a batch served "
                "in chunks would write it more than once"
            )
        recipe.tensors[i].written = True
