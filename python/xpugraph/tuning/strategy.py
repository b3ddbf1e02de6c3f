# SPDX-License-Identifier: MIT
"""Strategies: which backends are tried, and how the routes are chosen from what was measured."""

from __future__ import annotations

import dataclasses
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from ..backends import Backend, BatchSizeRouterBackend, named_backends
from ..check import Tolerance
from ..errors import ConfigError
from ..memory import release_cache, reserved_bytes
from ..routing import LatencyCurve, Route, choose_default, choose_routes
from .candidate import NOT_ROUTED, ROUTED, Candidate, Reference, check_backends, make_candidates
from .profiler import OnStep, Profiler, need_one
from .profiling import ProfilingConfig
from .stop import MeasurementStopStrategy, ProfilingStopStrategy, real_number
from .workload import Workload

logger = logging.getLogger("xpugraph")


@dataclasses.dataclass
class Outcome:
    """What a strategy comes to.

    Attributes:
        router: Active.
        candidates: All that were tried.
        batch_sizes: The sizes that were measured.
        default: Label of the backend that serves where no other is clearly faster.
        reserved_while_profiling: Bytes that torch had reserved on the device with all backends built; None: no count.
        reserved_for_serving: The same once the backends without a route were freed.
    """

    router: BatchSizeRouterBackend
    candidates: list[Candidate]
    batch_sizes: list[int]
    default: str
    reserved_while_profiling: int | None = None
    reserved_for_serving: int | None = None


class TuneStrategy(ABC):
    """How ``tune`` comes from a module to its routes."""

    @abstractmethod
    def run(self, module: torch.nn.Module, workload: Workload, on_step: OnStep) -> Outcome:
        """Tunes; raises BuildError when no backend is left. Nothing stays built then."""

    @abstractmethod
    def describe(self) -> str:
        """One line, for reports."""

    def backends_to_build(self) -> list[Backend]:
        """The backends that will be tried, unbuilt."""
        return []

    def profiled_sizes(self, workload: Workload, steps: Sequence[int]) -> list[int]:
        """The batch sizes that will be measured, when graphs are recorded at `steps`."""
        return sorted({*workload.recipe.batch_sizes, *steps})


class HighestThroughputStrategy(TuneStrategy):
    """Builds, checks and profiles every backend and sends each batch size to the fastest.

    The backend with the highest peak throughput (of those within 2% of it, the first in the list) serves every batch
    size, but for those where another is faster by at
    least `min_gain`. A backend that raises or that differs from eager in value, at any profiled size, is left out; its
    reason and log are in the report.

    Args:
        backends: Not built; copies are used. None: all that xpugraph has.
        profiling_config: How to profile.
        min_gain: How much faster another backend must be to take a range of batch sizes, as a ratio.
        objective: "throughput", or "latency": the default is the backend with the lowest latency at any size.
        latency_budget_ms: Only sizes at which a backend keeps within this count for its peak throughput.
        rtol: Relative tolerance of the comparison with eager; None: by dtype.
        atol: Absolute tolerance, times the largest value where that is above 1; None: by dtype.
        reference: "eager": the module on its device says what is right. "cpu": a copy of it on the CPU does, which
            finds a device whose own operators are wrong (intel/torch-xpu-ops#4839).
        measurement_stop_strategy: Replaces the one of `profiling_config`.
        profiling_stop_strategy: Replaces the one of `profiling_config`.

    Raises:
        ConfigError: An argument is out of range; names it.
    """

    def __init__(
        self,
        backends: Sequence[Backend] | None = None,
        profiling_config: ProfilingConfig | None = None,
        *,
        min_gain: float = 0.10,
        objective: str = "throughput",
        latency_budget_ms: float | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        reference: str = "eager",
        measurement_stop_strategy: MeasurementStopStrategy | None = None,
        profiling_stop_strategy: ProfilingStopStrategy | None = None,
    ) -> None:
        real_number("min_gain", min_gain, 0, 1)
        if objective not in ("throughput", "latency"):
            raise ConfigError(f"objective={objective!r}; accepted are 'throughput' and 'latency'")
        if objective == "latency" and latency_budget_ms is not None:
            raise ConfigError(
                f"latency_budget_ms={latency_budget_ms!r}: a budget is for objective='throughput'; 'latency' has none"
            )
        if latency_budget_ms is not None and not 0 < latency_budget_ms < math.inf:
            raise ConfigError(f"latency_budget_ms={latency_budget_ms!r}; a number above 0 is needed")
        if reference not in ("eager", "cpu"):
            raise ConfigError(f"reference={reference!r}; accepted are 'eager' and 'cpu'")
        for name, value in (("rtol", rtol), ("atol", atol)):
            if value is not None:
                real_number(name, value, 0)
        config = profiling_config or ProfilingConfig()
        if measurement_stop_strategy is not None:
            config = dataclasses.replace(config, measurement_stop_strategy=measurement_stop_strategy)
        if profiling_stop_strategy is not None:
            config = dataclasses.replace(config, profiling_stop_strategy=profiling_stop_strategy)
        self.backends = None if backends is None else list(backends)
        check_backends(self.backends_to_build())
        self.profiling_config = config
        self.min_gain, self.objective, self.latency_budget_ms = min_gain, objective, latency_budget_ms
        self.tolerance, self.reference = Tolerance(rtol, atol), reference

    def describe(self) -> str:
        """Objective and thresholds."""
        budget = "" if self.latency_budget_ms is None else f", latency_budget_ms={self.latency_budget_ms:g}"
        return f"HighestThroughputStrategy(objective={self.objective}, min_gain={self.min_gain:g}{budget})"

    def backends_to_build(self) -> list[Backend]:
        """As given, or the default ones."""
        if self.backends is not None:
            return self.backends
        return [make() for make in named_backends().values()]

    def profiled_sizes(self, workload: Workload, steps: Sequence[int]) -> list[int]:
        """Those of the profiling config, or the requested ones and every step."""
        if self.profiling_config.batch_sizes is not None:
            return list(self.profiling_config.batch_sizes)
        return super().profiled_sizes(workload, [step for step in steps if step <= workload.largest])

    def run(self, module: torch.nn.Module, workload: Workload, on_step: OnStep) -> Outcome:
        """Builds, profiles, routes, and verifies the routes."""
        candidates = make_candidates(self.backends_to_build())
        try:
            reference = Reference(module, workload, self.tolerance, self.reference == "cpu")
            profiler = Profiler(candidates, workload, reference, self.profiling_config, on_step)
            profiler.build(module)
            sizes = profiler.profile(self.profiled_sizes(workload, [s for c in candidates for s in c.steps]))
            while True:
                default, routes = self._choose(candidates)
                if profiler.verify(routes):
                    break
            return _finish(candidates, module, workload, sizes, default, routes)
        except BaseException:
            for candidate in candidates:
                candidate.free()
            raise

    def _choose(self, candidates: Sequence[Candidate]) -> tuple[str, list[Route]]:
        need_one(candidates)
        curves = {c.label: _curve(c) for c in candidates if c.alive}
        default = choose_default(curves, self.objective, self.latency_budget_ms or math.inf)
        return default, choose_routes(curves, default, self.min_gain)


