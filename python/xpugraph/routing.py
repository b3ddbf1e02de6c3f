# SPDX-License-Identifier: MIT
"""From measured latencies to routes: which backend serves which range of batch sizes."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from .errors import ConfigError

MOST_ROUTED = 1 << 20  # a bound on routes that come from outside; batches are far smaller

TIE = 0.02  # peak throughputs this near to each other are equal: a measurement does not tell them apart


@dataclasses.dataclass(frozen=True)
class Route:
    """Batch sizes `first` … `last` (None: and all above) go to `backend`, a label."""

    first: int
    last: int | None
    backend: str

    def __contains__(self, batch_size: int) -> bool:
        return self.first <= batch_size and (self.last is None or batch_size <= self.last)

    def __str__(self) -> str:
        last = "∞" if self.last is None else str(self.last)
        return f"{self.first}…{last} → {self.backend}" if last != str(self.first) else f"{self.first} → {self.backend}"


def check_routes(routes: Sequence[Route], backends: Sequence[str]) -> None:
    """Raises ConfigError unless the routes cover 1…∞ without gap or overlap and name known backends."""
    expected: int | None = 1
    for route in routes:
        whole = type(route.first) is int and type(route.last) in (int, type(None))
        bad_end = whole and route.last is not None and not route.first <= route.last <= MOST_ROUTED
        if not whole or expected is None or route.first != expected or bad_end:
            raise ConfigError(f"routes: {route} does not continue at {expected}; ranges must follow each other from 1")
        if route.backend not in backends:
            raise ConfigError(f"routes: no backend is called {route.backend!r}; there are {', '.join(backends)}")
        expected = None if route.last is None else route.last + 1
    if expected is not None:
        raise ConfigError(f"routes: batch sizes from {expected} on have no route; the last range must end with None")


@dataclasses.dataclass(frozen=True)
class LatencyCurve:
    """Latency of one backend at every batch size, from measurements at some.

    Attributes:
        measured: Latency by batch size, in any unit; at least one.
        steps: The sizes that run for others: a batch costs what the steps that cover it cost together. Empty: latency
            is continuous and interpolated linearly.
        cover: Which steps run for a batch. None, or an empty answer: the next one; above the last one, chunks of it and
            the remainder.
    """

    measured: Mapping[int, float]
    steps: Sequence[int] = ()
    cover: Callable[[int], Sequence[int]] | None = None
    _by_step: dict[int, float] = dataclasses.field(init=False, repr=False, compare=False)
    _sizes: list[int] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ConfigError when nothing was measured."""
        if not self.measured:
            raise ConfigError("measured: at least one batch size is needed")
        object.__setattr__(self, "_sizes", sorted(self.measured))
        # Of several sizes that one step alone served, the largest one says best what the step costs.
        alone = {steps[0]: size for size in self._sizes if len(steps := self._cover(size)) == 1} if self.steps else {}
        object.__setattr__(self, "_by_step", {step: self.measured[size] for step, size in alone.items()})

    def __call__(self, batch_size: int) -> float:
        """The latency at `batch_size`, which need not have been measured."""
        if batch_size in self.measured:
            return self.measured[batch_size]
        if not self.steps:
            return self._interpolate(batch_size)
        return sum(self._by_step[step] if step in self._by_step else self._interpolate(step)
                   for step in self._cover(batch_size))  # fmt: skip

    def _cover(self, batch_size: int) -> Sequence[int]:
        if self.cover is not None and (found := self.cover(batch_size)):
            return found
        chunks, rest = divmod(batch_size, self.steps[-1])
        steps = [self.steps[-1]] * chunks
        return [*steps, self.steps[bisect.bisect_left(self.steps, rest)]] if rest else steps

    def _interpolate(self, batch_size: int) -> float:
        """Between neighbours linearly; below the smallest its latency, above the largest its throughput."""
        i = bisect.bisect_left(self._sizes, batch_size)
        if i == 0:
            return self.measured[self._sizes[0]]
        below = self._sizes[i - 1]
        if i == len(self._sizes):
            return self.measured[below] * batch_size / below
        above = self._sizes[i]
        share = (batch_size - below) / (above - below)
        return self.measured[below] * (1 - share) + self.measured[above] * share

    def peak_throughput(self, latency_budget: float = math.inf) -> float:
        """Most items per unit of latency at any measured size whose latency is within the budget; 0 when none is."""
        within = [size / t for size, t in self.measured.items() if t <= latency_budget]
        return max(within, default=0.0)


