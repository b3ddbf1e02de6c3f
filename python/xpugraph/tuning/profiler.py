# SPDX-License-Identifier: MIT
"""Profiler: takes candidates through building, checking, measuring, and the check of the routes."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence

import torch

from ..backends import Backend, TorchEagerBackend
from ..errors import BuildError
from ..memory import free_bytes
from ..routing import Route
from ..timing import gc_disabled
from . import profiling
from .candidate import FAILED, WRONG, Candidate, Reference, told
from .profiling import ProfilingConfig, measure_in_turns
from .workload import Arguments, Workload

logger = logging.getLogger("xpugraph")


@dataclasses.dataclass(frozen=True)
class TuningStep:
    """What begins now.

    Attributes:
        done: Steps before this one.
        total: Steps in all, as far as is known.
        backend: Label of the backend.
        batch_size: None while it is built.
        free_bytes: Free memory of the device; None where it does not tell.
    """

    done: int
    total: int
    backend: str
    batch_size: int | None
    free_bytes: int | None


OnStep = Callable[[TuningStep], None]


class Profiler:
    """Takes candidates through building, profiling and the check of the routes."""

    def __init__(
        self,
        candidates: list[Candidate],
        workload: Workload,
        reference: Reference,
        config: ProfilingConfig,
        on_step: OnStep,
    ) -> None:
        self._candidates, self._workload, self._reference = candidates, workload, reference
        self._config, self._on_step = config, on_step
        self._done = 0
        self._total = len(candidates) * (1 + len(workload.recipe.batch_sizes))
        device = workload.device
        self._synchronize: Callable[[], None] = lambda: None
        if device.type != "cpu":
            stream = getattr(torch, device.type).current_stream
            self._synchronize = lambda: stream(device).synchronize()

    def build(self, module: torch.nn.Module) -> None:
        """Builds every candidate."""
        for candidate in self._alive():
            self._step(candidate.label, None)
            before = _state(module)
            candidate.build(module, self._workload)
            if (changed := _first_change(before, _state(module))) is not None:
                raise BuildError(
                    f"backend {candidate.label} changed {changed!r} of the module while it was built, so that nothing "
                    "can be compared any more; the module is no longer what was given"
                )
            if candidate.alive:
                logger.info("backend %s built in %.2f s", candidate.label, candidate.build_seconds)
        need_one(self._candidates)

    def profile(self, sizes: list[int]) -> list[int]:
        """Measures ascending sizes; returns those that were measured."""
        self._total = self._done + len(self._alive()) * len(sizes)
        measured = []
        with gc_disabled():
            for size in sizes:
                alive = self._alive()
                wanted = size in (*self._workload.recipe.batch_sizes, sizes[-1])
                if (all(c.saturated_at for c in alive) and not wanted) or not self._eager_runs_at(size):
                    self._done += len(alive)
                    continue
                self._measure(alive, size)
                need_one(self._candidates)
                measured.append(size)
        for candidate in self._alive():
            best = max(candidate.measurements.values(), key=lambda m: m.throughput)
            logger.info(
                "backend %s profiled: %.2f items/s at batch size %d", candidate.label, best.throughput, best.batch_size
            )
        return measured

    def verify(self, routes: Sequence[Route]) -> bool:
        """Compares both ends of every range with eager; False: a backend was wrong there and is out."""
        known = max(self._workload.largest, self._config.batch_sizes[-1] if self._config.batch_sizes else 1)
        for route in routes:
            for size in sorted({route.first, min(route.last or known, known)}):
                candidate = next(c for c in self._candidates if c.label == route.backend)
                if size > known or size in candidate.measurements or not self._eager_runs_at(size):
                    continue
                if self._first_call(candidate, size) is None:
                    return False
        return True

    def _eager_runs_at(self, size: int) -> bool:
        """False: it refuses a size that nobody asked for. Raises BuildError when it refuses one that was."""
        try:
            self._reference.expected(size)
        except Exception as error:
            if size in self._workload.recipe.batch_sizes:
                raise BuildError(
                    f"{self._reference.name} itself raises at batch size {size}, where the batch is "
                    f"{self._workload.batch_text()}: {error}"
                ) from error
            return False
        return True

    def _measure(self, alive: list[Candidate], size: int) -> None:
        first = {c.label: seconds for c in alive if (seconds := self._first_call(c, size)) is not None}
        arguments = Arguments(self._workload, size, restore=self._reference.writes)
        by_label = {c.label: c for c in alive if c.label in first}
        calls = {label: _bound(c.backend, arguments) for label, c in by_label.items()}
        found, failed = measure_in_turns(
            calls,
            first,
            self._synchronize,
            size,
            self._config,
            lambda label: self._step(label, size),
            arguments.prepare,
        )
        for label, error in failed.items():
            by_label[label].give_up(FAILED, f"at batch size {size}: {told(error)}", error)
        for label, measurement in found.items():
            candidate = by_label[label]
            candidate.measurements[size] = measurement
            throughputs = [m.throughput for m in candidate.measurements.values()]
            if candidate.saturated_at is None and self._config.profiling_stop_strategy.is_finished(throughputs):
                candidate.saturated_at = size

    def _first_call(self, candidate: Candidate, size: int) -> float | None:
        """Calls once at a new size and compares with eager; None: it failed or is wrong, and is out."""
        backend = candidate.backend
        assert backend is not None
        expected = self._reference.expected(size)
        args, kwargs = self._workload.call(size)
        try:
            before = backend.eager_calls()
            self._synchronize()
            start = profiling.clock()
            result = backend.infer(*args, **kwargs)
            self._synchronize()
            seconds = profiling.clock() - start
            passed_on = backend.eager_calls() > before
            difference = self._reference.difference(result, args, kwargs, expected)
        except Exception as error:  # noqa: BLE001  whatever a backend trips over is a result here
            candidate.give_up(FAILED, f"at batch size {size}: {told(error)}", error)
            return None
        if difference is not None and not self._excused(candidate, size):
            also = ""
            if self._reference.unrepeatable(size) is not None:
                also = (
                    f"; {self._reference.name} itself gives other values when it is called again (random numbers, or "
                    "a state), so that only TorchEagerBackend can serve the module"
                )
            candidate.give_up(WRONG, f"at batch size {size}: {difference}{also}")
            return None
        if passed_on:
            candidate.served_by_eager.append(size)
        return seconds

    def _excused(self, candidate: Candidate, size: int) -> bool:
        """Whether it is eager itself, of a module that never answers twice alike."""
        return type(candidate.backend) is TorchEagerBackend and self._reference.unrepeatable(size) is not None

    def _alive(self) -> list[Candidate]:
        return [candidate for candidate in self._candidates if candidate.alive]

    def _step(self, label: str, size: int | None) -> None:
        self._on_step(
            TuningStep(self._done, max(self._total, self._done + 1), label, size, free_bytes(self._workload.device))
        )
        self._done += 1


def _bound(backend: Backend | None, arguments: Arguments) -> Callable[[], object]:
    assert backend is not None
    infer = backend.infer
    return lambda: infer(*arguments.args, **arguments.kwargs)


def _state(module: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Where each parameter and buffer is, and how often it was written to."""
    named = itertools.chain(module.named_parameters(), module.named_buffers())
    return {name: (t.data_ptr(), 0 if t.is_inference() else t._version) for name, t in named}


def _first_change(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> str | None:
    return next((name for name in {**before, **after} if before.get(name) != after.get(name)), None)


def need_one(candidates: Sequence[Candidate]) -> None:
    """Raises BuildError when no candidate is left; says why of each."""
    if not any(candidate.alive for candidate in candidates):
        listed = "\n".join(f"  {c.label} {c.status}: {c.reason}" for c in candidates)
        raise BuildError(f"no backend is left:\n{listed}")
