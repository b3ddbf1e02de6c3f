# SPDX-License-Identifier: MIT
"""xpugraph: a dynamic batch of a PyTorch model at graph speed on Intel GPUs."""

from ._version import __version__
from .backends import (
    Backend,
    BackendState,
    TorchEagerBackend,
    TorchInductorBackend,
    TorchInductorBackendConfig,
    XPUGraphBackend,
    XPUGraphBackendConfig,
)
from .devices import enable_sycl_device
from .errors import (
    BuildError,
    CaptureError,
    ConfigError,
    DeviceError,
    InputError,
    MissingRuntimeError,
    OutOfMemoryError,
    StateError,
    XPUGraphError,
)

__all__ = [
    "Backend",
    "BackendState",
    "BuildError",
    "CaptureError",
    "ConfigError",
    "DeviceError",
    "InputError",
    "MissingRuntimeError",
    "OutOfMemoryError",
    "StateError",
    "TorchEagerBackend",
    "TorchInductorBackend",
    "TorchInductorBackendConfig",
    "XPUGraphBackend",
    "XPUGraphBackendConfig",
    "XPUGraphError",
    "__version__",
    "enable_sycl_device",
]