def choose_default(
    curves: Mapping[str, LatencyCurve], objective: str = "throughput", latency_budget: float = math.inf
) -> str:
    """The backend that serves every batch size where no other is clearly faster.

    Args:
        curves: By label; of equal ones the first wins.
        objective: "throughput": the highest peak throughput at a latency within the budget. "latency": the lowest
            latency at any size.
        latency_budget: In the unit of the curves.

    Raises:
        ConfigError: No backend is within the budget at any size.
    """
    if objective == "latency":
        scores = {label: 1 / max(min(curve.measured.values()), 1e-12) for label, curve in curves.items()}
    else:
        scores = {label: curve.peak_throughput(latency_budget) for label, curve in curves.items()}
    best = max(scores.values())
    if best == 0.0:
        least = ", ".join(f"{label} {min(curve.measured.values()):.3g}" for label, curve in curves.items())
        raise ConfigError(f"latency_budget_ms={latency_budget:g}; no backend is that fast at any batch size: {least}")
    return next(label for label, score in scores.items() if score >= best * (1 - TIE))


def choose_routes(curves: Mapping[str, LatencyCurve], default: str, min_gain: float = 0.10) -> list[Route]:
    """Ranges of batch sizes and their backends, contiguous, from 1 to ∞.

    At a measured size `default` serves unless another backend is faster by at least `min_gain` there (its latency is at
    most 1 − min_gain of the default's). At every size the latency of the chosen backend is at most 1 / (1 − min_gain)
    of the fastest one's; with a `min_gain` of 0 it is the fastest. Of all routes that keep to this, those with the
    fewest ranges are taken; of these, those whose ranges begin at the simplest places between two measured sizes (the
    first, the last, the middle, a quarter, …), so that noise does not move them; of these, those with the least
    latency. What was chosen for the largest measured size serves all sizes above.
    """
    measured = sorted({size for curve in curves.values() for size in curve.measured})
    costs: dict[str, tuple[int, int, float]] = {"": (0, 0, 0.0)}  # of the best way up to a size, by its last backend
    origins: list[dict[str, str]] = []  # for each size: the backend of the size before, on that way
    for size in range(1, measured[-1] + 1):
        latencies = {label: curve(size) for label, curve in curves.items()}
        best = min(latencies.values())
        place = _place(measured, size)
        nearest = min(costs, key=costs.__getitem__)
        origins.append({})
        reached: dict[str, tuple[int, int, float]] = {}
        for label in _allowed(latencies, default if size in measured else None, 1 - min_gain):
            origin = min((label, nearest), key=lambda o: _change(costs, o, label, place))
            ranges, places, latency = _change(costs, origin, label, place)
            reached[label] = (ranges, places, latency + latencies[label] / best)
            origins[-1][label] = origin
        costs = reached
    chosen = [min(costs, key=costs.__getitem__)]
    for step in reversed(origins[1:]):
        chosen.append(step[chosen[-1]])
    return _ranges(chosen[::-1])


def _allowed(latencies: Mapping[str, float], default: str | None, keep: float) -> list[str]:
    """Who may serve a size: at a measured one the default or else those with the gain, elsewhere all near the best."""
    best = min(latencies.values())
    near = [label for label, latency in latencies.items() if latency * keep <= best]
    if default is None:
        return near
    if best == latencies[default] or best > latencies[default] * keep:
        return [default]
    return [label for label in near if latencies[label] <= latencies[default] * keep]


def _change(costs: Mapping[str, tuple[int, int, float]], origin: str, label: str, place: int) -> tuple[int, int, float]:
    """The cost of going on from `origin` with `label`."""
    if origin not in costs:
        return (1 << 60, 0, 0.0)
    ranges, places, latency = costs[origin]
    return (ranges, places, latency) if origin == label else (ranges + 1, places + place, latency)


def _place(measured: Sequence[int], size: int) -> int:
    """How simple a place for a range to begin: 0 behind a measured size, 1 at the next one, 2 half-way, and so on."""
    i = bisect.bisect_left(measured, size)
    start = measured[i - 1] + 1 if i else 1
    position, length = size - start, measured[i] - start
    if position in (0, length):
        return 0 if position == 0 else 1
    depth, parts = 1, 2
    while round(round(position * parts / length) * length / parts) != position:
        depth, parts = depth + 1, parts * 2
    return depth + 1


def _ranges(chosen: Sequence[str]) -> list[Route]:
    routes: list[Route] = []
    for size, label in enumerate(chosen, start=1):
        if routes and routes[-1].backend == label:
            routes[-1] = dataclasses.replace(routes[-1], last=size)
        else:
            routes.append(Route(size, size, label))
    routes[-1] = dataclasses.replace(routes[-1], last=None)
    return routes