class OneBackendStrategy(TuneStrategy):
    """Builds, checks and profiles one backend, which serves every batch size. Raises when it fails or is wrong.

    Args:
        backend: Not built; a copy is used.
        profiling_config: How to profile, for the report.
        rtol: As in HighestThroughputStrategy.
        atol: As in HighestThroughputStrategy.
        reference: As in HighestThroughputStrategy.
    """

    def __init__(
        self,
        backend: Backend,
        profiling_config: ProfilingConfig | None = None,
        *,
        rtol: float | None = None,
        atol: float | None = None,
        reference: str = "eager",
    ) -> None:
        self._strategy = HighestThroughputStrategy(
            [backend], profiling_config, rtol=rtol, atol=atol, reference=reference
        )

    @property
    def profiling_config(self) -> ProfilingConfig:
        """As given."""
        return self._strategy.profiling_config

    def describe(self) -> str:
        """Names the backend."""
        return f"OneBackendStrategy({self.backends_to_build()[0].label})"

    def backends_to_build(self) -> list[Backend]:
        """The one."""
        return self._strategy.backends_to_build()

    def profiled_sizes(self, workload: Workload, steps: Sequence[int]) -> list[int]:
        """As in HighestThroughputStrategy."""
        return self._strategy.profiled_sizes(workload, steps)

    def run(self, module: torch.nn.Module, workload: Workload, on_step: OnStep) -> Outcome:
        """Builds and profiles it."""
        return self._strategy.run(module, workload, on_step)


def _curve(candidate: Candidate) -> LatencyCurve:
    assert candidate.backend is not None
    measured = {size: m.latency_ms for size, m in candidate.measurements.items()}
    return LatencyCurve(measured, tuple(candidate.steps), candidate.backend.cover if candidate.steps else None)


def _finish(
    candidates: list[Candidate],
    module: torch.nn.Module,
    workload: Workload,
    sizes: list[int],
    default: str,
    routes: list[Route],
) -> Outcome:
    """Frees the losers and joins the others in a router."""
    before = reserved_bytes(workload.device)
    routed = {route.backend for route in routes}
    backends: dict[str, Backend] = {}
    for candidate in candidates:
        if candidate.label in routed:
            candidate.status = ROUTED
            assert candidate.backend is not None
            backends[candidate.label] = candidate.backend
        elif candidate.alive:
            candidate.status = NOT_ROUTED
            candidate.free()
    release_cache(workload.device)
    router = BatchSizeRouterBackend.of_active(routes, backends, workload.recipe, module)
    return Outcome(router, candidates, sizes, default, before, reserved_bytes(workload.device))
