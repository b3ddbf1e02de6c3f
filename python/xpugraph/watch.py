# SPDX-License-Identifier: MIT
"""What of a module must stay as it was recorded, and putting back what a build changed."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from .errors import ConfigError

_PLAIN = (type(None), bool, int, float, str)
_NOT_STATE = {"_is_full_backward_hook", "_version", "call_super_init", "dump_patches", "_is_hf_initialized"}


def check_module(module: Any) -> None:
    """Raises ConfigError unless `module` is an nn.Module in evaluation mode."""
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"module: a torch.nn.Module is needed, and a {type(module).__name__} was given")
    for name, child in module.named_modules():
        if child.training:
            raise ConfigError(
                f"module: {name or type(module).__name__} is in training mode, where results depend on the whole batch "
                "and running statistics change; call eval() first"
            )


def _entries(module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, Any, str]]:
    """(dict, key, value, name) of all that a forward may read and a graph holds a copy or an address of."""
    for prefix, child in module.named_modules():
        attributes = vars(child)
        groups = [
            (child._parameters, child._parameters),
            (child._buffers, child._buffers),
            (child._modules, child._modules),
            (attributes, _plain_attributes(child)),
        ]
        for source, watched in groups:
            for key, value in watched.items():
                yield source, key, value, f"{prefix}.{key}" if prefix else key


def _plain_attributes(child: torch.nn.Module) -> dict[str, Any]:
    return {k: v for k, v in vars(child).items() if k not in _NOT_STATE and isinstance(v, (*_PLAIN, torch.Tensor))}


class Snapshot:
    """The attributes of a module before a build runs its forward many times."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._entries = list(_entries(module))

    def restore(self) -> None:
        """Puts back plain attributes that the forwards changed, such as counters."""
        for source, key, value, _ in self._entries:
            if isinstance(value, _PLAIN) and source.get(key) is not value:
                source[key] = value

    def watch(self, native: ModuleType, after: set[str]) -> Any:
        """A native ModuleWatch over everything but the names in `after`, which the forward itself changes."""
        watch = native.ModuleWatch()
        for source, key, value, name in self._entries:
            if name not in after:
                watch.add(source, key, value, name)
        return watch

    def changed(self) -> set[str]:
        """Names of the plain attributes that differ now."""
        return {
            name
            for source, key, value, name in self._entries
            if isinstance(value, _PLAIN) and not (type(source.get(key)) is type(value) and source.get(key) == value)
        }
