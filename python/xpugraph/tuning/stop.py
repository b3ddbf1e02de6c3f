# SPDX-License-Identifier: MIT
"""When to stop: measuring one batch size, and going on to larger ones.

A *sample* is the median call of a short burst, in seconds, synchronised with the device. Warm-up calls, and the first
call of a batch size, which may compile, are no samples: no strategy ever sees them. Both kinds of strategy judge the
same *window* of samples, which is also what the reported latency and throughput are computed from.
"""

from __future__ import annotations

import dataclasses
import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..errors import ConfigError


def whole_number(name: str, value: object, least: int = 1) -> None:
    """Raises ConfigError unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r}; a whole number of {least} or more is needed")


def real_number(name: str, value: object, least: float, below: float = float("inf")) -> None:
    """Raises ConfigError unless `value` is a number from `least` to less than `below`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < below:
        limit = "" if below == float("inf") else f" and less than {below:g}"
        raise ConfigError(f"{name}={value!r}; a number of {least:g} or more{limit} is needed")


class MeasurementStopStrategy(ABC):
    """Says when one backend has been measured enough at one batch size. Keeps no state: safe to share.

    Attributes:
        warmup_samples: Calls after the first one that are made before the first sample.
    """

    warmup_samples: int

    @abstractmethod
    def window(self, samples: Sequence[float]) -> Sequence[float]:
        """The samples that count, of all taken so far."""

    @abstractmethod
    def is_stable(self, window: Sequence[float]) -> bool:
        """Whether the window's figure can be trusted."""

    @abstractmethod
    def is_finished(self, samples: Sequence[float]) -> bool:
        """Whether no further sample is needed."""


@dataclasses.dataclass(frozen=True)
class StableWindowMeasuringStopStrategy(MeasurementStopStrategy):
    """Stops when the last samples agree with each other, or when there are many.

    When there are many and they do not agree, the fastest run of `window_size` samples counts: whatever disturbs a
    measurement makes it slower.

    The argument names are those of AITune 0.6, where a sample is one call.

    Attributes:
        window_size: How many of the last samples are looked at.
        warmup_samples: Calls before the first sample.
        max_samples: Stop then, stable or not.
        max_cv_ratio: Agreement: standard deviation over mean of the window is at most this.
    """

    window_size: int = 20
    warmup_samples: int = 10
    max_samples: int = 60
    max_cv_ratio: float = 0.10

    def __post_init__(self) -> None:
        """Raises ConfigError for a value out of range; names the field."""
        whole_number("window_size", self.window_size, 2)
        whole_number("warmup_samples", self.warmup_samples, 0)
        whole_number("max_samples", self.max_samples, self.window_size)
        real_number("max_cv_ratio", self.max_cv_ratio, 0)

    def window(self, samples: Sequence[float]) -> Sequence[float]:
        """The last `window_size`; the fastest as many in a row when the last do not agree."""
        last = samples[-self.window_size :]
        if len(samples) < self.max_samples or self.is_stable(last):
            return last
        starts = range(len(samples) - self.window_size + 1)
        start = min(starts, key=lambda i: statistics.median(samples[i : i + self.window_size]))
        return samples[start : start + self.window_size]

    def is_stable(self, window: Sequence[float]) -> bool:
        """Enough samples, and their coefficient of variation is at most `max_cv_ratio`."""
        return len(window) >= self.window_size and coefficient_of_variation(window) <= self.max_cv_ratio

    def is_finished(self, samples: Sequence[float]) -> bool:
        """Stable, or `max_samples` were taken."""
        return len(samples) >= self.max_samples or self.is_stable(samples[-self.window_size :])


@dataclasses.dataclass(frozen=True)
class NumStepsMeasuringStopStrategy(MeasurementStopStrategy):
    """Takes a fixed number of samples.

    Attributes:
        num_steps: How many samples; all of them count.
        warmup_samples: Calls before the first sample.
    """

    num_steps: int = 20
    warmup_samples: int = 10

    def __post_init__(self) -> None:
        """Raises ConfigError for a value out of range; names the field."""
        whole_number("num_steps", self.num_steps)
        whole_number("warmup_samples", self.warmup_samples, 0)

    def window(self, samples: Sequence[float]) -> Sequence[float]:
        """All."""
        return samples

    def is_stable(self, window: Sequence[float]) -> bool:
        """The number was reached."""
        return len(window) >= self.num_steps

    def is_finished(self, samples: Sequence[float]) -> bool:
        """The number was reached."""
        return len(samples) >= self.num_steps


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Standard deviation over mean; 0 of fewer than two values."""
    if len(values) < 2:
        return 0.0
    return statistics.pstdev(values) / max(statistics.fmean(values), 1e-12)


class ProfilingStopStrategy(ABC):
    """Says when a backend gains nothing from larger batches any more. Keeps no state: safe to share."""

    @abstractmethod
    def is_finished(self, throughputs: Sequence[float]) -> bool:
        """Judges one backend.

        Args:
            throughputs: Items per second at the batch sizes measured so far, ascending, each from the measured window.
        """


@dataclasses.dataclass(frozen=True)
class ThroughputSaturatedProfilingStopStrategy(ProfilingStopStrategy):
    """Stops after several batch sizes in a row that did not raise the best throughput.

    Attributes:
        throughput_cutoff_threshold: A size counts as a gain when its throughput is above that of the last gain by more
            than this ratio; small gains add up.
        throughput_backoff_limit: How many sizes in a row without a gain end the profiling.
    """

    throughput_cutoff_threshold: float = 0.05
    throughput_backoff_limit: int = 2

    def __post_init__(self) -> None:
        """Raises ConfigError for a value out of range; names the field."""
        real_number("throughput_cutoff_threshold", self.throughput_cutoff_threshold, 0)
        whole_number("throughput_backoff_limit", self.throughput_backoff_limit)

    def is_finished(self, throughputs: Sequence[float]) -> bool:
        """Whether the last `throughput_backoff_limit` sizes brought no gain."""
        best, without_gain = 0.0, 0
        for throughput in throughputs:
            if throughput > best * (1 + self.throughput_cutoff_threshold):
                best, without_gain = throughput, 0
            else:
                without_gain += 1
        return without_gain >= self.throughput_backoff_limit


@dataclasses.dataclass(frozen=True)
class NeverProfilingStopStrategy(ProfilingStopStrategy):
    """Profiles every batch size."""

    def is_finished(self, throughputs: Sequence[float]) -> bool:
        """Never."""
        return False
