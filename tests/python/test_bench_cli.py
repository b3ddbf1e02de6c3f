# SPDX-License-Identifier: MIT
"""The bench and the command line, with stub backends on the CPU, and with the real ones where the device is built."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import warnings
from types import SimpleNamespace

import matplotlib.image
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import xpugraph as xg
from xpugraph import bench, bench_report, cli, files, models, plotting
from xpugraph.routing import check_routes
from xpugraph.timing import Timing

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread():
    """Two threads of one operator wait for each other for whole time slices where the cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Stub:
    """A backend that answers with the module; `recorded_batch_sizes` and the like stand for a graph backend's."""

    def __init__(self, *, scale=1.0, build_error=None, fails_from=None, fails_after=None):
        self.scale, self.build_error, self.fails_from, self.fails_after = scale, build_error, fails_from, fails_after
        self.calls, self.active = [], False

    def build(self, module, samples, batch_dims=None):
        if self.build_error:
            raise self.build_error
        self.module, self.samples, self.active = module, samples, True

    def infer(self, batch):
        assert self.active
        self.calls.append(len(batch))
        if self.fails_from and len(batch) >= self.fails_from:
            raise RuntimeError("no such size")
        if self.fails_after and self.calls.count(len(batch)) > self.fails_after:
            raise RuntimeError("worn out")
        return self.module(batch) * self.scale

    def deactivate(self):
        self.active = False


class GraphStub(Stub):
    recorded_batch_sizes = [1, 2, 4, 8]
    dropped_batch_sizes = {16: "no memory"}
    record_seconds = 0.25
    eager_from = 1000

    def pool_stats(self):
        return {"reserved": 3 << 20, "used": 0, "peak": 0, "bytes_per_size": {}}

    def eager_calls(self):
        return sum(size >= self.eager_from for size in self.calls)


def run(stubs, sizes=(1, 3, 8), progress=None, model_names=("mlp",), min_time=1e-3):
    config = bench.BenchConfig(model_names, sizes, list(stubs), CPU, min_time)
    arguments = {} if progress is None else {"progress": progress}
    return bench.run_bench(config, factories={name: lambda _, s=s: s for name, s in stubs.items()}, **arguments)


@pytest.fixture
def command(monkeypatch):
    """Runs the command line on the CPU with stub backends."""

    def invoke(*arguments, graph=None):
        stubs = {"eager": lambda _: Stub(), "graph": lambda _: graph or GraphStub()}
        monkeypatch.setattr(bench, "backend_factories", lambda: stubs)
        monkeypatch.setattr(bench, "resolve_device", lambda name: CPU)
        return CliRunner().invoke(cli.main, list(arguments))

    return invoke


FAST = ("bench", "--models", "mlp", "--batch-sizes", "1,3", "--min-time", "0.001")


# Values


def test_relative_error():
    expected = {"y": torch.tensor([1.0, -4.0]), "n": None, "k": 3}
    assert bench.relative_error({"y": torch.tensor([1.0, -3.0]), "n": None, "k": 3}, expected) == pytest.approx(0.25)
    assert bench.relative_error({"y": torch.tensor([1.0, -4.0]), "n": None, "k": 4}, expected) == float("inf")
    assert bench.relative_error(torch.zeros(2, 1), torch.zeros(2)) == float("inf")
    assert bench.relative_error(torch.zeros(2, dtype=torch.float64), torch.zeros(2)) == float("inf")
    assert bench.relative_error((torch.zeros(2),), torch.zeros(2)) == float("inf")
    assert not bench.relative_error(torch.tensor([float("nan")]), torch.ones(1)) <= bench.TOLERANCE


def test_missing_torchvision_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match="pip install"):
        models.make_model("resnet18")
    with pytest.raises(ImportError, match="pip install"):
        run({"eager": Stub()}, model_names=("mlp", "resnet18"))


def test_unknown_names_are_refused_before_anything_runs():
    stub = Stub()
    with pytest.raises(ValueError, match=r"'vgg'.*mlp, mobilenet_v3_small, resnet18, resnet50, vit_b_16"):
        run({"eager": stub}, model_names=("mlp", "vgg"))
    assert not stub.calls
    with pytest.raises(ValueError, match=r"'warp': accepted are eager, inductor, graph, graph\+inductor"):
        bench.run_bench(bench.BenchConfig(["mlp"], [1], ["warp"], CPU))


# Runs


