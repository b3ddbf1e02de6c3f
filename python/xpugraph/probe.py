# SPDX-License-Identifier: MIT
"""One eager run that is watched, before anything is recorded: what would go wrong unseen inside a graph."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .errors import BuildError

_WAITS = {
    torch.ops.aten._local_scalar_dense.default: "Tensor.item(), bool(tensor), int(tensor) or float(tensor)",
    torch.ops.aten.equal.default: "torch.equal",
}


def module_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, buffers and plain tensor attributes, with their names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
    for prefix, child in module.named_modules():
        for key, value in vars(child).items():
            if isinstance(value, torch.Tensor):
                yield (f"{prefix}.{key}" if prefix else key), value


def _where() -> str:
    """The line of the user's own code that is running, as ' (file:line)'."""
    for frame in reversed(traceback.extract_stack()):
        inside = "/torch/" in frame.filename or "/xpugraph/" in frame.filename or frame.filename.startswith("<")
        if not inside:
            return f" ({frame.filename}:{frame.lineno})"
    return ""


class Probe(TorchDispatchMode):
    """Watches one forward.

    Attributes:
        written: Indices of the input tensors that were written to in place.

    Raises (from inside the forward):
        BuildError: Before an operator changes a parameter or buffer, draws random numbers, or makes the host wait for
            the device.
    """

    def __init__(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._state = {_storage(tensor): name for name, tensor in module_tensors(module)}
        self._inputs = {_storage(tensor): i for i, tensor in enumerate(inputs)}
        self._device = inputs[0].device.type
        self.written: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Looks at one operator, then runs it."""
        kwargs = kwargs or {}
        self._look_for_writes(func, args, kwargs)
        self._look_for_waits(func, args, kwargs)
        return func(*args, **kwargs)

    def _look_for_writes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in pytree.tree_leaves(value):
                if not isinstance(tensor, torch.Tensor):
                    continue
                name = self._state.get(_storage(tensor))
                if name is not None:
                    raise BuildError(
                        f"forward changes '{name}' of the module in place ({func}{_where()}); a graph would do so once "
                        "for every replay, with padding rows included"
                    )
                if (index := self._inputs.get(_storage(tensor))) is not None:
                    self.written.add(index)

    def _look_for_waits(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise BuildError(
                f"forward draws random numbers ({func}{_where()}), which are not recorded: padding would shift the "
                "generator. Use eval(), or the eager backend"
            )
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not any(t.device.type == self._device for t in tensors):
            return
        what = _WAITS.get(func)
        if what is None and (
            torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
        ):
            what = "an operator whose result's shape depends on values"
        if what is None and _copies_to_host(func, args, kwargs):
            what = "a copy to the host"
        if what is not None:
            raise BuildError(
                f"forward makes the host wait for the device: {func} is {what}{_where()}; that cannot be recorded. "
                "Compute it on the device, or use the eager backend"
            )


def _copies_to_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if func is torch.ops.aten._to_copy.default:
        device = kwargs.get("device")
        return device is not None and torch.device(device).type == "cpu"
    if func is torch.ops.aten.copy_.default:
        return args[0].device.type == "cpu"
    return False


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        return id(tensor)


def run_probe(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], forward: Callable[[Sequence[torch.Tensor]], Any]
) -> tuple[Any, set[int]]:
    """Runs `forward(inputs)` once and says which inputs it writes to.

    Raises:
        BuildError: The forward cannot be recorded; names the operator and the line.
    """
    with Probe(module, inputs) as probe:
        result = forward(inputs)
    return result, probe.written
