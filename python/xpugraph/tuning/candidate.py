# SPDX-License-Identifier: MIT
"""Candidates: backends that are tried, what became of them, and what eager says is right."""

from __future__ import annotations

import copy
import dataclasses
import logging
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..backends import Backend, BackendState
from ..check import Tolerance
from ..errors import ConfigError, StateError
from ..precision import tf32_noise
from ..structure import Leaves, Spec, describe, first_difference
from ..weights import same_bits
from .profiling import Measurement
from .workload import Workload

logger = logging.getLogger("xpugraph")

BUILT, ROUTED, NOT_ROUTED, FAILED, WRONG = "built", "routed", "not routed", "failed", "wrong"


@dataclasses.dataclass
class Candidate:
    """One backend in a tuning.

    Attributes:
        label: Short and unique in the tuning.
        backend: Built when `status` is "built" or "routed"; None once it was given up.
        status: "built"; at the end "routed", "not routed", "failed" (it raised) or "wrong" (other values than eager).
        reason: Why it failed or is wrong, in one line; empty when it did not.
        log: The traceback, and what torch and xpugraph logged while it was built; empty when nothing was.
        build_seconds: How long ``build`` took.
        measurements: By batch size.
        served_by_eager: Measured sizes that the backend passed on to eager.
        saturated_at: The batch size at which the profiling stop strategy was finished with it.
        facts: What a graph backend tells of its recording: sizes, dropped sizes, bytes.
    """

    label: str
    backend: Backend | None
    config: str
    status: str = BUILT
    reason: str = ""
    log: str = ""
    build_seconds: float = 0.0
    measurements: dict[int, Measurement] = dataclasses.field(default_factory=dict)
    served_by_eager: list[int] = dataclasses.field(default_factory=list)
    saturated_at: int | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether it can still be routed to."""
        return self.status == BUILT

    @property
    def steps(self) -> list[int]:
        """The batch sizes at which its latency changes; empty for one whose latency is continuous."""
        return list(self.facts.get("recorded_batch_sizes", []))

    def build(self, module: torch.nn.Module, workload: Workload) -> None:
        """Builds the backend; what it raises becomes its status."""
        assert self.backend is not None
        start = time.perf_counter()
        options = {} if workload.batch_dims is None else {"batch_dims": workload.batch_dims}
        lines: list[str] = []
        try:
            with _kept_log(lines):
                self.backend.expect(workload.recipe.batch_sizes, workload.exact_batch_sizes)
                self.backend.build(module, workload.samples(), **options)
            if self.backend.state is not BackendState.ACTIVE:
                raise StateError(f"build() left the backend {self.backend.state.value}; it must be active then")
            self.facts = _facts(self.backend)
        except Exception as error:  # noqa: BLE001  whatever a backend trips over is a result here
            self.give_up(FAILED, told(error), error)
        finally:
            self.build_seconds = time.perf_counter() - start
            self.log = "\n".join([*lines, self.log]).strip()

    def give_up(self, status: str, reason: str, error: BaseException | None = None) -> None:
        """Frees the backend and says why."""
        self.status, self.reason = status, reason
        if error is not None:
            trace = "".join(traceback.format_exception(error))
            self.log = f"{self.log}\n{trace}".strip()
        logger.warning("backend %s %s: %s", self.label, status, reason.splitlines()[0] if reason else "")
        self.free()

    def free(self) -> None:
        """Gives back what the backend holds."""
        backend, self.backend = self.backend, None
        if backend is None or backend.state not in (BackendState.ACTIVE, BackendState.DEPLOYED):
            return
        try:
            backend.deactivate()
        except Exception as error:  # noqa: BLE001  it is given up anyway; the reason is kept
            self.log += "".join(traceback.format_exception(error))


def told(error: BaseException) -> str:
    """An error in words: the name of its first class that is not private, and its message."""
    name = next(kind.__name__ for kind in type(error).__mro__ if not kind.__name__.startswith("_"))
    return f"{name}: {error}"


def check_backends(backends: Sequence[Backend]) -> None:
    """Raises ConfigError when there is none, or one is no Backend or was built already."""
    for backend in backends:
        if not isinstance(backend, Backend):
            raise ConfigError(f"backends: {backend!r} is no xpugraph.Backend")
        if getattr(backend, "_state", BackendState.INIT) is not BackendState.INIT:
            raise ConfigError(
                f"backends: a {backend.label} backend is {backend.state.value}; give one that is not built"
            )
    if not backends:
        raise ConfigError("backends=[]; at least one is needed")


def make_candidates(backends: Sequence[Backend]) -> list[Candidate]:
    """Copies of the backends, which stay as they are, with labels that are unique. One without a copy has failed."""
    made: list[Candidate] = []
    for backend in backends:
        taken = {candidate.label for candidate in made}
        labels = [backend.label] + [f"{backend.label}#{n}" for n in range(2, len(backends) + 1)]
        label = next(label for label in labels if label not in taken)
        candidate = Candidate(label, None, "")
        made.append(candidate)
        try:
            candidate.config = backend.describe().partition("\n")[0]
            candidate.backend = copy.deepcopy(backend)
        except Exception as error:  # noqa: BLE001  whatever a backend trips over is a result here
            candidate.give_up(FAILED, f"it cannot be copied or described: {told(error)}", error)
    return made


def _facts(backend: Backend) -> dict[str, Any]:
    facts = dict(backend.facts())
    sizes = facts.get("recorded_batch_sizes", [])
    if not all(type(size) is int and size >= 1 for size in sizes) or sorted(set(sizes)) != list(sizes):
        raise ConfigError(f"recorded_batch_sizes={sizes!r} of {backend.label}; ascending whole numbers are needed")
    return facts


@contextmanager
def _kept_log(lines: list[str]) -> Iterator[None]:
    """Keeps what torch and xpugraph log meanwhile; neither their levels nor their other handlers change."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread != thread:
                return
            try:
                lines.append(f"{record.levelname} {record.name}: {record.getMessage()}")
            except Exception:  # noqa: BLE001  as every handler of logging
                self.handleError(record)

    thread = threading.get_ident()
    handler, loggers = Keep(logging.INFO), [logging.getLogger(name) for name in ("torch", "xpugraph")]
    for one in loggers:
        one.addHandler(handler)
    try:
        yield
    finally:
        for one in loggers:
            one.removeHandler(handler)


