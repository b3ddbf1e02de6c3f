# SPDX-License-Identifier: MIT
"""The backends: ways of running a module, all with the same interface."""

from .base import Backend, BackendState, backend_class
from .eager import TorchEagerBackend
from .graph import XPUGraphBackend, XPUGraphBackendConfig
from .inductor import TorchInductorBackend, TorchInductorBackendConfig
from .named import named_backends
from .router import BatchSizeRouterBackend

__all__ = [
    "Backend",
    "BackendState",
    "BatchSizeRouterBackend",
    "TorchEagerBackend",
    "TorchInductorBackend",
    "TorchInductorBackendConfig",
    "XPUGraphBackend",
    "XPUGraphBackendConfig",
    "backend_class",
    "named_backends",
]
