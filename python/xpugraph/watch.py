# SPDX-License-Identifier: MIT
"""What of a module must stay as it was recorded, and putting back what a build changed."""

from __future__ import annotations

import types
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from .errors import ConfigError

_STRUCTURE = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")
_MOST_ITEMS = 256  # of a container; longer ones (vocabularies, …) are not looked at
_DEEPEST = 3
_NO_STATE = (torch.nn.Module, torch.Tensor, type, ModuleType, types.FunctionType, types.MethodType)


def check_module(module: Any) -> None:
    """Raises ConfigError unless `module` is an nn.Module in evaluation mode."""
    if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
        raise ConfigError(f"module: a torch.nn.Module is needed (no torch.jit one), not a {type(module).__name__}")
    for name, child in module.named_modules():
        if child.training:
            raise ConfigError(
                f"module: {name or type(module).__name__} is in training mode, where results depend on the whole batch "
                "and running statistics change; call eval() first"
            )


class Snapshot:
    """A module before a build runs its forward many times.

    Parameters, buffers, submodules, hooks and every attribute are watched, and so are the items of lists, tuples and
    dicts and the attributes of plain objects that are attributes, to a depth of 3 and a length of 256. Not watched:
    attributes of classes, globals, and what lies deeper.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._entries: list[tuple[dict[str, Any], str, Any, str]] = []
        self._sizes: list[tuple[dict[Any, Any], set[Any], str]] = []
        self._lists: list[tuple[list[Any], list[Any], str]] = []
        self._seen: set[int] = set()
        for prefix, child in module.named_modules():
            dot = f"{prefix}." if prefix else ""
            self._take(vars(child), dot, f"the attributes of {prefix or 'the module'}", 0)
            for name in _STRUCTURE:
                group = getattr(child, name)
                if group or "hooks" in name:  # a leaf that gains a child or weight still has the forward it had
                    self._take(group, dot, f"{dot}{name}", 0)

    def _take(self, group: dict[Any, Any], dot: str, label: str, depth: int) -> None:
        if id(group) in self._seen or len(group) > _MOST_ITEMS:
            return
        self._seen.add(id(group))
        self._sizes.append((group, set(group), label))
        for key, value in list(group.items()):
            if isinstance(key, str) and key not in _STRUCTURE:
                self._entries.append((group, key, value, f"{dot}{key}"))
                self._look_into(value, f"{dot}{key}", depth + 1)

    def _look_into(self, value: Any, name: str, depth: int) -> None:
        if depth > _DEEPEST or isinstance(value, _NO_STATE) or id(value) in self._seen:
            return
        if isinstance(value, dict):
            self._take(value, f"{name}.", name, depth)
        elif type(value) in (list, tuple) and len(value) <= _MOST_ITEMS:
            self._seen.add(id(value))
            if type(value) is list:
                self._lists.append((value, list(value), name))
            for i, item in enumerate(value):
                self._look_into(item, f"{name}[{i}]", depth + 1)
        elif isinstance(getattr(value, "__dict__", None), dict) and not type(value).__module__.startswith("torch"):
            self._seen.add(id(value))
            self._take(vars(value), f"{name}.", name, depth)

    def changes(self) -> set[str]:
        """Names of what the forwards of a build changed themselves; they are put back, and not watched."""
        changed = set()
        for group, key, value, name in self._entries:
            if group.get(key, self) is not value:
                changed.add(name)
                group[key] = value
        for group, keys, label in self._sizes:
            for key in [key for key in group if key not in keys]:
                del group[key]
                changed.add(label)
        changed.update(name for items, before, name in self._lists if not _same_items(items, before))
        return changed

    def watch(self, native: ModuleType, changed: set[str]) -> Any:
        """A native ModuleWatch over everything but the names in `changed`."""
        watch = native.ModuleWatch()
        for group, key, value, name in self._entries:
            if name not in changed:
                watch.add(group, key, value, name)
        for group, _, label in self._sizes:
            if label not in changed:
                watch.add_size(group, label)
        for items, _, name in self._lists:
            if name not in changed:
                watch.add_items(items, name)
        return watch

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Everything that was found and is a tensor, with its name."""
        for _, _, value, name in self._entries:
            if isinstance(value, torch.Tensor):
                yield name, value
        for items, _, name in self._lists:
            yield from ((f"{name}[{i}]", item) for i, item in enumerate(items) if isinstance(item, torch.Tensor))


def _same_items(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
