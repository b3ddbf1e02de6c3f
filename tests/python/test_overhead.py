# SPDX-License-Identifier: MIT
"""bench/overhead.py: what it measures and how it judges."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch


@pytest.fixture
def overhead(monkeypatch):
    """The script, on the CPU and with `OverheadStub` for the graph backend."""
    path = Path(__file__).parents[2] / "bench" / "overhead.py"
    monkeypatch.syspath_prepend(path.parent)  # as for a script
    spec = importlib.util.spec_from_file_location("overhead", path)
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "overhead", script)  # dataclasses look their module up
    spec.loader.exec_module(script)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # two wait for each other where the cores are busy
    monkeypatch.setattr(script, "resolve_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(script, "xg", SimpleNamespace(XPUGraphBackend=OverheadStub, XPUGraphBackendConfig=dict))
    monkeypatch.setattr(OverheadStub, "recordings_per_call", 0)
    return script


class OverheadStub:
    """Takes 1 ms a replay and 3 ms a call; the more sizes it has, the larger is its pool."""

    recordings_per_call = 0
    record_seconds = 0.25

    def __init__(self, config):
        self.recorded_batch_sizes = config.get("batch_sizes") or list(range(35))

    def build(self, module, samples):
        assert not module.training

    def deactivate(self):
        pass

    def infer(self, batch):
        time.sleep(0.003)
        return batch

    def replay(self, size):
        time.sleep(0.001)

    def pool_stats(self):
        return {"reserved": 100 + len(self.recorded_batch_sizes)}

    def counters(self):
        self.recordings = getattr(self, "recordings", 35) + self.recordings_per_call
        return {"recordings": self.recordings}


@pytest.mark.parametrize(("recordings", "strict", "code"), [(0, (), 0), (1, ("--strict",), 1)])
def test_overhead_measures_and_judges(overhead, monkeypatch, tmp_path, capsys, recordings, strict, code):
    path = tmp_path / "overhead.json"
    monkeypatch.setattr(OverheadStub, "recordings_per_call", recordings)
    arguments = ["overhead.py", "--json", str(path), "--min-time", "0.01", "--calls", "40", *strict]
    monkeypatch.setattr(sys, "argv", arguments)
    assert overhead.main() == code
    measures = {measure["name"]: measure for measure in json.loads(path.read_text())["measures"]}
    verdicts = [measure["ok"] for measure in measures.values()]
    # eager takes no 3 ms on this model's batch 1, a call costs 2 ms more than a replay, a pool of 135 is over 1.1 x 101
    assert verdicts == [False, False, False, False, True, False, recordings == 0, True]
    cost = measures["call above bare replay, batch 3 padded to 4"]
    assert 1500 < cost["value"] < 10_000 and cost["unit"] == "us"
    assert measures["pool of 35 sizes over the largest's"]["value"] == pytest.approx(135 / 101)
    assert "missed" in capsys.readouterr().out
