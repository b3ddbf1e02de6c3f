# SPDX-License-Identifier: MIT
"""Tuning: which backend serves which batch size."""

from .estimate import Estimate
from .profiler import TuningStep
from .profiling import Measurement, ProfilingConfig
from .report import BackendReport, TuningReport
from .stop import (
    MeasurementStopStrategy,
    NeverProfilingStopStrategy,
    NumStepsMeasuringStopStrategy,
    ProfilingStopStrategy,
    StableWindowMeasuringStopStrategy,
    ThroughputSaturatedProfilingStopStrategy,
)
from .strategy import HighestThroughputStrategy, OneBackendStrategy, TuneStrategy
from .tuned import TunedModule, tune

__all__ = [
    "BackendReport",
    "Estimate",
    "HighestThroughputStrategy",
    "Measurement",
    "MeasurementStopStrategy",
    "NeverProfilingStopStrategy",
    "NumStepsMeasuringStopStrategy",
    "OneBackendStrategy",
    "ProfilingConfig",
    "ProfilingStopStrategy",
    "StableWindowMeasuringStopStrategy",
    "ThroughputSaturatedProfilingStopStrategy",
    "TuneStrategy",
    "TunedModule",
    "TuningReport",
    "TuningStep",
    "tune",
]
