# SPDX-License-Identifier: MIT
"""Profiling: the latency of several backends at one batch size after another, taken in turns.

One batch size goes like this. Every backend is called once, which may compile, tune or allocate; that call is checked
by value, its duration is kept as `first_call_ms`, and nothing judges it. Warm-up calls follow and are forgotten. Then
the backends take turns: a turn is one sample, the median call of a burst, so that a machine that slows down
meanwhile slows all of them. A call is timed by the host's clock around the call and a synchronisation of the current
stream: a backend that only submits its work gains nothing by returning early.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from ..errors import ConfigError
from ..routing import MOST_ROUTED
from .stop import (
    MeasurementStopStrategy,
    ProfilingStopStrategy,
    StableWindowMeasuringStopStrategy,
    ThroughputSaturatedProfilingStopStrategy,
    real_number,
    whole_number,
)

clock = time.perf_counter  # of every measurement here, in seconds

MIN_SAMPLES = 3  # taken however slow a call is


@dataclasses.dataclass(frozen=True)
class ProfilingConfig:
    """How backends are profiled. The argument names are those of AITune and torch-tweak.

    Attributes:
        batch_sizes: The sizes to profile, instead of every size where some backend's behaviour changes (each recorded
            size of the graphs) and those that ``tune`` was given.
        measurement_stop_strategy: Ends the measuring of one backend at one size.
        profiling_stop_strategy: Judges a backend's throughputs. When every backend is finished, only the sizes that
            ``tune`` was given and the largest are still measured; the rest is interpolated.
        sample_seconds: A sample is the median of calls over at least this time, and of one call at least.
        max_seconds: At most this long for one backend at one size, the first call left out; three samples are taken
            however long that takes.
    """

    batch_sizes: Sequence[int] | None = None
    measurement_stop_strategy: MeasurementStopStrategy = StableWindowMeasuringStopStrategy()
    profiling_stop_strategy: ProfilingStopStrategy = ThroughputSaturatedProfilingStopStrategy()
    sample_seconds: float = 0.005
    max_seconds: float = 2.0

    def __post_init__(self) -> None:
        """Raises ConfigError for a value out of range; names the field."""
        if self.batch_sizes is not None:
            object.__setattr__(self, "batch_sizes", sorted_sizes("batch_sizes", self.batch_sizes))
        for name, kind in (
            ("measurement_stop_strategy", MeasurementStopStrategy),
            ("profiling_stop_strategy", ProfilingStopStrategy),
        ):
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name}={getattr(self, name)!r}; a {kind.__name__} is needed")
        real_number("sample_seconds", self.sample_seconds, 0)
        real_number("max_seconds", self.max_seconds, 0)


def sorted_sizes(name: str, sizes: Sequence[int]) -> list[int]:
    """Ascending and each once. Raises ConfigError for anything but whole numbers from 1, and for none."""
    if isinstance(sizes, (str, bytes)) or not hasattr(sizes, "__iter__"):
        raise ConfigError(f"{name}={sizes!r}; a list of whole numbers is needed")
    listed = list(sizes)
    for size in listed:
        whole_number(name, size)
        if size > MOST_ROUTED:
            raise ConfigError(f"{name}={size!r}; at most {MOST_ROUTED} is routed")
    if not listed:
        raise ConfigError(f"{name}=[]; at least one size is needed")
    return sorted(set(listed))


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One backend at one batch size. Times are in ms, of one call with its synchronisation.

    Attributes:
        batch_size: Items of one call.
        latency_ms: Median of the window.
        p25_ms: Lower quartile of the window.
        p75_ms: Upper quartile of the window.
        samples: How many the window has.
        stable: Whether the stop strategy trusts the window.
        first_call_ms: The very first call at this size; part of nothing else.
    """

    batch_size: int
    latency_ms: float
    p25_ms: float
    p75_ms: float
    samples: int
    stable: bool
    first_call_ms: float

    @property
    def throughput(self) -> float:
        """Items per second, from the window's median."""
        return 1e3 * self.batch_size / self.latency_ms

    @classmethod
    def of(cls, batch_size: int, window: Sequence[float], stable: bool, first_call: float) -> Measurement:
        """Summarises a window of samples in seconds."""
        values = [1e3 * max(second, 1e-9) for second in window]
        quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return cls(
            batch_size, statistics.median(values), quartiles[0], quartiles[2], len(values), stable, 1e3 * first_call
        )


class Turn:
    """One backend being measured at one batch size."""

    def __init__(
        self,
        call: Callable[[], object],
        prepare: Callable[[], None],
        synchronize: Callable[[], None],
        config: ProfilingConfig,
    ) -> None:
        self._call, self._prepare, self._synchronize, self._config = call, prepare, synchronize, config
        self._samples: list[float] = []
        self._spent = 0.0

    def timed(self) -> float:
        """Seconds of one call, synchronised before and after."""
        self._prepare()
        self._synchronize()
        start = clock()
        self._call()
        self._synchronize()
        return clock() - start

    def warm_up(self) -> None:
        """Calls that count for nothing."""
        budget = self._config.max_seconds / 4
        for _ in range(self._config.measurement_stop_strategy.warmup_samples):
            if budget <= 0:
                break
            budget -= self.timed()

    def sample(self) -> None:
        """Takes one sample."""
        calls = [self.timed()]
        while sum(calls) < self._config.sample_seconds:
            calls.append(self.timed())
        self._spent += sum(calls)
        self._samples.append(statistics.median(calls))

    @property
    def finished(self) -> bool:
        """Whether no further sample is wanted."""
        out_of_time = len(self._samples) >= MIN_SAMPLES and self._spent >= self._config.max_seconds
        return out_of_time or (
            bool(self._samples) and self._config.measurement_stop_strategy.is_finished(self._samples)
        )

    def result(self, batch_size: int, first_call: float) -> Measurement:
        """What the window tells."""
        strategy = self._config.measurement_stop_strategy
        window = strategy.window(self._samples)
        return Measurement.of(batch_size, window, strategy.is_stable(window), first_call)


def measure_in_turns(
    calls: Mapping[str, Callable[[], object]],
    first_calls: Mapping[str, float],
    synchronize: Callable[[], None],
    batch_size: int,
    config: ProfilingConfig,
    on_turn: Callable[[str], None] = lambda label: None,
    prepare: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Measurement], dict[str, Exception]]:
    """Measures several backends at one batch size.

    Args:
        calls: By label; each has run once at this size.
        first_calls: Seconds of that call.
        synchronize: Waits for the current stream.
        batch_size: Items of one call.
        config: How.
        on_turn: Told who warms up.
        prepare: Called before every call, outside of what is timed.

    Garbage collection should be off meanwhile (``timing.gc_disabled``).

    Returns:
        Measurements by label, and what was raised by those that have none.
    """
    turns = {label: Turn(call, prepare, synchronize, config) for label, call in calls.items()}
    failed: dict[str, Exception] = {}
    done: dict[str, Measurement] = {}

    def attempt(label: str, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001  whatever a backend trips over is a result here
            failed[label] = error
            del turns[label]

    for label in list(turns):
        on_turn(label)
        attempt(label, turns[label].warm_up)
    while turns:
        for label in list(turns):
            attempt(label, turns[label].sample)
            if label in turns and turns[label].finished:
                done[label] = turns.pop(label).result(batch_size, first_calls[label])
    return {label: done[label] for label in calls if label in done}, failed
