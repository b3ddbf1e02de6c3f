# SPDX-License-Identifier: MIT
"""The weights of a module as safetensors, and the fingerprint by which a module is known again."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import types
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .errors import CheckpointError, ConfigError

_LARGE = 1 << 16  # bytes of a tensor; equal ones of this size are hardly a coincidence


def pack(module: torch.nn.Module) -> tuple[bytes, dict[str, str]]:
    """The module's state as safetensors, every tensor once, and the names that stand for another's tensor.

    Raises:
        ConfigError: A state entry is no dense tensor; names it.
    """
    import safetensors.torch

    stored: dict[str, torch.Tensor] = {}
    first: dict[tuple[Any, ...], str] = {}
    aliases: dict[str, str] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise ConfigError(
                f"module: state {name!r} is a {type(value).__name__}; only tensors can be saved (no pickle)"
            )
        if value.layout is not torch.strided or value.is_quantized or is_traceable_wrapper_subclass(value):
            raise ConfigError(
                f"module: {name!r} is a {type(value).__name__} of layout {value.layout}, or quantized; "
                "only plain dense tensors can be saved"
            )
        if not _has_form(value.dtype):
            raise ConfigError(f"module: {name!r} is of {value.dtype}, for which safetensors has no form")
        tensor = value.detach().resolve_conj().resolve_neg().to("cpu", copy=True).contiguous()
        other = first.setdefault(_key(value, tensor), name)
        if other == name:
            stored[name] = tensor
        else:
            aliases[name] = other
    return safetensors.torch.save(stored), aliases


def _key(value: torch.Tensor, copy: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are one: by their memory; large ones by their bytes, since ``.to`` may untie them."""
    if copy.nbytes < _LARGE:
        place = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride())
        return (*place, value.dtype, value.is_conj(), value.is_neg())
    data = (ctypes.c_char * copy.nbytes).from_address(copy.data_ptr())
    return (copy.shape, copy.dtype, hashlib.sha256(data).digest())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape have the same values, NaN included, wherever they are."""
    x, y = (t.detach().resolve_conj().resolve_neg().cpu().reshape(-1).contiguous().view(torch.uint8) for t in (a, b))
    return torch.equal(x, y)


@functools.cache
def _has_form(dtype: torch.dtype) -> bool:
    """Whether safetensors keeps a dtype; some it writes but cannot read."""
    import safetensors.torch

    try:
        return safetensors.torch.load(safetensors.torch.save({"x": torch.empty(0, dtype=dtype)}))["x"].dtype == dtype
    except (KeyError, ValueError, RuntimeError):
        return False


def read(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors that `pack` stored. Raises CheckpointError for anything but safetensors."""
    import safetensors
    import safetensors.torch

    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"weights.safetensors cannot be read: {error}") from error


def unpack(data: bytes, aliases: dict[str, str], module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state that `pack` made, complete for `module`.

    Raises:
        CheckpointError: It is damaged or has other entries than the module; names the first.
    """
    tensors = read(data)
    for name, other in aliases.items():
        if other not in tensors:
            raise CheckpointError(f"weights.safetensors has no {other!r}, which {name!r} stands for")
        tensors[name] = tensors[other]
    state = module.state_dict()
    for name, value in state.items():
        if name not in tensors:
            raise CheckpointError(f"weights.safetensors has no {name!r}")
        if not isinstance(value, torch.Tensor):
            raise CheckpointError(f"the module's state {name!r} is a {type(value).__name__} here; a tensor was saved")
        if tensors[name].shape != value.shape or tensors[name].dtype != value.dtype:
            raise CheckpointError(f"weights.safetensors: {name!r} has another shape or dtype than the module's")
    extra = sorted(set(tensors) - set(state))
    if extra:
        raise CheckpointError(f"weights.safetensors has {extra[0]!r}, which the module does not have")
    return tensors


def fingerprint(module: torch.nn.Module) -> dict[str, Any]:
    """What a module is, its values left out.

    Class, submodules with their settings, and names, shapes and dtypes of parameters and buffers; `attributes` are the
    plain ones of modules that are not torch's own.
    """
    return {
        "class": f"{type(module).__module__}.{type(module).__qualname__}",
        "submodules": [[name, type(child).__qualname__, _settings(child)] for name, child in module.named_modules()],
        "attributes": {
            f"{name}.{key}" if name else key: text
            for name, child in module.named_modules()
            if not _is_torchs(child)
            for key, text in _attributes(child).items()
        },
        "tensors": [
            {"name": name, "kind": kind, "shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")}
            for kind, named in (("parameter", module.named_parameters), ("buffer", module.named_buffers))
            for name, t in named(remove_duplicate=False)
        ],
    }


def _is_torchs(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


def _settings(module: torch.nn.Module) -> str:
    """What a module shows of itself; of torch's own that show nothing (attention), their attributes."""
    shown = re.sub(r"0x[0-9a-fA-F]+", "0x", module.extra_repr())  # addresses differ in every process
    if shown or not _is_torchs(module):
        return shown
    return ", ".join(f"{key}={text}" for key, text in _attributes(module).items())


def _attributes(module: torch.nn.Module) -> dict[str, str]:
    texts = {key: _text(value) for key, value in vars(module).items() if key != "training"}
    return {key: text[:200] for key, text in sorted(texts.items()) if text and not key.startswith("_")}


def _text(value: Any) -> str:
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return value.__name__
    if type(value) in (tuple, list) and len(value) <= 16 and all(map(_text, value)):
        return repr(tuple(map(_text, value)))
    return ""


def check_fingerprint(module: torch.nn.Module, saved: dict[str, Any], same_torch: bool) -> None:
    """Compares a module with a saved fingerprint.

    Args:
        module: To be loaded into.
        saved: From `fingerprint`.
        same_torch: Compare the settings of submodules too, which torch words by its version.

    Raises:
        CheckpointError: It is another module; names the first parameter, buffer or submodule that differs.
    """
    here = fingerprint(module)
    found = {entry["name"]: entry for entry in here["tensors"]}
    for entry in saved["tensors"]:
        other = found.pop(entry["name"], None)
        if other != entry:
            raise CheckpointError(f"the module is another one: {_tensor(entry)} was saved, here is {_tensor(other)}")
    if found:
        raise CheckpointError(f"the module is another one: {_tensor(next(iter(found.values())))} was not saved")
    for a, b in zip(saved["submodules"], here["submodules"], strict=False):
        if a[: 3 if same_torch else 2] != b[: 3 if same_torch else 2]:
            raise CheckpointError(f"the module is another one: {_submodule(a)} was saved, here is {_submodule(b)}")
    if len(saved["submodules"]) != len(here["submodules"]):
        count = len(saved["submodules"])
        raise CheckpointError(
            f"the module is another one: it had {count} submodules, here are {len(here['submodules'])}"
        )


def changed_attributes(module: torch.nn.Module, saved: dict[str, Any]) -> list[str]:
    """Plain attributes that are not as they were; a forward may have changed them, so they are no reason to refuse."""
    here = fingerprint(module)["attributes"]
    return [
        f"{name} was {saved['attributes'].get(name, 'not there')}, here is {here.get(name, 'not there')}"
        for name in sorted({*here, *saved["attributes"]})
        if here.get(name) != saved["attributes"].get(name)
    ]


def _tensor(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "none of that name"
    return f"{entry['kind']} {entry['name']!r} {entry['dtype']} {tuple(entry['shape'])}"


def _submodule(entry: list[str]) -> str:
    return f"{entry[0] or 'the module'} as {entry[1]}({entry[2]})"
