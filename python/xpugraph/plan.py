# SPDX-License-Identifier: MIT
"""Measured plans: what a replay of every recorded size costs, so that each batch is served by the cheapest of them.

Padding 17 rows to 24 wastes seven; where a replay's time grows with its rows, 16 + 1 is faster. Which it is depends on
the model and the device, so that every recorded size is timed once, after recording. The cover of each batch is then
computed by ``PlanTable::cheapest`` (csrc/core/batch_plan.h).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

MIN_GAIN = 0.05  # how much cheaper a cover must be than the next recorded size alone: more than timings are off by
EXACT_GAIN = 0.10  # and than the own graph of a recorded size, which is what everybody expects to run
_BURST_SECONDS = 2e-3
_MOST_CALLS = 64
_BURSTS = 2
_ENOUGH_SECONDS = 0.2  # after which a size is not timed again


def measure_cost(call: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """What one call costs in ms when others follow at once: the fastest of a few bursts."""
    call()
    synchronize()
    spent = once = _burst(call, synchronize, 1)
    calls = max(1, min(_MOST_CALLS, int(_BURST_SECONDS / max(once, 1e-6))))
    best = once
    for _ in range(_BURSTS):
        if spent > _ENOUGH_SECONDS:
            break
        seconds = _burst(call, synchronize, calls)
        spent += seconds * calls
        best = min(best, seconds)
    return 1e3 * best


def _burst(call: Callable[[], object], synchronize: Callable[[], None], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize()
    return (time.perf_counter() - start) / calls


def covers(call: Any, largest: int) -> list[tuple[int, int, list[int]]]:
    """Ranges of batch sizes up to `largest` that the same recorded sizes serve: first, last, the sizes in order."""
    by_size = ((size, [chunk.size for chunk in call.plan(size)]) for size in range(1, largest + 1))
    found = []
    for sizes, group in groupby(by_size, key=lambda entry: entry[1]):
        members = [size for size, _ in group]
        found.append((members[0], members[-1], sizes))
    return found


def by_plain_rule(sizes: Sequence[int], recorded: Sequence[int], batch_size: int) -> bool:
    """Whether `sizes` are what the plain rule serves `batch_size` (at most the largest recorded one) with."""
    return list(sizes) == [next(size for size in recorded if size >= batch_size)]


def describe_plan(call: Any) -> str:
    """The plan in one line: every range that is not served by its next recorded size alone."""
    recorded = list(call.sizes)
    parts = []
    for first, last, sizes in covers(call, recorded[-1]):
        if not by_plain_rule(sizes, recorded, first):
            batches = str(first) if first == last else f"{first}…{last}"
            parts.append(f"{batches} → {'+'.join(map(str, sizes))}")
    return ", ".join([*parts, "others → next recorded size"]) if parts else "every batch → next recorded size"
