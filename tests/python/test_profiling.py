# SPDX-License-Identifier: MIT
"""Profiling, on a clock that only synthetic backends move: what is judged, and which routes come of it."""

from __future__ import annotations

import random

import pytest
import torch
from conftest import Fn

import xpugraph as xg
from xpugraph.tuning import profiling
from xpugraph.tuning.profiling import ProfilingConfig, measure_in_turns


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    instance = Clock()
    monkeypatch.setattr(profiling, "clock", instance)
    return instance


class Synthetic(xg.Backend):
    """Answers rightly and takes the time it is told to: seconds by batch size."""

    def __init__(self, name, clock, latency, noise=0.0, first=0.0, seed=0):
        super().__init__()
        self.name, self.clock, self.latency, self.noise, self.first = name, clock, latency, noise, first
        self.random = random.Random(seed)
        self.calls = []

    label = property(lambda self: self.name)

    def __deepcopy__(self, memo):
        return Synthetic(self.name, self.clock, self.latency, self.noise, self.first, self.random.random())

    def _build(self, module, samples, **options):
        self.module, self.seen = module, set()

    def _infer(self, x):
        n = len(x)
        self.calls.append(n)
        if n not in self.seen:
            self.seen.add(n)
            self.clock.now += self.first
        self.clock.now += self.latency(n) * (1 + self.noise * abs(self.random.gauss(0, 1)))
        return self.module(x)

    def describe(self):
        return self.name

    def to_dict(self):
        return {"backend": "Synthetic"}

    @classmethod
    def from_dict(cls, module, state):
        raise NotImplementedError


