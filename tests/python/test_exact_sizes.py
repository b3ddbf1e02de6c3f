# SPDX-License-Identifier: MIT
"""Batch sizes that are recorded exactly: named, added later, or by themselves once traffic has them often."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch
from conftest import Fn, mlp

import xpugraph as xg
from xpugraph.check import Checker


class Picky(torch.nn.Module):
    refuses = False

    def forward(self, x):
        if Picky.refuses and x.shape[0] == 17:
            raise RuntimeError("seventeen is not served")
        return x * 2


def wait_until(condition):
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)


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


def test_a_size_that_cannot_be_recorded_changes_nothing(pair, monkeypatch):
    p = pair(Picky(), [torch.randn(32, 8)], plan="pad")
    monkeypatch.setattr(Picky, "refuses", True)
    with pytest.raises(RuntimeError, match="seventeen is not served"):
        p.backend.record_batch_size(17)
    assert "seventeen" in p.backend.dropped_batch_sizes[17]
    assert 17 not in p.backend.recorded_batch_sizes
    p.check(torch.randn(16, 8))
    monkeypatch.setattr(Picky, "refuses", False)
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
    wait_until(lambda: 17 in p.backend.recorded_batch_sizes)
    assert p.backend.plan(17) == [17]
    p.check(torch.randn(17, 32))
    p.backend.deactivate()
    assert not any(thread.name == "xpugraph-record" for thread in threading.enumerate())


def test_exact_after_of_a_size_that_fails_is_told_once(pair, caplog, monkeypatch):
    p = pair(Picky(), [torch.randn(32, 8)], exact_after=2, plan="pad")
    monkeypatch.setattr(Picky, "refuses", True)
    for _ in range(10):
        p.check(torch.randn(18, 8))
        p.backend.infer(p.put(torch.randn(17, 8)))
    wait_until(lambda: 17 in p.backend.dropped_batch_sizes)
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


# ---- what a tester found ---------------------------------------------------------------------------------------------


def test_nothing_is_added_to_a_module_that_was_changed(pair):
    p = pair(mlp(), [torch.randn(16, 32)], plan="pad")
    weight = p.module[0].weight
    p.module[0].weight = torch.nn.Parameter(torch.randn_like(weight))
    with pytest.raises(xg.StateError, match="weight"):
        p.backend.record_batch_size(5)
    p.module[0].weight = weight
    p.module.train()
    with pytest.raises(xg.StateError, match="training"):
        p.backend.record_batch_size(5)
    p.module.eval()
    assert p.backend.recorded_batch_sizes == [1, 2, 4, 8, 16]
    p.backend.record_batch_size(5)
    p.check(torch.randn(5, 32))


def test_a_module_that_is_changed_while_a_size_is_added(pair, monkeypatch):
    p = pair(mlp(), [torch.randn(16, 32)], plan="pad")
    weight = p.module[0].weight

    def swaps(self, *args):
        p.module[0].weight = torch.nn.Parameter(torch.randn_like(weight))

    monkeypatch.setattr(Checker, "size", swaps)
    with pytest.raises(xg.StateError, match="weight"):
        p.backend.record_batch_size(5)
    p.module[0].weight = weight
    assert 5 not in p.backend.recorded_batch_sizes
    p.check(torch.randn(5, 32))


class Columns(torch.nn.Module):
    """Two columns of indices with ranges of their own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Embedding(1000, 4), torch.nn.Embedding(10, 4)

    def forward(self, i):
        return self.a(i[:, 0]) + self.b(i[:, 1])


def test_sizes_are_added_and_recorded_again_with_rows_like_the_samples(pair):
    def batch(n):
        return torch.stack([torch.randint(0, 1000, (n,)), torch.randint(0, 10, (n,))], 1)

    p = pair(Columns(), [batch(64)], plan="pad")
    p.backend.record_batch_size(5)
    p.check(batch(5))
    p.backend.deactivate()
    p.backend.activate()
    p.backend.record_batch_size(7)
    for n in (5, 7, 30, 64):
        p.check(batch(n))