@dataclasses.dataclass
class _Outcome:
    spec: Spec
    names: list[str]
    tensors: list[torch.Tensor]


class Reference:
    """What is right: the module's own result, operator by operator, on its device or on the CPU.

    Args:
        module: On its device.
        workload: Makes the batches.
        tolerance: What counts as equal.
        on_cpu: Run a copy of the module on the CPU instead; tells when the device's own operators are wrong.
    """

    def __init__(self, module: torch.nn.Module, workload: Workload, tolerance: Tolerance, on_cpu: bool = False) -> None:
        self._module = _copy_on_cpu(module) if on_cpu else module
        self._device = torch.device("cpu") if on_cpu else workload.device
        self._workload, self._tolerance = workload, tolerance
        self.name = "eager on the CPU" if on_cpu else "eager"
        self._last: tuple[int, _Outcome] | None = None
        self._noise: list[float] | None = None
        self.writes = False  # whether the forward was seen to change its arguments

    def expected(self, batch_size: int) -> _Outcome:
        """The right outcome at `batch_size`; that of the last size asked for is kept."""
        if self._last is None or self._last[0] != batch_size:
            self._last = (batch_size, self._run(batch_size))
        return self._last[1]

    def unrepeatable(self, batch_size: int) -> str | None:
        """How a second run on the same rows differs from the first; None: it does not."""
        first, second = self.expected(batch_size), self._run(batch_size)
        return self._compare(second, first)

    def _allowed_noise(self) -> list[float]:
        """For TF32's sake, measured once: on the first batch that is compared."""
        if self._noise is None:
            assert self._last is not None
            batch_size, outcome = self._last
            self._noise = tf32_noise(self._workload.device, outcome.tensors, lambda: self._run(batch_size).tensors)
        return self._noise

    def _run(self, batch_size: int) -> _Outcome:
        args, kwargs = self._workload.call(batch_size, self._device)
        before = self._outcome(None, args, kwargs).tensors
        outcome = self._outcome(self._module(*args, **kwargs), args, kwargs)
        after = outcome.tensors[len(outcome.tensors) - len(before) :]
        self.writes = self.writes or not all(map(same_bits, before, after))
        return outcome

    def difference(self, got: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: _Outcome) -> str | None:
        """What is wrong with a result, and with the arguments should the forward write to them; None: nothing."""
        return self._compare(self._outcome(got, args, kwargs), expected)

    def _compare(self, outcome: _Outcome, expected: _Outcome) -> str | None:
        if (difference := first_difference(outcome.spec, expected.spec, "output")) is not None:
            return f"{difference} (the second is {self.name}'s)"
        for name, a, b, noise in zip(
            expected.names, outcome.tensors, expected.tensors, self._allowed_noise(), strict=True
        ):
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"{name} is {a.dtype} {tuple(a.shape)}; {self.name}'s is {b.dtype} {tuple(b.shape)}"
            if (worst := self._tolerance.worst(a, b, noise)) > 1.0:
                return f"{name} differs from {self.name}'s by {worst:.3g} times the tolerance"
        return None

    def _outcome(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Outcome:
        leaves = Leaves()
        spec = describe(result, "output", leaves)
        describe([args, kwargs], "arguments", leaves)
        return _Outcome(spec, leaves.names, [t.detach().cpu().clone() for t in leaves.tensors])


def _copy_on_cpu(module: torch.nn.Module) -> torch.nn.Module:
    """A copy whose weights were copied to the CPU directly, so that the device never holds them twice."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = torch.nn.Parameter(parameter.detach().cpu(), parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = buffer.detach().cpu()
    try:
        return copy.deepcopy(module, memo).to("cpu")
    except Exception as error:
        raise ConfigError(f"reference='cpu': the module cannot be copied: {error}") from error