SIZES = [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
FAST = ProfilingConfig(sample_seconds=0)


def tune(backends, sizes=SIZES, config=FAST, **options):
    module = Fn(lambda x: x * 2).eval()
    strategy = xg.HighestThroughputStrategy(backends, config, **options)
    return xg.tune(module, torch.randn(max(sizes), 3), sizes, strategy, progress=False)


def listed(tuned):
    return [(route.first, route.last, route.backend) for route in tuned.routes]


def affine(fixed_ms, item_ms):
    return lambda n: 1e-3 * (fixed_ms + item_ms * n)


# ---- case 44: the first call of a size is never judged


@pytest.mark.parametrize("batch_sizes", [SIZES, None])
def test_a_slow_first_call_changes_neither_how_far_is_profiled_nor_the_route(clock, batch_sizes):
    config = ProfilingConfig(SIZES, sample_seconds=0) if batch_sizes is None else FAST
    sizes = [1, 64] if batch_sizes is None else SIZES

    def run(first):
        inductor = Synthetic("inductor", clock, affine(0.5, 0.10), first=first)
        return tune([Synthetic("eager", clock, affine(3.0, 0.12)), inductor], sizes, config)

    slow, fast = run(first=0.3), run(first=0.0)
    assert listed(slow) == listed(fast) == [(1, None, "inductor")]
    for tuned in (slow, fast):
        for backend in tuned.report.backends:
            assert list(backend.measurements) == SIZES, "profiled to the largest size"
    measured = slow.report.backends[1].measurements
    assert [m.first_call_ms for m in measured.values()] == pytest.approx([300 + 0.5 + 0.1 * n for n in SIZES])
    assert [m.latency_ms for m in measured.values()] == pytest.approx([0.5 + 0.1 * n for n in SIZES])


def test_a_slow_first_call_in_real_time():
    import time

    class Sleeper(Synthetic):
        def __deepcopy__(self, memo):
            return Sleeper(self.name, self.clock, self.latency, first=self.first)

        def _infer(self, x):
            before = self.clock.now
            result = super()._infer(x)
            time.sleep(self.clock.now - before)
            return result

    class Clock:
        now = 0.0

    sizes = [1, 2, 4, 8, 16]
    config = ProfilingConfig(measurement_stop_strategy=xg.NumStepsMeasuringStopStrategy(5, 1), sample_seconds=0)

    def run(first):
        backends = [
            Sleeper("eager", Clock(), lambda n: 0.012),
            Sleeper("compiled", Clock(), lambda n: 0.003, first=first),
        ]
        return tune(backends, sizes, config)

    slow, fast = run(0.3), run(0.0)
    assert listed(slow) == listed(fast) == [(1, None, "compiled")]
    assert list(slow.report.backends[1].measurements) == sizes
    assert all(m.first_call_ms >= 300 > 50 > m.latency_ms for m in slow.report.backends[1].measurements.values())


def test_warm_up_is_not_measured(clock):
    durations = [5.0] * 10 + [1.0] * 1000

    def call():
        clock.now += durations.pop(0)

    config = ProfilingConfig(sample_seconds=0, max_seconds=1e9)
    found, failed = measure_in_turns({"a": call}, {"a": 9.0}, lambda: None, 4, config)
    assert not failed
    assert (found["a"].latency_ms, found["a"].throughput, found["a"].stable) == (1000.0, 4.0, True)


# ---- asynchronous backends


def test_work_that_is_only_submitted_is_waited_for(clock):
    pending = {"asynchronous": 0.0}

    def submit():
        pending["asynchronous"] += 0.020
        clock.now += 0.0001

    def wait():
        clock.now += pending["asynchronous"]
        pending["asynchronous"] = 0.0

    def block():
        clock.now += 0.010

    found, _ = measure_in_turns({"submits": submit, "blocks": block}, {"submits": 0, "blocks": 0}, wait, 1, FAST)
    assert found["submits"].latency_ms == pytest.approx(20.1)
    assert found["blocks"].latency_ms == pytest.approx(10.0)


def test_an_asynchronous_backend_does_not_win_by_returning_early(device):
    """The same answer after ten times the work, all of it only submitted."""

    class Early(xg.TorchEagerBackend):
        label = "early"

        def _infer(self, x):
            for _ in range(10):
                result = super()._infer(x)
            return result

    class Waits(xg.TorchEagerBackend):
        label = "waits"

        def _infer(self, x):
            result = super()._infer(x)
            torch.sycl.current_stream().synchronize()
            return result

    def small_operators(x):
        for _ in range(60):
            x = torch.tanh(x)
        return x

    module = Fn(small_operators).eval()
    module.register_buffer("anchor", torch.zeros(1))
    config = ProfilingConfig(measurement_stop_strategy=xg.NumStepsMeasuringStopStrategy(7, 1))
    strategy = xg.HighestThroughputStrategy([Early(), Waits()], config)
    tuned = xg.tune(module.to(device), torch.randn(8, 64), [8], strategy, progress=False)
    assert listed(tuned) == [(1, None, "waits")]


# ---- noise


@pytest.mark.parametrize("noise", [0.02, 0.10])
def test_twenty_noisy_runs_choose_the_same_routes(clock, noise):
    def step(n):
        return next(s for s in SIZES if s >= n)

    class Graph(Synthetic):
        def __deepcopy__(self, memo):
            return Graph(self.name, self.clock, self.latency, self.noise, seed=self.random.random())

        def facts(self):
            return {"recorded_batch_sizes": SIZES}

    found = set()
    for seed in range(20):
        backends = [
            Synthetic("eager", clock, affine(2.0, 0.050), noise, seed=3 * seed),
            Synthetic("inductor", clock, affine(1.5, 0.015), noise, seed=3 * seed + 1),
            Graph("graph", clock, lambda n: affine(0.2, 0.055)(step(n)), noise, seed=3 * seed + 2),
        ]
        found.add(tuple(listed(tune(backends))))
    assert found == {((1, 24, "graph"), (25, None, "inductor"))}


def test_interleaving_keeps_a_machine_that_slows_down_from_choosing(clock):
    """Every call is slower than the one before it, whoever makes it; the faster backend comes last."""
    drift = {"factor": 1.0}

    class Drifting(Synthetic):
        def __deepcopy__(self, memo):
            return Drifting(self.name, self.clock, self.latency)

        def _infer(self, x):
            drift["factor"] *= 1.002
            self.clock.now += self.latency(len(x)) * drift["factor"]
            return self.module(x)

    config = ProfilingConfig(measurement_stop_strategy=xg.NumStepsMeasuringStopStrategy(40, 0), sample_seconds=0)
    tuned = tune([Drifting("slow", clock, affine(1.20, 0)), Drifting("fast", clock, affine(1, 0))], [1], config)
    assert listed(tuned) == [(1, None, "fast")]


# ---- stop strategies


def test_window_measuring_and_saturation_judge_what_is_reported(clock):
    seen = []

    class Spy(xg.StableWindowMeasuringStopStrategy):
        def is_stable(self, window):
            seen.append(tuple(window))
            return super().is_stable(window)

    class Judge(xg.ThroughputSaturatedProfilingStopStrategy):
        def is_finished(self, throughputs):
            judged.append(list(throughputs))
            return super().is_finished(throughputs)

    judged = []
    config = ProfilingConfig(None, Spy(window_size=5, warmup_samples=2, max_samples=9), Judge(), sample_seconds=0)
    tuned = tune([Synthetic("a", clock, affine(1.0, 0.1), noise=0.3)], [1, 2, 4], config)
    measurements = tuned.report.backends[0].measurements
    assert judged[-1] == [m.throughput for m in measurements.values()]
    last = sorted(1e3 * second for second in seen[-1])
    assert measurements[4].latency_ms == pytest.approx(last[2])
    assert measurements[4].samples == 5


def test_saturation_needs_several_sizes_without_gain():
    strategy = xg.ThroughputSaturatedProfilingStopStrategy(0.05, 2)
    assert not strategy.is_finished([100, 104])
    assert strategy.is_finished([100, 104, 104.9])
    assert not strategy.is_finished([100, 104, 106]), "two small gains add up to one"
    assert not strategy.is_finished([100, 90, 120, 121])
    assert strategy.is_finished([100, 200, 90, 80])


def test_saturated_backends_are_measured_at_the_sizes_that_were_asked_for_and_no_others(clock):
    grid = list(range(1, 33))
    flat = Synthetic("flat", clock, affine(0.0, 1.0))
    tuned = tune([flat], [1, 20, 32], ProfilingConfig(grid, sample_seconds=0))
    assert tuned.report.batch_sizes == [1, 2, 3, 20, 32]
    assert tuned.report.backends[0].saturated_at == 3
    growing = Synthetic("growing", clock, affine(5.0, 0.01))
    tuned = tune([flat, growing], [1, 32], ProfilingConfig(grid, sample_seconds=0))
    assert tuned.report.batch_sizes == grid, "one that still grows keeps all of them going"


def test_never_stop_strategy_profiles_everything(clock):
    config = ProfilingConfig(SIZES, profiling_stop_strategy=xg.NeverProfilingStopStrategy(), sample_seconds=0)
    assert tune([Synthetic("flat", clock, affine(0.0, 1.0))], [64], config).report.batch_sizes == SIZES


def test_stable_window_stops_early_late_and_never_below_three_samples(clock):
    calm = Synthetic("calm", clock, affine(1.0, 0))
    wild = Synthetic("wild", clock, affine(1.0, 0), noise=2.0)
    slow = Synthetic("slow", clock, affine(10_000.0, 0))
    counts = {}
    for backend in (calm, wild, slow):
        tuned = tune([backend], [1])
        (measurement,) = tuned.report.backends[0].measurements.values()
        router = tuned.backend.backends[backend.name]
        counts[backend.name] = len(router.calls)
        assert measurement.stable == (backend is calm)
    assert counts["calm"] == 1 + 10 + 20
    assert counts["wild"] == 1 + 10 + 60
    assert counts["slow"] == 1 + 1 + 3


def test_of_unstable_samples_the_fastest_run_counts(clock):
    strategy = xg.StableWindowMeasuringStopStrategy(window_size=4, warmup_samples=0, max_samples=10)
    samples = [9.0, 4.0, 3.0, 1.1, 1.2, 1.0, 8.0, 9.0, 2.0, 9.0]
    assert list(strategy.window(samples)) == [3.0, 1.1, 1.2, 1.0]
    assert strategy.is_finished(samples) and not strategy.is_stable(strategy.window(samples))
    assert list(strategy.window(samples[:6])) == [3.0, 1.1, 1.2, 1.0], "before the end: the last"
    assert list(strategy.window(samples[:6] + [1.0] * 4)) == [1.0] * 4


def test_pending_work_of_before_is_not_counted(clock):
    """A call is timed from a synchronised start."""
    pending = [0.5]

    def wait():
        clock.now += pending[0]
        pending[0] = 0.0

    def call():
        clock.now += 0.01

    def prepare():
        pending[0] = 0.5

    found, _ = measure_in_turns({"a": call}, {"a": 0}, wait, 1, FAST, prepare=prepare)
    assert found["a"].latency_ms == pytest.approx(10)


def test_a_sample_is_the_median_of_a_burst(clock):
    durations = iter([0.001, 0.009, 0.001] * 10_000)

    def call():
        clock.now += next(durations)

    config = ProfilingConfig(None, xg.NumStepsMeasuringStopStrategy(4, 0), sample_seconds=0.011)
    found, _ = measure_in_turns({"a": call}, {"a": 0}, lambda: None, 1, config)
    assert found["a"].latency_ms == pytest.approx(1.0)


def test_a_backend_that_fails_while_it_is_measured_is_told_and_the_others_go_on(clock):
    def worn_out():
        clock.now += 1e-3
        if clock.now > 0.05:
            raise RuntimeError("worn out")

    def fine():
        clock.now += 1e-3

    found, failed = measure_in_turns({"a": worn_out, "b": fine}, {"a": 0, "b": 0}, lambda: None, 1, FAST)
    assert list(found) == ["b"] and str(failed["a"]) == "worn out"


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: ProfilingConfig(batch_sizes=[]), "batch_sizes"),
        (lambda: ProfilingConfig(batch_sizes=[0]), "batch_sizes=0"),
        (lambda: ProfilingConfig(batch_sizes=[True]), "batch_sizes=True"),
        (lambda: ProfilingConfig(batch_sizes="12"), "batch_sizes='12'"),
        (lambda: ProfilingConfig(max_seconds=-1), "max_seconds=-1"),
        (lambda: ProfilingConfig(sample_seconds=float("nan")), "sample_seconds=nan"),
        (lambda: ProfilingConfig(measurement_stop_strategy=3), "measurement_stop_strategy=3"),
        (lambda: ProfilingConfig(profiling_stop_strategy=None), "profiling_stop_strategy=None"),
        (lambda: xg.StableWindowMeasuringStopStrategy(window_size=1), "window_size=1"),
        (lambda: xg.StableWindowMeasuringStopStrategy(window_size=20, max_samples=10), "max_samples=10"),
        (lambda: xg.StableWindowMeasuringStopStrategy(max_cv_ratio=-0.1), "max_cv_ratio=-0.1"),
        (lambda: xg.NumStepsMeasuringStopStrategy(num_steps=0), "num_steps=0"),
        (lambda: xg.ThroughputSaturatedProfilingStopStrategy(throughput_cutoff_threshold=-1), "cutoff_threshold=-1"),
        (lambda: xg.ThroughputSaturatedProfilingStopStrategy(throughput_backoff_limit=0), "backoff_limit=0"),
        (lambda: xg.HighestThroughputStrategy(min_gain=1), "min_gain=1"),
        (lambda: xg.HighestThroughputStrategy(min_gain=-0.1), "min_gain=-0.1"),
        (lambda: xg.HighestThroughputStrategy(objective="speed"), "objective='speed'"),
        (lambda: xg.HighestThroughputStrategy(latency_budget_ms=0), "latency_budget_ms=0"),
        (lambda: xg.HighestThroughputStrategy(latency_budget_ms=float("inf")), "latency_budget_ms=inf"),
        (lambda: xg.XPUGraphBackendConfig(copy_outputs="no"), "copy_outputs='no'"),
        (lambda: xg.XPUGraphBackendConfig(strict="false"), "strict='false'"),
        (lambda: xg.HighestThroughputStrategy(reference="gpu"), "reference='gpu'"),
        (lambda: xg.HighestThroughputStrategy(rtol=-1), "rtol=-1"),
        (lambda: xg.HighestThroughputStrategy(backends=[]), "backends"),
        (lambda: xg.HighestThroughputStrategy(backends=[3]), "backends: 3"),
        (lambda: xg.OneBackendStrategy(None), "backends: None"),
    ],
)
def test_a_value_out_of_range_is_named(make, names):
    with pytest.raises(xg.ConfigError, match=names):
        make()
