# SPDX-License-Identifier: MIT
"""How calls are timed."""

from __future__ import annotations

import gc
import time

import pytest

from xpugraph import timing
from xpugraph.timing import Timing


def test_timing_summarises_known_durations():
    summary = Timing.of([0.005, 0.001, 0.002, 0.004, 0.003])
    assert (summary.p25, summary.median, summary.p75, summary.repetitions) == pytest.approx((2.0, 3.0, 4.0, 5))
    assert Timing.of([0.002]) == Timing(2.0, 2.0, 2.0, 1)


def test_slower_call_measures_slower_and_warm_up_is_left_out():
    first = iter([True])

    def compiles_once():
        time.sleep(0.2 if next(first, False) else 0.001)

    result = timing.time_interleaved({"a": compiles_once, "b": lambda: time.sleep(0.004)}, lambda: None, min_time=0.05)
    assert 1 <= result["a"].median < 4 <= result["b"].median
    assert min(result["a"].repetitions, result["b"].repetitions) >= timing.MIN_REPETITIONS


def test_synchronize_is_part_of_what_is_timed():
    result = timing.time_interleaved({"a": lambda: None}, lambda: time.sleep(0.003), min_time=1e-6)
    assert result["a"].median >= 3


def test_calls_take_turns():
    order = []
    timing.time_interleaved({"a": lambda: None, "b": lambda: None}, lambda: None, 1e-6, rounds=2, on_turn=order.append)
    assert order == ["a", "b"] + ["a", "b"] * 2


def test_slow_call_stops_at_the_time_cap(monkeypatch):
    monkeypatch.setattr(timing, "MAX_SECONDS", 0.06)
    result = timing.time_interleaved({"a": lambda: time.sleep(0.03)}, lambda: None, min_time=5.0)
    assert 3 <= result["a"].repetitions < timing.MIN_REPETITIONS


@pytest.mark.parametrize("enabled", [True, False])
def test_gc_is_off_while_timing_and_then_as_before(enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(KeyError), timing.gc_disabled():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
