# SPDX-License-Identifier: MIT
"""Plans by measured cost, and batch sizes that are recorded exactly."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from conftest import Fn, mlp

import xpugraph as xg
from xpugraph.check import Checker
from xpugraph.plan import measure_cost
from xpugraph.recording import Recording


@pytest.fixture
def cost_of_rows(monkeypatch):
    """A replay costs what its rows cost, and a little for itself: 17 is cheapest as 16 + 1."""
    timed = []

    def cost(self, inputs, size):
        timed.append(size)
        return size + 0.25

    monkeypatch.setattr(Recording, "_cost", cost)
    return timed


def test_the_cheapest_cover_serves_a_batch(pair, cost_of_rows):
    p = pair(mlp(), [torch.randn(32, 32)])
    assert p.backend.plan(17) == [16, 1]
    assert p.backend.plan(24) == [24]
    assert p.backend.plan(29) == [24, 4, 1]
    assert p.backend.plan(31) == [32], "what 24 + 4 + 2 + 1 gains is less than timings are off by"
    assert p.backend.plan(69) == [32, 32, 4, 1]
    assert cost_of_rows == [1, 2, 4, 8, 16, 24, 32] * 2, "all are timed, and then again"
    for rows in [*range(1, 75), 17, 3, 31]:
        before = p.backend.counters()["replays"]
        p.check(torch.randn(rows, 32))
        assert p.backend.counters()["replays"] - before == len(p.backend.plan(rows)), rows
    assert "17 → 16+1" in p.backend.describe()
    assert "17 → 16+1" in p.backend.facts()["plan"]


def test_the_plain_rule(pair, cost_of_rows):
    p = pair(mlp(), [torch.randn(32, 32)], plan="pad")
    assert p.backend.plan(17) == [24]
    assert p.backend.plan(71) == [32, 32, 8]
    assert cost_of_rows == []
    assert "pad: every batch → next recorded size" in p.backend.describe()
    for rows in (1, 3, 17, 31, 71):
        p.check(torch.randn(rows, 32))


def test_a_real_measurement_makes_a_plan(pair):
    p = pair(mlp(), [torch.randn(32, 32)])
    costs = p.backend.to_dict()["costs"]
    assert sorted(map(int, costs)) == p.backend.recorded_batch_sizes
    assert all(cost > 0 for cost in costs.values())
    for rows in range(1, 70):
        assert sum(p.backend.plan(rows)) >= rows
        p.check(torch.randn(rows, 32))


def test_cost_is_of_one_call_among_others():
    calls = []

    def call():
        calls.append(1)
        time.sleep(0.001)

    cost = measure_cost(call, lambda: None)
    assert 1.0 <= cost < 10.0, "ms"
    assert len(calls) >= 3


def test_the_plan_is_saved(pair, cost_of_rows, device):
    p = pair(mlp(), [torch.randn(32, 32)])
    state = p.backend.to_dict()
    del cost_of_rows[:]
    loaded = xg.XPUGraphBackend.from_dict(p.module, state)
    loaded.deploy()
    assert cost_of_rows == [], "nothing is timed again"
    assert [loaded.plan(rows) for rows in range(1, 80)] == [p.backend.plan(rows) for rows in range(1, 80)]
    for bad in ({"x": 1.0}, {"1": 0.0}, {"1": float("nan")}, {"1": "a"}, {1: 1.0}, []):
        with pytest.raises(xg.ConfigError, match="state"):
            xg.XPUGraphBackend.from_dict(p.module, {**state, "costs": bad})
    old = {key: value for key, value in state.items() if key != "costs"}
    again = xg.XPUGraphBackend.from_dict(p.module, old)
    again.deploy()
    assert cost_of_rows == [1, 2, 4, 8, 16, 24, 32] * 2, "a state without costs is timed"


def test_activating_again_keeps_the_plan(pair, cost_of_rows):
    p = pair(mlp(), [torch.randn(32, 32)])
    del cost_of_rows[:]
    p.backend.deactivate()
    p.backend.activate()
    assert p.backend.plan(17) == [16, 1]
    assert cost_of_rows == []


def test_what_the_plan_serves_is_checked(pair, cost_of_rows, monkeypatch):
    looked_at = []

    def wrong(self, count):
        looked_at.append(count)
        return f"batch size {count} differs" if count == 17 else None

    monkeypatch.setattr(Checker, "plan", wrong)
    p = pair(mlp(), [torch.randn(32, 32)])
    assert looked_at == sorted(looked_at)
    assert looked_at[-1] == 17, "every cover, until one is wrong"
    assert {3, 5, 9, 10} < set(looked_at)
    assert p.backend.plan(17) == [24]
    assert "pad: every batch → next recorded size (measured, but batch size 17 differs)" in p.backend.describe()
    p.check(torch.randn(17, 32))


def test_the_check_of_a_cover_finds_a_wrong_value(pair, cost_of_rows, monkeypatch):
    """The real check: a graph whose results are wrong when it serves a part of a batch."""
    plan = Checker.plan

    def tampered(self, count):
        graph = self.graph
        self.graph = lambda tensors: [value + (count == 9) for value in graph(tensors)]
        try:
            return plan(self, count)
        finally:
            self.graph = graph

    monkeypatch.setattr(Checker, "plan", tampered)
    p = pair(mlp(), [torch.randn(16, 32)])
    assert "batch size 9 differs from eager" in p.backend.describe()


def test_written_arguments_in_a_cover(pair, cost_of_rows):
    p = pair(Fn(lambda x: x.mul_(2).add_(1)), [torch.randn(32, 8)])
    for rows in (17, 31, 3, 70):
        x = torch.randn(rows, 8)
        given = p.put(x)
        got = p.backend.infer(given)
        torch.testing.assert_close(got.cpu(), 2 * x + 1)
        torch.testing.assert_close(given.cpu(), 2 * x + 1)


def test_results_are_lent_only_by_a_single_replay(pair, cost_of_rows):
    p = pair(mlp(), [torch.randn(32, 32)], copy_outputs=False)
    first = p.backend.infer(p.put(x := torch.randn(17, 32)))  # two replays: copies
    p.backend.infer(p.put(torch.randn(17, 32)))
    torch.testing.assert_close(first.cpu(), p.expected(x), rtol=1e-4, atol=1e-5)


# ---- rows that pad ---------------------------------------------------------------------------------------------------


def test_padding_is_zero_whatever_came_before(pair):
    p = pair(mlp(), [torch.randn(64, 32)], plan="pad")
    generator = torch.Generator().manual_seed(7)
    call = p.backend._recording.call
    for turn in range(300):
        rows = int(torch.randint(1, 65, (), generator=generator))
        p.backend.infer(p.put(torch.full((rows, 32), float(turn + 1))))
        if turn % 7 == 0:  # looking makes the rows count as unknown, so not at every turn
            (size,) = p.backend.plan(rows)
            (padded,) = [t.cpu() for t in call.static_inputs(size)]
            assert bool((padded[:rows] == turn + 1).all()), (turn, rows)
            assert bool((padded[rows:] == 0).all()), (turn, rows)


# ---- exact sizes -----------------------------------------------------------------------------------------------------


def test_record_batch_size(pair):
    p = pair(mlp(), [torch.randn(32, 32)], plan="pad")
    assert p.backend.plan(17) == [24]
    reserved = p.backend.pool_stats()["reserved"]
    p.backend.record_batch_size(17)
    assert p.backend.plan(17) == [17]
    assert p.backend.plan(16) == [16]
    assert p.backend.plan(18) == [24]
    assert p.backend.recorded_batch_sizes == [1, 2, 4, 8, 16, 17, 24, 32]
    assert p.backend.pool_stats()["reserved"] == reserved, "it fits into what the largest size reserved"
    for rows in (*range(1, 40), 17, 24):
        p.check(torch.randn(rows, 32))
    recordings = p.backend.counters()["recordings"]
    p.backend.record_batch_size(17)
    assert p.backend.counters()["recordings"] == recordings
    p.backend.deactivate()
    p.backend.activate()
    assert 17 in p.backend.recorded_batch_sizes
    assert p.backend.to_dict()["recipe"]["batch_sizes"] == [1, 2, 4, 8, 16, 17, 24, 32]


@pytest.mark.parametrize("size", [0, -1, 33, True, 1.5, "17", None])
def test_record_batch_size_refuses(pair, size):
    p = pair(mlp(), [torch.randn(32, 32)])
    with pytest.raises(xg.ConfigError, match="batch_size="):
        p.backend.record_batch_size(size)
    p.check(torch.randn(17, 32))


def test_record_batch_size_needs_an_active_backend(pair):
    p = pair(mlp(), [torch.randn(32, 32)])
    p.backend.deactivate()
    with pytest.raises(xg.StateError):
        p.backend.record_batch_size(17)


def test_a_size_that_cannot_be_recorded_changes_nothing(pair):
    class Picky(torch.nn.Module):
        refuses = False

        def forward(self, x):
            if Picky.refuses and x.shape[0] == 17:
                raise RuntimeError("seventeen is not served")
            return x * 2

    p = pair(Picky(), [torch.randn(32, 8)], plan="pad")
    Picky.refuses = True
    with pytest.raises(RuntimeError, match="seventeen is not served"):
        p.backend.record_batch_size(17)
    assert "seventeen" in p.backend.dropped_batch_sizes[17]
    assert 17 not in p.backend.recorded_batch_sizes
    p.check(torch.randn(16, 8))
    Picky.refuses = False
    p.check(torch.randn(17, 8))
    p.backend.record_batch_size(17)
    assert p.backend.dropped_batch_sizes == {}
    p.check(torch.randn(17, 8))


def test_an_added_size_that_is_wrong_is_dropped(pair, monkeypatch):
    p = pair(mlp(), [torch.randn(32, 32)])
    monkeypatch.setattr(Checker, "size", lambda self, size, previous: "it differs")
    with pytest.raises(xg.CaptureError, match="batch size 17: it differs"):
        p.backend.record_batch_size(17)
    assert 17 not in p.backend.recorded_batch_sizes
    p.check(torch.randn(17, 32))


def test_recording_while_others_call(pair):
    p = pair(mlp(), [torch.randn(32, 32)], plan="pad")
    stop, wrong = threading.Event(), []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        while not stop.is_set():
            x = torch.randn(int(torch.randint(1, 33, (), generator=generator)), 32, generator=generator)
            if not torch.allclose(p.got(x), p.expected(x), rtol=1e-4, atol=1e-5):
                wrong.append(x.shape[0])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for size in (3, 5, 17, 19, 31):
            p.backend.record_batch_size(size)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert {3, 5, 17, 19, 31} <= set(p.backend.recorded_batch_sizes)
    assert p.backend.eager_calls() == 0


@pytest.mark.parametrize("inside", [False, True])
def test_a_size_is_added_under_the_autocast_of_the_others(pair, device, inside):
    with torch.autocast(device.type, torch.bfloat16, enabled=not inside):
        p = pair(mlp(), [torch.randn(32, 32)], plan="pad")
    with torch.autocast(device.type, torch.bfloat16, enabled=inside):
        p.backend.record_batch_size(17)
        assert torch.is_autocast_enabled(device.type) is inside
    assert p.backend.plan(17) == [17]
    with torch.autocast(device.type, torch.bfloat16, enabled=not inside):
        p.backend.infer(p.put(torch.randn(17, 32)))
    assert p.backend.eager_calls() == 0


def test_a_size_is_added_to_graphs_of_inductor(pair):
    p = pair(mlp(), [torch.randn(32, 32)], compile_with_inductor=True, plan="pad")
    compiles = p.backend.inductor_compiles
    p.backend.record_batch_size(17)
    assert p.backend.plan(17) == [17]
    for rows in (1, 16, 17, 18, 40):
        p.check(torch.randn(rows, 32))
    assert p.backend.inductor_compiles == compiles


def test_exact_after(pair):
    p = pair(mlp(), [torch.randn(32, 32)], exact_after=3, plan="pad")
    for _ in range(2):
        p.check(torch.randn(17, 32))
        p.check(torch.randn(16, 32))
    assert p.backend.recorded_batch_sizes == [1, 2, 4, 8, 16, 24, 32]
    p.check(torch.randn(17, 32))
    until = time.monotonic() + 60
    while 17 not in p.backend.recorded_batch_sizes and time.monotonic() < until:
        time.sleep(0.01)
    assert p.backend.plan(17) == [17]
    p.check(torch.randn(17, 32))
    p.backend.deactivate()
    assert not any(thread.name == "xpugraph-record" for thread in threading.enumerate())


def test_exact_after_of_a_size_that_fails_is_told_once(pair, caplog):
    class Picky(torch.nn.Module):
        refuses = False

        def forward(self, x):
            if Picky.refuses and x.shape[0] == 17:
                raise RuntimeError("seventeen is not served")
            return x * 2

    p = pair(Picky(), [torch.randn(32, 8)], exact_after=2, plan="pad")
    Picky.refuses = True
    for _ in range(10):
        p.check(torch.randn(18, 8))
        p.backend.infer(p.put(torch.randn(17, 8)))
    until = time.monotonic() + 60
    while 17 not in p.backend.dropped_batch_sizes and time.monotonic() < until:
        time.sleep(0.01)
    for _ in range(10):
        p.backend.infer(p.put(torch.randn(17, 8)))
    p.backend.deactivate()  # waits for the thread
    told = [record for record in caplog.records if "batch size 17 could not be recorded" in record.message]
    assert len(told) == 1


def test_exact_batch_sizes(pair):
    p = pair(mlp(), [torch.randn(32, 32)], batch_sizes=[17, 3], exact_batch_sizes=True)
    assert p.backend.recorded_batch_sizes == [1, 2, 3, 4, 8, 16, 17, 24, 32]
    only = pair(mlp(), [torch.randn(32, 32)], batch_sizes=[17, 3])
    assert only.backend.recorded_batch_sizes == [3, 17]
    capped = pair(
        mlp(), [torch.randn(32, 32)], batch_sizes=[17, 31], exact_batch_sizes=True, max_recorded_batch_size=20
    )
    assert capped.backend.recorded_batch_sizes == [1, 2, 4, 8, 16, 17, 20]


def test_tune_records_the_served_sizes(device):
    module = mlp().eval().to(device)
    strategy = xg.OneBackendStrategy(xg.XPUGraphBackend())
    x = torch.randn(32, 32).to(device)
    tuned = xg.tune(module, x, [1, 5, 17], strategy, exact_batch_sizes=True, progress=False)
    (backend,) = tuned.backend.backends.values()
    assert backend.recorded_batch_sizes == [1, 2, 4, 5, 8, 16, 17]
    assert strategy.backends_to_build()[0].config.exact_batch_sizes is False, "the user's own backend is as it was"
    for rows in (1, 5, 17, 30):
        torch.testing.assert_close(tuned(x[:rows]).cpu(), module(x[:rows]).detach().cpu(), rtol=1e-4, atol=1e-5)
    estimate = xg.tune(module, x, [1, 5, 17], strategy, exact_batch_sizes=True, dry_run=True)
    assert estimate.recorded_batch_sizes == [1, 2, 4, 5, 8, 16, 17]
    with pytest.raises(xg.ConfigError, match="exact_batch_sizes=1"):
        xg.tune(module, x, [1, 5, 17], strategy, exact_batch_sizes=1, progress=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [("plan", "best"), ("plan", None), ("exact_after", 0), ("exact_after", 1.5), ("exact_batch_sizes", 1)],
)
def test_config_refuses(field, value):
    with pytest.raises(xg.ConfigError, match=f"{field}="):
        xg.XPUGraphBackendConfig(**{field: value})
