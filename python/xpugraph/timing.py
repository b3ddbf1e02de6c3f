# SPDX-License-Identifier: MIT
"""Times calls against each other: the host's clock around one call and one synchronisation of the current stream."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

MIN_REPETITIONS = 10
MAX_REPETITIONS = 10_000
MAX_SECONDS = 10.0  # a call so slow that ten of them take longer is repeated less, yet at least once a round
WARM_UP_CALLS = 3


@dataclass(frozen=True)
class Timing:
    """What the repetitions of one call took, in ms."""

    median: float
    p25: float
    p75: float
    repetitions: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Summarises durations in seconds; quartiles interpolate between neighbours."""
        values = [1e3 * second for second in seconds]
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        p25, median, p75 = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, p25, p75, len(values))


def stream_synchronizer(device: torch.device) -> Callable[[], None]:
    """Returns what waits for the stream that is current now on `device`, and for no other stream."""
    if device.type == "cpu":
        return lambda: None
    return getattr(torch, device.type).current_stream(device).synchronize


class _Guard:
    """How many blocks want no collection, of all threads: the switch is the process's."""

    lock = threading.Lock()
    blocks = 0
    was_enabled = False


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Collects garbage now and not again until the end of the block, nor of any other thread's."""
    gc.collect()
    with _Guard.lock:
        if _Guard.blocks == 0:
            _Guard.was_enabled = gc.isenabled()
        _Guard.blocks += 1
        gc.disable()
    try:
        yield
    finally:
        with _Guard.lock:
            _Guard.blocks -= 1
            if _Guard.blocks == 0 and _Guard.was_enabled:
                gc.enable()


@contextmanager
def gc_allowed() -> Iterator[None]:
    """Within a block of `gc_disabled`: garbage is collected again, unless another block wants none."""
    with _Guard.lock:
        _Guard.blocks -= 1
        if _Guard.blocks == 0 and _Guard.was_enabled:
            gc.enable()
    try:
        yield
    finally:
        gc.collect()
        with _Guard.lock:
            _Guard.blocks += 1
            gc.disable()


def time_interleaved(
    calls: Mapping[str, Callable[[], object]],
    synchronize: Callable[[], None],
    min_time: float = 0.5,
    rounds: int = 3,
    on_turn: Callable[[str], None] = lambda name: None,
) -> dict[str, Timing]:
    """Times several calls in turns, so that a machine that slows down meanwhile slows all of them.

    Args:
        calls: What to time, by name; each has run before, as a first call may compile.
        synchronize: Waits for what a call submitted.
        min_time: Seconds to spend on each call in all; at least 10 repetitions unless they take over 10 s.
        rounds: How many turns each call gets.
        on_turn: Told the name of the call at the start of every turn, the warm-up included.
    """
    for name, call in calls.items():
        on_turn(name)
        for _ in range(WARM_UP_CALLS):
            if _timed(call, synchronize) > MAX_SECONDS / MIN_REPETITIONS:
                break
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with gc_disabled():
        for _ in range(rounds):
            for name, call in calls.items():
                on_turn(name)
                seconds[name] += _turn(call, synchronize, min_time / rounds, rounds)
    return {name: Timing.of(values) for name, values in seconds.items()}


def _turn(call: Callable[[], object], synchronize: Callable[[], None], budget: float, rounds: int) -> list[float]:
    least, most = -(-MIN_REPETITIONS // rounds), MAX_REPETITIONS // rounds
    values: list[float] = []
    spent = 0.0
    while len(values) < most and (spent < budget or len(values) < least) and spent < MAX_SECONDS / rounds:
        values.append(_timed(call, synchronize))
        spent += values[-1]
    return values


def _timed(call: Callable[[], object], synchronize: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - start
