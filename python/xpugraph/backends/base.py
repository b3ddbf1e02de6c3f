# SPDX-License-Identifier: MIT
"""Backend: the life of one way of running a module, from build to infer."""

from __future__ import annotations

import enum
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import ConfigError, StateError


def wants_gradients(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether gradients are on and an argument requires one: what a backend without gradients must leave to eager."""
    if not torch.is_grad_enabled():
        return False
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                return True
        elif value is not None and not isinstance(value, (bool, int, float, str)):
            if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves(value)):
                return True
    return False


class BackendState(enum.Enum):
    """Where a backend is in its life."""

    INIT = "init"
    ACTIVE = "active"
    INACTIVE = "inactive"
    CHECKPOINT_LOADED = "checkpoint_loaded"
    DEPLOYED = "deployed"


_classes: dict[str, type[Backend]] = {}


def backend_class(name: str) -> type[Backend]:
    """The class of that name among those that were defined in this process.

    Raises:
        ConfigError: There is none.
    """
    if name not in _classes:
        raise ConfigError(f"no class of backend is called {name!r}; there are {', '.join(sorted(_classes))}")
    return _classes[name]


class Backend(ABC):
    """One way of running a module.

    ``build`` leaves the backend active. ``deactivate`` gives back what it holds on the device, and ``activate`` takes
    it again. A backend made by ``from_dict`` is brought to life by ``deploy``. A method that raises leaves the state as
    it was.

    Threads: ``infer`` may be called from any thread; the other methods from one thread at a time, not during ``infer``.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Makes the class known by its name, for ``from_dict`` of backends that hold others, and for checkpoints."""
        super().__init_subclass__(**options)
        known = _classes.get(cls.__name__)
        if known is None or not known.__module__.startswith("xpugraph."):  # the library's own names stay its own
            _classes[cls.__name__] = cls

    def __init__(self) -> None:
        self._state = BackendState.INIT

    @property
    def label(self) -> str:
        """A short name for tables and routes."""
        return type(self).__name__

    def eager_calls(self) -> int:
        """How many calls were passed on to eager instead of being served the way this backend is for."""
        return 0

    def facts(self) -> dict[str, Any]:
        """What reports tell of a built backend beside its latencies, as plain JSON values.

        ``recorded_batch_sizes`` (ascending) says at which sizes its latency steps; without them it is continuous.
        """
        return {}

    def expect(self, batch_sizes: Sequence[int], exact: bool = False) -> None:  # noqa: B027
        """Told before ``build`` which batch sizes will be served, and whether to record graphs of exactly these."""

    def cover(self, batch_size: int) -> list[int]:
        """The recorded sizes that serve a batch together, in order; empty for a backend that records none."""
        return []

    @property
    def state(self) -> BackendState:
        """Where the backend is in its life."""
        return self._state

    def build(self, module: torch.nn.Module, samples: Sequence[Any], **options: Any) -> Backend:
        """Prepares `module` for calls like `samples`; see the subclass for `options`.

        Args:
            module: In evaluation mode, on its device.
            samples: One or more example calls, each a tensor, a tuple of arguments or a dict of keyword arguments.
            **options: What the subclass accepts.

        Raises:
            StateError: It has been built already.
        """
        self._need("build", BackendState.INIT)
        self._build(module, samples, **options)
        self._state = BackendState.ACTIVE
        return self

    def activate(self) -> None:
        """Takes the device's resources again after ``deactivate``. Does nothing when active."""
        if self._state in (BackendState.ACTIVE, BackendState.DEPLOYED):
            return
        self._need("activate", BackendState.INACTIVE)
        self._activate()
        self._state = BackendState.ACTIVE

    def deactivate(self) -> None:
        """Gives back what the backend holds on the device. Does nothing when inactive."""
        if self._state is BackendState.INACTIVE:
            return
        self._need("deactivate", BackendState.ACTIVE, BackendState.DEPLOYED)
        self._deactivate()
        self._state = BackendState.INACTIVE

    def deploy(self, device: torch.device | str | None = None) -> None:
        """Brings a backend from ``from_dict`` to life; on one that is active it only fixes the state.

        Raises:
            StateError: There is nothing to deploy yet.
            ConfigError: The module is not on `device`.
        """
        self._need("deploy", BackendState.ACTIVE, BackendState.INACTIVE, BackendState.CHECKPOINT_LOADED)
        self._deploy(None if device is None else torch.device(device))
        self._state = BackendState.DEPLOYED

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module."""
        if self._state not in (BackendState.ACTIVE, BackendState.DEPLOYED):
            self._need("infer", BackendState.ACTIVE, BackendState.DEPLOYED)
        return self._infer(*args, **kwargs)

    __call__ = infer

    def key(self) -> str:
        """Identifies class and configuration: equal for backends that would be built alike."""
        text = json.dumps([type(self).__name__, self._config_dict()], sort_keys=True)
        return f"{type(self).__name__}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @abstractmethod
    def describe(self) -> str:
        """What this backend is and does, for people."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Everything ``from_dict`` needs beside the module, as plain JSON values."""

    @classmethod
    @abstractmethod
    def from_dict(cls, module: torch.nn.Module, state: dict[str, Any]) -> Backend:
        """The backend that ``to_dict`` described, not yet deployed."""

    def _config_dict(self) -> dict[str, Any]:
        return {}

    @abstractmethod
    def _build(self, module: torch.nn.Module, samples: Sequence[Any], **options: Any) -> None: ...

    def _activate(self) -> None: ...

    def _deactivate(self) -> None: ...

    def _deploy(self, device: torch.device | None) -> None: ...

    @abstractmethod
    def _infer(self, *args: Any, **kwargs: Any) -> Any: ...

    def _need(self, method: str, *states: BackendState) -> None:
        if self._state in states:
            return
        hints = {
            BackendState.INIT: "call build() first",
            BackendState.INACTIVE: "call activate() first",
            BackendState.CHECKPOINT_LOADED: "call deploy() first",
        }
        hint = hints.get(self._state, "it was built already; make a new backend to build again")
        raise StateError(f"{type(self).__name__}.{method}() in state '{self._state.value}': {hint}")
