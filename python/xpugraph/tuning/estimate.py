# SPDX-License-Identifier: MIT
"""The dry run of a tuning: which sizes, how many bytes, how long; from a few eager runs."""

from __future__ import annotations

import dataclasses
import time

import torch

from ..backends import XPUGraphBackend
from ..errors import BuildError
from ..memory import free_bytes, peak_allocated_bytes
from ..units import mebibytes
from .profiling import MIN_SAMPLES, ProfilingConfig
from .strategy import TuneStrategy
from .workload import Workload

_CALLS_OF_A_BUILD = 7  # of a graph backend at each size: warm-up, capture, three checked replays, eager for comparison


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a tuning would do. Prints as text.

    Attributes:
        backends: Labels of what would be built.
        recorded_batch_sizes: Sizes of the graphs.
        profiled_batch_sizes: Sizes that would be measured, unless the profiling stop strategy ends sooner.
        input_bytes: Of the padded inputs of one graph backend.
        pool_bytes: Of the pool of one graph backend: what eager allocates at the largest recorded size. None where the
            device does not count.
        free_bytes: Free memory of the device now; None where it does not tell.
        seconds: How long tuning would take, by eager's latency; compiling with Inductor is not in it.
    """

    backends: list[str]
    recorded_batch_sizes: list[int]
    profiled_batch_sizes: list[int]
    input_bytes: int
    pool_bytes: int | None
    free_bytes: int | None
    seconds: float

    def __str__(self) -> str:
        graphs = f"{', '.join(map(str, self.recorded_batch_sizes))} ({len(self.recorded_batch_sizes)} graphs)"
        lines = [
            "dry run: nothing was built",
            f"  backends: {', '.join(self.backends)}",
            f"  recorded batch sizes: {graphs if self.recorded_batch_sizes else 'none'}",
            f"  profiled batch sizes: {', '.join(map(str, self.profiled_batch_sizes))}",
            f"  expected bytes of each graph backend: {mebibytes(self.pool_bytes)} of pool, "
            f"{mebibytes(self.input_bytes)} of padded input; free now: {mebibytes(self.free_bytes)}",
            f"  expected time: {self.seconds:.0f} s, without what Inductor compiles",
        ]
        return "\n".join(lines)


def estimate(module: torch.nn.Module, workload: Workload, strategy: TuneStrategy) -> Estimate:
    """Runs eager at the smallest and the largest size and extrapolates."""
    backends = strategy.backends_to_build()
    graphs = [backend for backend in backends if isinstance(backend, XPUGraphBackend)]
    exact = [workload.exact_batch_sizes or graph.config.exact_batch_sizes for graph in graphs]
    served = workload.recipe.batch_sizes
    grids = [g.grid_sizes(workload.largest, served if e else ()) for g, e in zip(graphs, exact, strict=True)]
    recorded = sorted({size for grid in grids for size in grid})
    profiled = strategy.profiled_sizes(workload, recorded)
    largest = recorded[-1] if recorded else workload.largest
    (small, _), (large, pool) = _run(module, workload, 1), _run(module, workload, largest)
    slope = max(0.0, (large - small) / max(1, largest - 1))

    def eager(size: int) -> float:
        return small + slope * (size - 1)

    builds = sum(_CALLS_OF_A_BUILD * eager(size) for grid in grids for size in grid)
    config = getattr(strategy, "profiling_config", ProfilingConfig())
    profiling = len(backends) * sum(_seconds_of(config, eager(size)) for size in profiled)
    return Estimate(
        [backend.label for backend in backends],
        recorded,
        profiled,
        workload.input_bytes(largest) if recorded else 0,
        pool if recorded else None,
        free_bytes(workload.device),
        builds + profiling,
    )


def _run(module: torch.nn.Module, workload: Workload, size: int) -> tuple[float, int | None]:
    """Seconds of the second eager run at a size, and the bytes it allocates at most beyond what was there."""
    args, kwargs = workload.call(size)
    try:
        module(*args, **kwargs)
    except Exception as error:
        raise BuildError(f"eager itself raises at batch size {size}: {error}") from error
    _wait(workload.device)
    args, kwargs = workload.call(size)
    before = peak_allocated_bytes(workload.device, start=True)
    start = time.perf_counter()
    module(*args, **kwargs)
    _wait(workload.device)
    seconds = time.perf_counter() - start
    after = peak_allocated_bytes(workload.device)
    return seconds, None if before is None or after is None else after - before


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).current_stream(device).synchronize()


def _seconds_of(config: ProfilingConfig, call: float) -> float:
    """Measuring one backend at one size: the check, warm-up, and as many samples as fit."""
    strategy = config.measurement_stop_strategy
    samples = getattr(strategy, "window_size", getattr(strategy, "num_steps", MIN_SAMPLES))
    sampling = min(samples * max(call, config.sample_seconds), max(config.max_seconds, MIN_SAMPLES * call))
    return 2 * call + min(strategy.warmup_samples * call, config.max_seconds / 4 + call) + sampling