def test_result_has_the_schema():
    stubs = {"eager": Stub(), "graph": GraphStub()}
    result = run(stubs)
    value = json.loads(json.dumps(result.to_dict()))
    assert result.ok and value["schema"] == 1 and value["device"] == "cpu"
    assert {"torch", "python", "xpugraph"} <= set(value["versions"])
    model = value["models"]["mlp"]
    assert model["batch_sizes"] == [1, 3, 8]
    for key in ("latency_ms", "latency_p25_ms", "latency_p75_ms", "repetitions"):
        assert list(model[key]) == ["eager", "graph"]
        assert all(len(row) == 3 and min(row) > 0 for row in model[key].values())
    for low, middle, high in zip(*(model[f"latency{part}_ms"]["graph"] for part in ("_p25", "", "_p75")), strict=True):
        assert low <= middle <= high
    assert model["recorded_batch_sizes"] == [1, 2, 4, 8]
    assert (model["record_seconds"], model["pool_bytes"]) == (0.25, 3 << 20)
    assert (model["inductor_compiles"], model["routes"]) == (0, [])
    assert (model["failed"], model["mismatches"]) == ({}, {})
    assert len(stubs["graph"].samples[0]) == 8 and set(stubs["graph"].calls) == {1, 3, 8}
    assert not stubs["graph"].active


def test_what_eager_serves_for_graphs_and_dropped_sizes_are_told():
    stub = GraphStub()
    stub.eager_from = 3
    result = run({"graph": stub})
    assert result.ok and result.models["mlp"].served_by_eager == {"graph": [3, 8]}
    assert result.to_dict()["models"]["mlp"]["dropped_batch_sizes"] == {"16": "no memory"}
    text = printed(result)
    assert "graph passed batch sizes 3, 8 on to eager" in text and "no graph of batch size 16: no memory" in text


@pytest.mark.parametrize(
    ("stub", "reason", "measured"),
    [
        (GraphStub(build_error=RuntimeError("no pool")), "RuntimeError: no pool", [False, False, False]),
        (GraphStub(fails_from=3), "at batch size 3: RuntimeError: no such size", [True, False, False]),
        (GraphStub(fails_after=1), "at batch size 1: RuntimeError: worn out", [False, False, False]),
    ],
    ids=["build", "infer", "timing"],
)
def test_a_backend_that_fails_is_named_and_the_others_go_on(stub, reason, measured):
    result = run({"graph": stub, "eager": Stub()})
    model = result.models["mlp"]
    assert not result.ok and model.failed == {"graph": reason}
    assert [timing is not None for timing in model.timings["graph"]] == measured
    assert all(model.timings["eager"]) and len(model.timings["eager"]) == 3
    assert not stub.active


def test_wrong_values_are_a_mismatch():
    result = run({"eager": Stub(), "graph": GraphStub(scale=1.1), "nan": Stub(scale=float("nan"))}, sizes=(1, 2))
    assert not result.ok
    mismatches = result.models["mlp"].mismatches
    assert mismatches["graph"] == pytest.approx({1: 0.1, 2: 0.1}, rel=1e-3)
    assert set(mismatches) == {"graph", "nan"}


def test_progress_counts_up_to_its_total():
    steps = []
    run({"eager": Stub(), "graph": GraphStub()}, (1, 2), lambda *step: steps.append(step))
    assert steps[0] == (0, 6, "mlp", "eager", None) and steps[1] == (1, 6, "mlp", "graph", None)
    assert [step[0] for step in steps] == sorted(step[0] for step in steps)
    assert steps[-1][0] < 6 and {step[4] for step in steps} == {None, 1, 2}


# Reports


def synthetic(failed=False):
    result = bench.BenchResult("cpu", {"torch": "2", "xpugraph": "0"})
    for name, base in (("mlp", 0.3), ("resnet18", 12.0)):
        model = result.models[name] = bench.ModelResult([1, 3, 64])
        for backend, factor in (("eager", 3.0), ("graph", 1.0)):
            row = [base * factor * (1 + size / 20) for size in model.batch_sizes]
            model.timings[backend] = [Timing(ms, ms * 0.95, ms * 1.1, 30) for ms in row]
        model.recorded_batch_sizes, model.record_seconds, model.pool_bytes = [1, 2, 4, 64], 1.5, 5 << 20
    if failed:
        result.models["mlp"].timings["graph"][1] = None
        result.models["mlp"].failed["graph"] = "at batch size 3: [/] broken"
        result.models["resnet18"].mismatches["graph"] = {64: 0.5}
    return result


def printed(result, **options):
    buffer = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    console = Console(file=buffer, width=120, **options)
    bench_report.print_tables(result, console)
    buffer.flush()
    return buffer.buffer.getvalue().decode("ascii")