def test_no_call_is_served_by_a_size_before_it_was_checked(pair, monkeypatch):
    p = pair(mlp(), [torch.randn(16, 32)], plan="pad")
    plans, size = [], Checker.size

    def looks(self, *args):
        plans.append(p.backend.plan(5))
        return size(self, *args)

    monkeypatch.setattr(Checker, "size", looks)
    p.backend.record_batch_size(5)
    assert plans == [[8]]
    assert p.backend.plan(5) == [5]


def test_the_check_of_an_added_size_runs_its_own_graph(pair):
    """Only the captured graph is wrong, not the warm-up nor eager."""

    class Odd(torch.nn.Module):
        calls = -1

        def forward(self, x):
            if Odd.calls >= 0 and x.shape[0] == 5:
                Odd.calls += 1
                if Odd.calls == 2:
                    return x * 2 + 100
            return x * 2

    p = pair(Odd(), [torch.randn(16, 8)], plan="pad")
    Odd.calls = 0
    with pytest.raises(xg.CaptureError, match="batch size 5: differs from eager"):
        p.backend.record_batch_size(5)
    Odd.calls = -1
    p.check(torch.randn(5, 8))


def test_a_pool_limit_holds_for_added_sizes(pair):
    big = Fn(lambda x: x.repeat(1, 4000).relu().view(x.shape[0], 4000, -1).sum(1))
    every = pair(big, [torch.randn(64, 64)], plan="pad")
    limit = every.backend.pool_stats()["reserved"] // 3
    p = pair(big, [torch.randn(64, 64)], plan="pad", pool_limit_bytes=limit)
    largest = p.backend.recorded_batch_sizes[-1]
    assert largest < 63
    with pytest.raises(xg.OutOfMemoryError, match="limit of the pool"):
        p.backend.record_batch_size(63)
    assert p.backend.pool_stats()["reserved"] <= limit
    p.backend.record_batch_size(largest - 1)
    p.check(torch.randn(largest - 1, 64))


def test_a_backend_that_adds_sizes_is_freed(device):
    backend = xg.XPUGraphBackend(xg.XPUGraphBackendConfig(exact_after=3))
    backend.build(mlp().eval().to(device), samples=[torch.randn(8, 32, device=device)])
    recording = weakref.ref(backend._recording)
    del backend
    gc.collect()
    assert recording() is None


def test_a_thread_that_cannot_start_is_no_matter_of_the_call(pair, monkeypatch):
    p = pair(mlp(), [torch.randn(16, 32)], plan="pad", exact_after=2)
    start = threading.Thread.start

    def fails(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fails)
    for _ in range(3):
        p.check(torch.randn(5, 32))
    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(2):
        p.check(torch.randn(6, 32))
    wait_until(lambda: {5, 6} <= set(p.backend.recorded_batch_sizes))
    assert {5, 6} <= set(p.backend.recorded_batch_sizes)
    p.backend.deactivate()


def test_deactivate_waits_for_a_size_that_is_added(pair):
    class Slow(torch.nn.Module):
        pause = 0.0

        def forward(self, x):
            time.sleep(Slow.pause)
            return x * 2

    p = pair(Slow(), [torch.randn(16, 8)], plan="pad")
    Slow.pause = 0.1
    errors = []

    def add():
        for size in (5, 6, 7, 9):
            try:
                p.backend.record_batch_size(size)
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=add)
    thread.start()
    time.sleep(0.15)
    p.backend.deactivate()
    thread.join()
    assert all(isinstance(error, xg.StateError) for error in errors), errors
    Slow.pause = 0.0
    p.backend.activate()
    assert len(p.backend.recorded_batch_sizes) == 5 + 4 - len(errors)
    p.check(torch.randn(5, 8))


def test_exact_after_and_lent_results_exclude_each_other():
    with pytest.raises(xg.ConfigError, match="lent results"):
        xg.XPUGraphBackendConfig(exact_after=3, copy_outputs=False)
