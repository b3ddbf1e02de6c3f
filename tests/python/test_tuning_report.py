# SPDX-License-Identifier: MIT
"""What a tuning tells: report, plot, progress, dry run."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import threading

import matplotlib.image
import pytest
import torch
from test_tuning import FailsToBuild, model, strategy, tune, wide

import xpugraph as xg

__all__ = ["model"]  # a fixture


def test_report_as_table_json_and_plot(model, tmp_path):
    backends = [xg.TorchEagerBackend(), xg.XPUGraphBackend(), FailsToBuild()]
    tuned = tune(model, torch.randn(24, 16), [1, 17, 24], backends)
    report = tuned.report
    text = str(report)
    for word in ("eager", "graph", "24", "fails failed", *map(str, report.routes)):
        assert word in text
    report.write_json(tmp_path / "report.json")
    value = json.loads((tmp_path / "report.json").read_text())
    assert value["schema"] == 1
    assert value["routes"] == [[route.first, route.last, route.backend] for route in tuned.routes]
    entry = value["backends"][1]
    assert entry["facts"]["recorded_batch_sizes"] == [1, 2, 4, 8, 16, 24]
    for measurement in entry["measurements"]:
        assert math.isclose(
            measurement["throughput"], 1e3 * measurement["batch_size"] / measurement["latency_ms"], rel_tol=1e-9
        )
    assert xg.TuningReport.from_dict(value) == report
    report.plot(tmp_path / "report.png")
    picture = matplotlib.image.imread(tmp_path / "report.png")
    assert picture.std() > 0.02
    for ending in ("svg", "pdf"):
        report.plot(str(tmp_path / f"report.{ending}"))
        assert (tmp_path / f"report.{ending}").stat().st_size > 1000


def test_the_plot_shades_the_routes(model, tmp_path):
    """The same measurements with another route make another picture."""
    report = tune(model, torch.randn(8, 16), [1, 8]).report
    other = dataclasses.replace(report, routes=[xg.Route(1, 4, "graph"), xg.Route(5, None, "eager")])
    same = dataclasses.replace(report, routes=[xg.Route(1, 4, "graph"), xg.Route(5, None, "eager")])
    pictures = []
    for i, one in enumerate((other, same, dataclasses.replace(report, routes=[xg.Route(1, None, "eager")]))):
        one.plot(tmp_path / f"{i}.png")
        pictures.append(matplotlib.image.imread(tmp_path / f"{i}.png"))
    assert (pictures[0] == pictures[1]).all()
    assert abs(pictures[0] - pictures[2]).max() > 0.05


def test_the_best_keeps_the_budget_and_the_plot_shows_it(model, tmp_path):
    report = tune(model, torch.randn(4, 16), [1, 4], [xg.TorchEagerBackend()]).report
    (backend,) = report.backends
    fake = {n: dataclasses.replace(m, latency_ms=float(n)) for n, m in backend.measurements.items()}
    fake[4] = dataclasses.replace(fake[4], latency_ms=2.0)
    backend.measurements = fake
    assert dataclasses.replace(report, latency_budget_ms=None).best.batch_size == 4
    tight = dataclasses.replace(report, latency_budget_ms=1.5)
    assert tight.best.batch_size == 1
    for name, one in (("free", report), ("tight", tight)):
        one.plot(tmp_path / f"{name}.png")
    free, budget = (matplotlib.image.imread(tmp_path / f"{name}.png") for name in ("free", "tight"))
    assert free.shape != budget.shape or abs(free - budget).max() > 0.3


def test_a_budget_is_for_throughput_only(model):
    with pytest.raises(xg.ConfigError, match="latency_budget_ms=5"):
        strategy(objective="latency", latency_budget_ms=5)


def test_latency_objective_and_budget(model):
    tuned = xg.tune(model, torch.randn(4, 16), strategy=strategy(objective="latency"), progress=False)
    assert "latency" in tuned.report.strategy
    tuned = xg.tune(model, torch.randn(4, 16), strategy=strategy(latency_budget_ms=10_000), progress=False)
    assert tuned.report.best.latency_ms <= 10_000
    assert "within 10000 ms" in str(tuned.report)
    with pytest.raises(xg.ConfigError, match=r"latency_budget_ms=1e-09; no backend"):
        xg.tune(model, torch.randn(4, 16), strategy=strategy(latency_budget_ms=1e-9), progress=False)


def test_progress_tells_backend_size_and_free_memory(model):
    steps = []
    tuned = xg.tune(model, torch.randn(8, 16), [1, 8], strategy(), progress=steps.append)
    assert [step.backend for step in steps if step.batch_size is None] == [b.label for b in tuned.report.backends]
    assert {step.batch_size for step in steps} == {None, 1, 2, 4, 8}
    assert all(step.free_bytes > 1 << 20 and 0 <= step.done < step.total for step in steps)
    assert [step.done for step in steps] == sorted(step.done for step in steps)


def test_dry_run_builds_nothing_and_tells_sizes_bytes_and_time(model):
    recorded = []

    class Graph(xg.XPUGraphBackend):
        def _build(self, *args, **options):
            recorded.append(1)

    estimate = tune(model, torch.randn(24, 16), [1, 17, 24], [xg.TorchEagerBackend(), Graph()], dry_run=True)
    assert not recorded
    assert estimate.recorded_batch_sizes == [1, 2, 4, 8, 16, 24]
    assert estimate.profiled_batch_sizes == [1, 2, 4, 8, 16, 17, 24]
    assert estimate.input_bytes == 24 * 16 * 4
    assert estimate.pool_bytes > 0 and estimate.seconds > 0
    assert "17" in str(estimate) and "6 graphs" in str(estimate)


def test_expected_pool_bytes_are_near_the_real_ones(device):
    module = wide(100_000).to(device)
    estimate = tune(module, torch.randn(32, 8), backends=[xg.XPUGraphBackend()], dry_run=True)
    tuned = tune(module, torch.randn(32, 8), backends=[xg.XPUGraphBackend()])
    real = tuned.report.backends[0].facts["pool_bytes"]
    assert 0.5 * real <= estimate.pool_bytes <= 2 * real


def test_labels_with_markup_and_reports_of_nothing_are_printed(model):
    class Odd(FailsToBuild):
        label = "my [/] backend"

    report = tune(model, torch.randn(4, 16), backends=[Odd(), xg.TorchEagerBackend()]).report
    assert "my [/] backend failed" in str(report)
    assert "eager" in str(dataclasses.replace(report, backends=[], batch_sizes=[]))


def test_what_is_no_plain_file_is_written_and_stays(model, tmp_path):
    report = tune(model, torch.randn(2, 16), backends=[xg.TorchEagerBackend()]).report
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    thread = threading.Thread(target=lambda: read.append(pipe.read_text()))
    thread.start()
    report.write_json(pipe)
    thread.join()
    assert json.loads(read[0])["schema"] == 1 and pipe.is_fifo()
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    report.write_json(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink() and json.loads((tmp_path / "real.json").read_text())["schema"] == 1