def test_table_is_ascii_where_the_output_is():
    text = printed(synthetic())
    assert "mlp: latency in ms" in text and "0.945" in text and "0.315 (3.0x)" in text and "151" in text
    assert "1, 2, 4, 64: recorded in 1.50 s, pool 5.0 MiB" in text
    assert "\x1b" not in text


def test_fastest_of_a_column_is_bold():
    text = printed(synthetic(), force_terminal=True, color_system="standard")
    assert "\x1b[1m0.315\x1b[0m" in text and "\x1b[1m0.945" not in text


def test_table_shows_failures_and_wrong_values_loudly():
    text = printed(synthetic(failed=True))
    assert "FAILED graph: at batch size 3: [/] broken" in text
    assert "WRONG VALUES graph at batch sizes 64 (error 5.0e-01)" in text and "50.4 WRONG" in text
    bold = printed(synthetic(failed=True), force_terminal=True, color_system="standard")
    assert "\x1b[1m151\x1b[0m" in bold  # a wrong answer is not the fastest


def test_plot_is_a_picture_that_is_not_blank(tmp_path):
    path = tmp_path / "new" / "bench.png"
    bench_report.plot(synthetic(failed=True), path)
    assert path.read_bytes().startswith(b"\x89PNG") and 20_000 < path.stat().st_size < 500_000
    height, width, _ = matplotlib.image.imread(path).shape
    assert 1000 < width < 3000 and 500 < height < 2000
    assert os.listdir(path.parent) == ["bench.png"]


def test_ticks_too_near_to_each_other_are_not_labelled():
    assert plotting._tick_labels([1, 16, 17, 64]) == ["1", "", "17", "64"]
    assert plotting._tick_labels([5]) == ["5"]


def test_plot_of_nothing_measured_does_not_fail(tmp_path):
    result = bench.BenchResult("cpu", {}, {"mlp": bench.ModelResult([1], {"graph": [None]}, {"graph": "no"})})
    bench_report.plot(result, tmp_path / "empty.svg")
    assert b"<svg" in (tmp_path / "empty.svg").read_bytes()


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        files.write_json({"a": object()}, path)
    with pytest.raises(KeyError), files.atomic_path(path) as temporary:
        temporary.write_text("half")
        assert path.read_text() == "old"
        raise KeyError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["bench.json"]
    files.write_json({"a": [float("inf"), float("nan"), 1.5]}, path)
    assert json.loads(path.read_text()) == {"a": [None, None, 1.5]}
    assert stat.S_IMODE(path.stat().st_mode) & 0o400 and os.listdir(tmp_path) == ["bench.json"]


# The command line


def test_bench_prints_a_table_and_writes_its_files(command, tmp_path):
    outcome = command(*FAST, "--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b.png"))
    assert outcome.exit_code == 0, outcome.output
    assert "mlp: latency in ms" in outcome.stdout and "recorded in 0.25 s" in outcome.stdout
    assert "[1/6] mlp: building eager" in outcome.stderr and "mlp: batch 3" in outcome.stderr
    assert "\x1b" not in outcome.output and "\r" not in outcome.output
    assert json.loads((tmp_path / "b.json").read_text())["models"]["mlp"]["batch_sizes"] == [1, 3]
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("graph", [GraphStub(scale=2), GraphStub(build_error=RuntimeError("no pool"))])
def test_bench_exits_with_1_when_something_failed_yet_writes_its_files(command, tmp_path, graph):
    outcome = command(*FAST, "--json", str(tmp_path / "b.json"), graph=graph)
    assert outcome.exit_code == 1
    assert "WRONG VALUES graph" in outcome.stdout or "FAILED graph: RuntimeError: no pool" in outcome.stdout
    assert "eager" in json.loads((tmp_path / "b.json").read_text())["models"]["mlp"]["latency_ms"]


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("--models", "mlp,vgg", "mobilenet_v3_small, resnet18, resnet50, vit_b_16"),
        ("--models", "", "mlp"),
        ("--backends", "warp", "eager, graph"),
        ("--backends", "graph,graph", "eager, graph"),
        ("--batch-sizes", "1,0", "whole numbers from 1"),
        ("--batch-sizes", "1,x", "whole numbers from 1"),
        ("--batch-sizes", "1,,2", "whole numbers from 1"),
        ("--min-time", "0", "positive number"),
        ("--min-time", "nan", "positive number"),
        ("--max-recorded-batch-size", "0", "from 1"),
        ("--plot", "b.txt", ".png, .svg, .pdf"),
        ("--json", ".", "a file's path"),
        ("--json", "/dev/null/b.json", "cannot be written"),
    ],
)
def test_bad_option_is_named_with_what_is_accepted(command, option, value, accepted):
    outcome = command("bench", option, value)
    assert outcome.exit_code == 2, outcome.output
    shown = {"1,0": "0", "1,x": "x", "mlp,vgg": "vgg"}.get(value, value)
    assert option in outcome.stderr and shown in outcome.stderr and accepted in outcome.stderr
    assert "Traceback" not in outcome.output


