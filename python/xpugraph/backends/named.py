# SPDX-License-Identifier: MIT
"""The backends by the names that tables, routes and the command line use."""

from __future__ import annotations

from collections.abc import Callable

from .base import Backend
from .eager import TorchEagerBackend
from .graph import XPUGraphBackend, XPUGraphBackendConfig


def named_backends(max_recorded_batch_size: int = 256) -> dict[str, Callable[[], Backend]]:
    """What makes each backend, by its label; of equally fast ones the first is preferred, which is the simplest.

    Args:
        max_recorded_batch_size: Of the backends that record graphs.
    """

    def graph() -> Backend:
        return XPUGraphBackend(XPUGraphBackendConfig(max_recorded_batch_size=max_recorded_batch_size))

    return {"eager": TorchEagerBackend, "graph": graph}
