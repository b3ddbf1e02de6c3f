# SPDX-License-Identifier: MIT
"""xpugraph: a dynamic batch of a PyTorch model at graph speed on Intel GPUs."""

from ._version import __version__
from .backends import (
    Backend,
    BackendState,
    BatchSizeRouterBackend,
    TorchEagerBackend,
    TorchInductorBackend,
    TorchInductorBackendConfig,
    XPUGraphBackend,
    XPUGraphBackendConfig,
)
from .checkpoint import CheckpointInfo, CheckpointWarning, inspect_checkpoint, load, save
from .devices import enable_sycl_device
from .errors import (
    BuildError,
    CaptureError,
    CheckpointError,
    ConfigError,
    DeviceError,
    InputError,
    MissingRuntimeError,
    OutOfMemoryError,
    StateError,
    XPUGraphError,
)
from .routing import Route
from .tuning import (
    Estimate,
    HighestThroughputStrategy,
    NeverProfilingStopStrategy,
    NumStepsMeasuringStopStrategy,
    OneBackendStrategy,
    ProfilingConfig,
    StableWindowMeasuringStopStrategy,
    ThroughputSaturatedProfilingStopStrategy,
    TunedModule,
    TuningReport,
    tune,
)

__all__ = [
    "Backend",
    "BackendState",
    "BatchSizeRouterBackend",
    "BuildError",
    "CaptureError",
    "CheckpointError",
    "CheckpointInfo",
    "CheckpointWarning",
    "ConfigError",
    "DeviceError",
    "Estimate",
    "HighestThroughputStrategy",
    "InputError",
    "MissingRuntimeError",
    "NeverProfilingStopStrategy",
    "NumStepsMeasuringStopStrategy",
    "OneBackendStrategy",
    "OutOfMemoryError",
    "ProfilingConfig",
    "Route",
    "StableWindowMeasuringStopStrategy",
    "StateError",
    "ThroughputSaturatedProfilingStopStrategy",
    "TorchEagerBackend",
    "TorchInductorBackend",
    "TorchInductorBackendConfig",
    "TunedModule",
    "TuningReport",
    "XPUGraphBackend",
    "XPUGraphBackendConfig",
    "XPUGraphError",
    "__version__",
    "enable_sycl_device",
    "inspect_checkpoint",
    "load",
    "save",
    "tune",
]
