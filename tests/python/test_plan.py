# SPDX-License-Identifier: MIT
"""Plans by measured cost, and batch sizes that are recorded exactly."""

from __future__ import annotations

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


def test_the_plain_rule_forgets_timings(pair, cost_of_rows):
    p = pair(mlp(), [torch.randn(32, 32)])
    state = p.backend.to_dict()
    state["config"]["plan"] = "pad"
    loaded = xg.XPUGraphBackend.from_dict(p.module, state)
    loaded.deploy()
    loaded.record_batch_size(5)
    assert loaded.plan(17) == [24]
    assert "plan: pad" in loaded.describe()


@pytest.mark.parametrize("size", [-1, 1.5, "5", None, True, 2**70])
def test_plan_refuses(pair, size):
    p = pair(mlp(), [torch.randn(4, 32)])
    with pytest.raises(xg.InputError, match="batch_size="):
        p.backend.plan(size)
    assert p.backend.plan(0) == []


@pytest.mark.parametrize("costs", [{"9" * 5000: 1.0}, {"8": 10**400}, {"0": 1.0}, {"\uff11": 1.0}])
def test_hostile_costs_are_refused(pair, costs):
    p = pair(mlp(), [torch.randn(4, 32)])
    with pytest.raises(xg.ConfigError, match="state"):
        xg.XPUGraphBackend.from_dict(p.module, {**p.backend.to_dict(), "costs": costs})


@pytest.mark.parametrize(
    ("field", "value"),
    [("plan", "best"), ("plan", None), ("exact_after", 0), ("exact_after", 1.5), ("exact_batch_sizes", 1)],
)
def test_config_refuses(field, value):
    with pytest.raises(xg.ConfigError, match=f"{field}="):
        xg.XPUGraphBackendConfig(**{field: value})
