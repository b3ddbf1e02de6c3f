# SPDX-License-Identifier: MIT
"""Eager runs and captures that are watched: what would go wrong unseen inside a graph, and what a graph reads."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from . import _native
from .call import is_integer
from .errors import BuildError

_WAITS = {
    torch.ops.aten._local_scalar_dense.default: "Tensor.item(), bool(tensor), int(tensor) or float(tensor)",
    torch.ops.aten.equal.default: "torch.equal",
}
# Until 2.14 torch's XPU allocator records the end of such a use into the graph, and waits for that later
# (pytorch/pytorch#187931).
_RECORD_STREAM_HARMS = ("xpu",) if torch.__version__ < torch.torch_version.TorchVersion("2.14") else ()
_COPY_FROM_HOST_WAITS = ("cuda", "xpu")  # which no capture there allows; the copies of the sycl device are recorded

_VALUES_MATTER = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)


def _where() -> str:
    """The line of the user's own code that is running, as ' (file:line)'."""
    for frame in reversed(traceback.extract_stack()):
        inside = "/torch/" in frame.filename or "/xpugraph/" in frame.filename or frame.filename.startswith("<")
        if not inside:
            return f" ({frame.filename}:{frame.lineno})"
    return ""


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def storage(tensor: torch.Tensor) -> int:
    """Tells storages apart while they live, without the Python object of untyped_storage(), which would hold it."""
    return _native.load().storage_id(tensor) or id(tensor)


class Keeper(TorchDispatchMode):
    """Keeps what a capture reads but did not make: weights, caches, tensors of closures, wherever they are held.

    A graph reads such memory at every replay; whoever else holds it may let it go.

    Attributes:
        kept: One tensor a storage.
    """

    def __init__(self, inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.kept: dict[int, torch.Tensor] = {}
        self._known = {storage(tensor) for tensor in inputs}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Looks at one operator and runs it."""
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        self._look(func, args, kwargs, given)
        result = func(*args, **kwargs)
        taken = {storage(tensor) for tensor in given}
        self._known.update({storage(tensor) for tensor in _tensors(result)} - taken)
        return result

    def _look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[torch.Tensor]) -> None:
        for tensor in given:
            if (key := storage(tensor)) not in self._known:
                self.kept.setdefault(key, tensor.detach() if tensor.requires_grad else tensor)


class Probe(Keeper):
    """Watches one eager forward.

    Attributes:
        written: Indices of the input tensors that were written to in place.
        casts_to_integers: Floating-point values became integers, which may be indices.

    Raises (from inside the forward, and again at the end should the forward swallow it):
        BuildError: Before an operator changes memory that was there before, draws random numbers, or makes the host
            wait for the device.
    """

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]], inputs: Sequence[torch.Tensor]) -> None:
        super().__init__(inputs)
        self._names = {storage(tensor): name for name, tensor in named}
        self._inputs = {storage(tensor): i for i, tensor in enumerate(inputs)}
        self._device = inputs[0].device.type
        self._refusal: BuildError | None = None
        self.written: set[int] = set()
        self.casts_to_integers = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Looks at one operator and runs it."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if any(tensor.is_floating_point() for tensor in _tensors((args, kwargs))):
            self.casts_to_integers |= any(is_integer(tensor.dtype) for tensor in _tensors(result))
        return result

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        """Raises what the forward swallowed."""
        super().__exit__(kind, value, trace)
        if self._refusal is not None and kind is None:
            raise self._refusal

    def _look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[torch.Tensor]) -> None:
        super()._look(func, args, kwargs, given)
        try:
            self._look_for_writes(func, args, kwargs)
            self._look_for_waits(func, args, kwargs, given)
        except BuildError as error:
            self._refusal = self._refusal or error
            raise

    def _look_for_writes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if func is torch.ops.aten.record_stream.default:  # which its schema calls a write
            return
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in _tensors(args[position] if position < len(args) else kwargs.get(argument.name)):
                key = storage(tensor)
                if (index := self._inputs.get(key)) is not None:
                    self.written.add(index)
                elif key not in self._known:
                    name = self._names.get(key)
                    what = f"'{name}' of the module" if name else "a tensor that it did not make"
                    raise BuildError(
                        f"forward changes {what} in place ({func}{_where()}); a graph would do so once for every "
                        "replay, with padding rows included"
                    )

    def _look_for_waits(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[torch.Tensor]
    ) -> None:
        if _draws(func, args, kwargs):
            raise BuildError(
                f"forward draws random numbers ({func}{_where()}), which are not recorded: padding would shift the "
                "generator. Use eval(), or the eager backend"
            )
        if self._device in _COPY_FROM_HOST_WAITS and _copies_from_host(func, args, kwargs):
            raise BuildError(
                f"forward copies a tensor of the host to the device ({func}{_where()}), which makes the host wait; "
                "that cannot be recorded. Make it on the device (torch.arange(..., device=x.device)), or once, as a "
                "buffer of the module"
            )
        if self._device in _RECORD_STREAM_HARMS and func is torch.ops.aten.record_stream.default:
            raise BuildError(
                f"forward calls Tensor.record_stream ({func}{_where()}), which torch {torch.__version__} cannot do "
                "while it records. Join the streams with wait_stream, or use torch 2.14 or later"
            )
        if not any(tensor.device.type == self._device for tensor in given):
            return
        what = _WAITS.get(func)
        if what is None and not _indexed_by_numbers(func, args) and _VALUES_MATTER & set(func.tags):
            what = "an operator whose result's shape depends on values"
        if what is None and _copies_to_host(func, args, kwargs):
            what = "a copy to the host"
        if what is not None:
            raise BuildError(
                f"forward makes the host wait for the device: {func} is {what}{_where()}; that cannot be recorded. "
                "Compute it on the device, or use the eager backend"
            )


def _indexed_by_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether x[i, j] has the shape of its indices, which masks' results do not."""
    if func is not torch.ops.aten.index.Tensor:
        return False
    return not any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1]))


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call draws random numbers. Fused attention and recurrent kernels may, and do not without dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for position, argument in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
        if argument.name in ("dropout_p", "dropout") and value == 0:
            return False
        if argument.name in ("train", "training") and value is False:
            return False
    return True


def _copies_to_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if func is torch.ops.aten._to_copy.default:
        device = kwargs.get("device")
        return device is not None and torch.device(device).type == "cpu"
    if func is torch.ops.aten.copy_.default:
        return args[0].device.type == "cpu"
    return False


def _copies_from_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Pinned memory may be copied from without waiting. torch.tensor(..., device=...) shows only its last step."""
    if func in _INDEXING:  # which move their indices
        return args[0].device.type != "cpu" and any(i.device.type == "cpu" and i.numel() for i in _tensors(args[1]))
    if func is torch.ops.aten.lift_fresh.default:
        return bool(args[0].device.type != "cpu" and args[0].numel())
    if func is torch.ops.aten._to_copy.default:
        source, target = args[0], kwargs.get("device")
    elif func is torch.ops.aten.copy_.default:
        source, target = args[1], args[0].device
    else:
        return False
    to_device = target is not None and torch.device(target).type not in ("cpu", "meta")
    return bool(to_device and source.device.type == "cpu" and source.numel() and not source.is_pinned())
