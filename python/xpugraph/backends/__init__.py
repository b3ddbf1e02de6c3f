# SPDX-License-Identifier: MIT
"""The backends: ways of running a module, all with the same interface."""

from .base import Backend, BackendState
from .eager import TorchEagerBackend
from .graph import XPUGraphBackend, XPUGraphBackendConfig
from .inductor import TorchInductorBackend, TorchInductorBackendConfig

__all__ = [
    "Backend",
    "BackendState",
    "TorchEagerBackend",
    "TorchInductorBackend",
    "TorchInductorBackendConfig",
    "XPUGraphBackend",
    "XPUGraphBackendConfig",
]
