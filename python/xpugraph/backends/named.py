# SPDX-License-Identifier: MIT
"""The backends by the names that tables, routes and the command line use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .base import Backend
from .eager import TorchEagerBackend
from .graph import XPUGraphBackend, XPUGraphBackendConfig
from .inductor import TorchInductorBackend


def named_backends(max_recorded_batch_size: int = 256) -> dict[str, Callable[[], Backend]]:
    """What makes each backend, by its label; of equally fast ones the first is preferred, which is the simplest.

    Args:
        max_recorded_batch_size: Of the backends that record graphs.
    """

    def graph(compile_with_inductor: bool) -> Backend:
        config = XPUGraphBackendConfig(compile_with_inductor, max_recorded_batch_size)
        return XPUGraphBackend(config)

    return {
        "eager": TorchEagerBackend,
        "inductor": TorchInductorBackend,
        "graph": partial(graph, False),
        "graph+inductor": partial(graph, True),
    }