def test_bad_device_is_named_with_what_is_accepted():
    outcome = CliRunner().invoke(cli.main, ["bench", "--models", "mlp", "--device", "tpu"])
    assert outcome.exit_code == 2
    assert "--device" in outcome.stderr and "'tpu'" in outcome.stderr and "auto, xpu, cuda, sycl" in outcome.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_device_that_is_not_here_is_refused():
    outcome = CliRunner().invoke(cli.main, ["bench", "--models", "mlp", "--device", "cuda"])
    assert outcome.exit_code == 2 and "sees no cuda device" in outcome.stderr


def test_auto_takes_the_first_gpu_that_this_build_records_on(monkeypatch):
    built = ["sycl", "cuda"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(bench._native, "load", lambda: SimpleNamespace(runtimes=lambda: built))
    monkeypatch.setattr("xpugraph.enable_sycl_device", lambda: torch.device("cpu"))
    assert bench.resolve_device("auto").type == "cuda"
    built.append("xpu")
    assert bench.resolve_device("auto").type == "xpu"
    built[:] = ["sycl"]
    assert bench.resolve_device("auto").type == "cpu"


def test_auto_warns_when_a_torch_for_xpu_sees_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.version, "xpu", "20260000", raising=False)
    for kind in (torch.xpu, torch.cuda):
        monkeypatch.setattr(kind, "is_available", lambda: False)
    monkeypatch.setattr("xpugraph.enable_sycl_device", lambda: torch.device("cpu"))
    with pytest.warns(UserWarning, match="the sycl CPU device is taken: .* was built for XPU and sees no GPU\\. "):
        assert bench.resolve_device("auto").type == "cpu"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench.resolve_device("sycl")
        monkeypatch.setattr(torch.version, "xpu", None)
        bench.resolve_device("auto")


def test_a_named_gpu_does_not_load_the_extension(monkeypatch):
    monkeypatch.setattr(bench._native, "load", lambda: pytest.fail("loaded"))
    for kind in ("xpu", "cuda"):
        monkeypatch.setattr(getattr(torch, kind), "is_available", lambda: True)
        assert bench.resolve_device(kind).type == kind


def test_a_gpu_with_an_index_becomes_the_current_one(monkeypatch):
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert bench.resolve_device("cuda:1") == torch.device("cuda", 1) and current == [1]
    with pytest.raises(xg.ConfigError, match="there is no cuda:2: here are cuda:0, cuda:1"):
        bench.resolve_device("cuda:2")
    with pytest.raises(xg.ConfigError, match="there is no sycl:1: here are sycl:0"):
        bench.resolve_device("sycl:1")
    assert current == [1]


@pytest.mark.parametrize("name", ["", "gpu", "auto:0", "xpu:", "xpu:one", "xpu:-1", "xpu:1:1", ":1"])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(xg.ConfigError, match="unknown device .*: accepted are auto, xpu, cuda, sycl"):
        bench.resolve_device(name)


def test_version_and_help():
    outcome = CliRunner().invoke(cli.main, ["--version"])
    assert outcome.exit_code == 0 and outcome.stdout.startswith("xpugraph 0.")
    assert "bench" in CliRunner().invoke(cli.main, ["--help"]).stdout


# For real, on the SYCL CPU device


def on_sycl(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)


def test_bench_on_the_sycl_device(tmp_path):
    files = ("--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b.png"))
    options = ("--models", "mlp", "--batch-sizes", "1,3,8", "--device", "sycl", "--min-time", "0.02", *files)
    outcome = on_sycl("-m", "xpugraph.cli", "bench", *options)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    value = json.loads((tmp_path / "b.json").read_text())
    model = value["models"]["mlp"]
    assert value["device"].startswith("sycl") and (model["failed"], model["mismatches"]) == ({}, {})
    assert model["recorded_batch_sizes"] == [1, 2, 4, 8]
    assert model["record_seconds"] > 0 and model["pool_bytes"] > 0
    assert all(len(row) == 3 and min(row) > 0 for row in model["latency_ms"].values())
    routes = [xg.Route(*route) for route in model["routes"]]
    check_routes(routes, list(model["latency_ms"]))
    assert "auto" in model["latency_ms"] and str(routes[0]) in outcome.stdout
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
