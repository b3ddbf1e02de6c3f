# SPDX-License-Identifier: MIT
"""The commands ``xpugraph tune`` and ``xpugraph inspect``, on the SYCL CPU device."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import matplotlib.image
import pytest
import torch
from typer.testing import CliRunner

import xpugraph as xg
from xpugraph import checkpoint, cli, tuning

TINY = tuning.ProfilingConfig(
    measurement_stop_strategy=xg.NumStepsMeasuringStopStrategy(num_steps=3, warmup_samples=1), sample_seconds=0
)

SHOP = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))

def with_data():
    return make(), torch.randn(4, 8)

class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x, bias=None):
        return self.linear(x) + (0 if bias is None else bias[:, None])

def half():
    return make().bfloat16()

def lazily():
    from shop_parts import Part
    return Part()

def of_rows():
    return Rows(), torch.randn(4, 8)

class Rows(nn.Linear):
    def __init__(self):
        super().__init__(8, 4)

    def forward(self, x):
        return super().forward(x) + x.mean(0)[:4]

ready = make()
number = 5
make_number = lambda: 5
make_three = lambda: (make(), 1, 2)
"""


@pytest.fixture(autouse=True)
def shop(tmp_path, monkeypatch):
    """A folder with models, which is the current one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "shop_parts.py").write_text("from torch import nn\nclass Part(nn.Linear):\n    __init__ = lambda self: "
                                            "nn.Linear.__init__(self, 8, 4)\n")  # fmt: skip
    (tmp_path / "broken.py").write_text("import no_such_package_as_this\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.setattr("xpugraph.tuning.strategy.ProfilingConfig", lambda: TINY)
    importlib.invalidate_caches()
    yield tmp_path
    torch.set_num_threads(threads)
    for name in ("shop", "shop_parts", "broken"):
        sys.modules.pop(name, None)


def command(*arguments):
    return CliRunner().invoke(cli.main, list(map(str, arguments)))


def on_sycl(name, *arguments, sizes="1,2,4"):
    return command("tune", name, "--device", "sycl", "--batch-sizes", sizes, *arguments)


def clean(outcome, code, *texts):
    """The exit code, what stderr tells, and no traceback."""
    assert outcome.exit_code == code, (outcome.output, outcome.exception)
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit)
    shown = " ".join(outcome.stderr.replace("│", " ").split())
    for text in texts:
        assert text in shown, shown


@pytest.fixture
def asked(monkeypatch):
    """What the command asks ``tune`` for; nothing is tuned."""
    calls = []

    def record(module, dataset, sizes, strategy, **options):
        calls.append((module, dataset, sizes, strategy, options))
        raise xg.BuildError("only asked")

    monkeypatch.setattr(tuning, "tune", record)
    return calls


# ---- for real -------------------------------------------------------------------------------------------------------


def test_tune_writes_checkpoint_report_and_plot(device, shop):
    outcome = on_sycl(
        "shop:with_data",
        "--save",
        "out/net.zip",
        "--json",
        "out/net.json",
        "--plot",
        "out/net.png",
        "--min-gain",
        "0.5",
        "--backends",
        "eager,graph",
    )
    clean(outcome, 0)
    report = json.loads((shop / "out/net.json").read_text())
    assert report["schema"] == 1 and report["batch_sizes"] == [1, 2, 4] and report["device"].startswith("sycl (")
    assert [b["label"] for b in report["backends"]] == ["eager", "graph"] and "min_gain=0.5" in report["strategy"]
    assert all([m["batch_size"] for m in b["measurements"]] == [1, 2, 4] for b in report["backends"])
    for first, last, label in report["routes"]:
        assert str(xg.Route(first, last, label)) in outcome.stdout
    assert "eager" in outcome.stdout and "saved out/net.zip" in outcome.stdout and "\x1b" not in outcome.output
    assert xg.inspect_checkpoint("out/net.zip").report.to_dict() == report
    shape = matplotlib.image.imread(shop / "out/net.png").shape
    assert shape[0] > 300 and shape[1] > 500 and (shop / "out/net.png").stat().st_size > 10_000
    assert sorted(os.listdir("out")) == ["net.json", "net.png", "net.zip"]

    import shop as models

    module = models.make().eval()
    x = torch.randn(5, 8)
    tuned = xg.load(models.make().eval().to(device), "out/net.zip")
    assert [[r.first, r.last, r.backend] for r in tuned.routes] == report["routes"]
    torch.testing.assert_close(tuned(x.to(device)).cpu(), module(x), rtol=1e-4, atol=1e-5)

    outcome = command("inspect", "out/net.zip")
    clean(outcome, 0)
    assert "out/net.zip: torch.nn.modules.container.Sequential, 108 values" in outcome.stdout
    assert f"torch {torch.__version__}" in outcome.stdout and str(xg.Route(*report["routes"][0])) in outcome.stdout
    outcome = command("inspect", "out/net.zip", "--json")
    clean(outcome, 0)
    told = json.loads(outcome.stdout)
    assert told["report"] == report and told["path"] == "out/net.zip" and told["parameters"] == 108


def test_the_commands_as_a_user_runs_them(shop):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "xpugraph.cli", *arguments], cwd=shop, capture_output=True, text=True, timeout=55
        )

    options = ("--input-shape", "8", "--batch-sizes", "1,2", "--backends", "graph", "--device", "sycl")
    done = run("tune", "shop.py:make", *options, "--save", "net", "--folder")
    assert done.returncode == 0, done.stderr
    assert "1…∞ → graph" in done.stdout and "saved net" in done.stdout
    assert sorted(os.listdir(shop / "net")) == ["manifest.json", "sha256sums.txt", "weights.safetensors"]
    done = run("inspect", "net", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["recorded_batch_sizes"] == {"graph": [1, 2]} and told["report"]["routes"] == [[1, None, "graph"]]
    done = run("tune", "shop.py:none", *options)
    assert done.returncode == 2 and "shop.py has no 'none'" in done.stderr and "Traceback" not in done.stderr


def test_dry_run_only_tells(device, shop):
    before = sorted(os.listdir(shop))
    outcome = on_sycl("shop:with_data", "--dry-run", "--save", "net.zip", "--json", "a.json", "--plot", "a.png")
    clean(outcome, 0)
    assert "dry run: nothing was built" in outcome.stdout and "1, 2, 4 (3 graphs)" in outcome.stdout
    assert "expected time" in outcome.stdout and "expected bytes" in outcome.stdout
    assert sorted(set(os.listdir(shop)) - {"__pycache__"}) == before


def test_backends_and_objective(device):
    outcome = on_sycl("shop:with_data", "--backends", "eager", "--objective", "latency", sizes="2")
    clean(outcome, 0)
    assert "1…∞ → eager" in outcome.stdout and "objective=latency" in outcome.stdout
    assert "graph" not in outcome.stdout


def test_runs_that_fail(device, shop):
    clean(
        on_sycl("shop:with_data", "--latency-budget-ms", "1e-6", "--backends", "eager", "--save", "net.zip"),
        1,
        "xpugraph tune: latency_budget_ms=1e-06; no backend is that fast at any batch size",
    )
    clean(on_sycl("shop:of_rows", "--backends", "graph"), 1, "xpugraph tune: no backend is left", "graph failed")
    clean(on_sycl("shop:make", "--input-shape", "8", "--input-shape", "8"), 1, "too many positional arguments")
    clean(on_sycl("shop:make", "--input-shape", "9", "--backends", "eager"), 1, "raises at batch size")
    assert not (shop / "net.zip").exists()


def test_what_cannot_be_written_after_the_run_is_told(device, shop, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    outcome = on_sycl("shop:with_data", "--backends", "eager", "--save", "net.zip", sizes="2")
    clean(outcome, 1, "No space left on device")
    assert "1…∞ → eager" in outcome.stdout  # what was found out is not lost


# ---- what is asked for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "shapes", "dtype"),
    [
        (("shop:make", "--input-shape", "8"), [(4, 8)], torch.float32),
        (("shop:make", "--input-shape", " 3 , 224,224"), [(4, 3, 224, 224)], torch.float32),
        (("shop:half", "--input-shape", "8:bfloat16"), [(4, 8)], torch.bfloat16),
        (("shop:make", "--input-shape", ""), [(4,)], torch.float32),
        (("shop:make", "--input-shape", ":float64"), [(4,)], torch.float64),
        (("shop:Sum", "--input-shape", "8:float16", "--input-shape", ":float16"), [(4, 8), (4,)], torch.float16),
        (("shop:with_data", "--input-shape", "16"), [(4, 16)], torch.float32),
        (("shop:ready", "--input-shape", "8"), [(4, 8)], torch.float32),
        (("shop:lazily", "--input-shape", "8"), [(4, 8)], torch.float32),
        (("./shop.py:make", "--input-shape", "8"), [(4, 8)], torch.float32),
        (("mlp",), [(4, 256)], torch.float32),
    ],
)
def test_model_and_inputs(device, asked, arguments, shapes, dtype):
    clean(on_sycl(*arguments), 1, "only asked")
    module, dataset, sizes, strategy, options = asked[0]
    assert [tuple(t.shape) for t in dataset] == shapes and {t.dtype for t in dataset} == {dtype}
    assert not module.training and next(module.parameters()).device == device
    assert sizes == [1, 2, 4] and options["dry_run"] is False
    assert [b.label for b in strategy.backends_to_build()] == ["eager", "inductor", "graph", "graph+inductor"]


def test_options_reach_the_strategy(device, asked):
    options = ("--backends", "graph", "--min-gain", "0.25", "--objective", "throughput", "--latency-budget-ms", "7.5")
    clean(on_sycl("shop:with_data", *options, "--max-recorded-batch-size", "3", sizes="4,2"), 1, "only asked")
    (_, dataset, sizes, strategy, _) = asked[0]
    assert sizes == [2, 4] and tuple(dataset.shape) == (4, 8)
    assert (strategy.min_gain, strategy.objective, strategy.latency_budget_ms) == (0.25, "throughput", 7.5)
    assert [b.config.max_recorded_batch_size for b in strategy.backends_to_build()] == [3]


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("shop", ("'shop': accepted are MODULE:FACTORY, FILE.py:FACTORY, and mlp",)),
        ("shop:", ("accepted are MODULE:FACTORY",)),
        (":make", ("accepted are MODULE:FACTORY",)),
        ("", ("accepted are MODULE:FACTORY",)),
        ("shop:other", ("shop has no 'other'",)),
        ("shop:number", ("shop has a int, which is no function, as 'number'",)),
        ("shop:make_number", ("returned a int: accepted are an nn.Module",)),
        ("shop:make_three", ("returned a tuple: accepted are an nn.Module",)),
        ("no_such_shop:make", ("'no_such_shop' cannot be imported: No module named",)),
        ("none.py:make", ("'none.py' cannot be imported: ", "No such file")),
        ("broken:make", ("'broken' cannot be imported", "no_such_package_as_this")),
        ("broken.py:make", ("'broken.py' cannot be imported", "no_such_package_as_this")),
        (".shop:make", ("'.shop' cannot be imported",)),
        ("a/b:make", ("'a/b' cannot be imported",)),
    ],
)
def test_bad_model_is_named(device, asked, name, texts):
    clean(on_sycl(name, "--input-shape", "8"), 2, "MODULE:FACTORY", *texts)
    assert not asked


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--input-shape", "0", "'0': accepted are whole numbers from 1, separated by commas"),
        ("--input-shape", "3,,4", "'3,,4': accepted are"),
        ("--input-shape", "-3", "'-3': accepted are"),
        ("--input-shape", "3x4", "'3x4': accepted are"),
        ("--input-shape", "8:int64", "one of float32, float16, bfloat16, float64"),
        ("--input-shape", "8:float32:float32", "accepted are"),
        ("--input-shape", "1000000,1000000,1000000", "no batch of 4 items can be made"),
        ("--batch-sizes", "1,x", "'x' is no batch size"),
        ("--batch-sizes", "0", "'0' is no batch size"),
        ("--device", "tpu", "auto, xpu, cuda, sycl"),
        ("--backends", "warp", "unknown 'warp': accepted are eager, inductor, graph"),
        ("--backends", "eager,eager", "names an entry twice"),
        ("--objective", "speed", "'speed': accepted are throughput and latency"),
        ("--min-gain", "1", "1: accepted is a ratio from 0 to less than 1"),
        ("--min-gain", "nan", "nan: accepted is a ratio"),
        ("--latency-budget-ms", "0", "0: accepted is a number above 0"),
        ("--latency-budget-ms", "inf", "inf: accepted is a number above 0"),
        ("--max-recorded-batch-size", "0", "0: accepted is a whole number from 1"),
        ("--json", ".", "is a folder"),
        ("--plot", "net.txt", ".png, .svg, .pdf"),
        ("--save", "full", "is a folder with other things in it, such as x"),
        ("--save", "fifo", "fifo is no plain file"),
        ("--save", "/dev/null/net.zip", "--save"),
        ("--folder", None, "the checkpoint of --save, which is not given"),
    ],
)
def test_bad_option_is_named_before_anything_runs(device, shop, asked, option, value, text):
    (shop / "full").mkdir()
    (shop / "full" / "x").touch()
    os.mkfifo(shop / "fifo")
    arguments = [option] if value is None else [option, value]
    clean(on_sycl("shop:make", *([] if option == "--input-shape" else ["--input-shape", "8"]), *arguments), 2, text)
    assert not asked


def test_inputs_that_are_not_told_are_asked_for(device, asked):
    clean(on_sycl("shop:make"), 2, "--input-shape", "give the shape of each input, or let shop:make return a dataset")
    assert not asked


# ---- inspect --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_inspect_of_no_checkpoint(shop, form):
    (shop / "empty").mkdir()
    torch.save({"x": torch.zeros(2)}, "net.pt")
    for name, text in (
        ("nowhere", "nowhere does not exist"),
        ("shop.py", "shop.py is no checkpoint of xpugraph"),
        ("empty", "manifest.json is missing"),
        ("net.pt", "a pickle, as torch.save makes"),
    ):
        outcome = command("inspect", name, *form)
        clean(outcome, 1, f"xpugraph inspect: {name}", text)
        assert not outcome.stdout


def test_help_names_every_option():
    outcome = command("tune", "--help")
    clean(outcome, 0)
    for option in ("--input-shape", "--dry-run", "--save", "--folder", "--json", "--plot", "--objective", "--backends"):
        assert option in outcome.stdout
    clean(command("inspect"), 2)
