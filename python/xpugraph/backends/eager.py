# SPDX-License-Identifier: MIT
"""TorchEagerBackend: the module as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .base import Backend, BackendState, wants_gradients


class TorchEagerBackend(Backend):
    """Runs the module operator by operator: the baseline of every comparison.

    Results have gradients only where gradients are on and an argument requires one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._module: torch.nn.Module | None = None

    @property
    def label(self) -> str:
        """A short name for tables and routes."""
        return "eager"

    def describe(self) -> str:
        """One line."""
        return f"TorchEagerBackend ({self.state.value})"

    def to_dict(self) -> dict[str, Any]:
        """Nothing but the class."""
        return {"backend": type(self).__name__}

    @classmethod
    def from_dict(cls, module: torch.nn.Module, state: dict[str, Any]) -> TorchEagerBackend:
        """A backend for `module`, to be deployed."""
        backend = cls()
        backend._module = module
        backend._state = BackendState.CHECKPOINT_LOADED
        return backend

    def _build(self, module: torch.nn.Module, samples: Sequence[Any], **options: Any) -> None:
        self._module = module

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(wants_gradients(args, kwargs)):
            return self._module(*args, **kwargs)  # type: ignore[misc]
