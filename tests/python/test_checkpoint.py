# SPDX-License-Identifier: MIT
"""Checkpoints of real backends: what comes back after a load."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import map_tensors, mlp, on_cpu
from torch import nn

import xpugraph as xg
from xpugraph import environment, tuning
from xpugraph.tuning import BackendReport, Measurement, ProfilingConfig, TuningReport

pytestmark = pytest.mark.filterwarnings("error::xpugraph.CheckpointWarning")

ROUTES = [xg.Route(1, 2, "eager"), xg.Route(3, None, "graph")]
TINY = ProfilingConfig(
    measurement_stop_strategy=xg.NumStepsMeasuringStopStrategy(num_steps=3, warmup_samples=1), sample_seconds=0
)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    def __init__(self, width=8, act="relu"):
        super().__init__()
        self.inner = nn.Linear(6, width)
        self.norm = nn.BatchNorm1d(width)
        self.act = nn.ReLU() if act == "relu" else nn.GELU()
        self.outer = nn.Linear(width, 4)
        self.register_buffer("shift", torch.randn(4))
        self.register_buffer("factor", torch.full((4,), 3.0), persistent=False)
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return self.outer(self.act(self.norm(self.inner(x)))) * self.factor + self.shift


def seeded(seed, make=Net):
    torch.manual_seed(seed)
    return make().eval()


def report_of(routes, device="sycl", size=1):
    measured = {size: Measurement(size, 0.5, 0.4, 0.6, 3, True, 1.0)}
    backends = [BackendReport(label, label, "routed", measurements=measured) for label in {r.backend for r in routes}]
    versions = environment.versions()
    return TuningReport(environment.device_name(device), versions, "by hand", [size], backends, routes, "graph")


def tuned_by_hand(module, samples, routes=ROUTES, more=None, **options):
    """A tuned module whose routes are given."""
    backends = {"graph": xg.XPUGraphBackend(xg.XPUGraphBackendConfig(batch_sizes=[1, 2, 4])), **(more or {})}
    backends["eager"] = xg.TorchEagerBackend()
    for backend in backends.values():
        backend.build(module, samples, **(options if isinstance(backend, xg.XPUGraphBackend) else {}))
    used = {route.backend: backends[route.backend] for route in routes}
    router = xg.BatchSizeRouterBackend.of_active(routes, used, backends["graph"]._recipe, module)
    return tuning.TunedModule(module, router, report_of(routes))


def eager_on_cpu(module, sample):
    router = xg.BatchSizeRouterBackend([xg.Route(1, None, "eager")], {"eager": xg.TorchEagerBackend()})
    router.build(module, [sample])
    return tuning.TunedModule(module, router, report_of(router.routes, "cpu"))


@pytest.fixture(scope="module")
def saved(device, tmp_path_factory):
    """A zip and a folder of one tuned module, and the module on the CPU."""
    module = seeded(1)
    tuned = tuned_by_hand(copy.deepcopy(module).to(device), [torch.randn(4, 6, device=device)])
    place = tmp_path_factory.mktemp("saved")
    paths = {"zip": xg.save(tuned, place / "net.zip"), "folder": xg.save(tuned, place / "net", folder=True)}
    return module, paths


def state_of(module):
    return {name: value.cpu().clone() for name, value in [*module.state_dict().items(), *module.named_buffers()]}


def check(tuned, reference, device, *inputs, **named):
    """Compares with the CPU."""
    expected = reference(*copy.deepcopy(inputs), **copy.deepcopy(named))
    args, kwargs = map_tensors(lambda t: t.to(device), (inputs, named))
    torch.testing.assert_close(on_cpu(tuned(*args, **kwargs)), expected, rtol=1e-4, atol=1e-5)


# ---- what comes back ------------------------------------------------------------------------------------------------


def forbid_profiling(monkeypatch):
    def profiled(*args, **kwargs):
        raise AssertionError("a load profiles nothing")

    for name in ("profiling.measure_in_turns", "profiler.measure_in_turns", "profiling.Turn.timed"):
        monkeypatch.setattr(f"xpugraph.tuning.{name}", profiled)
    monkeypatch.setattr("xpugraph.tuning.workload.Workload.__init__", profiled)


@pytest.mark.parametrize("kind", ["zip", "folder"])
def test_loaded_module_has_the_values_and_the_routes(device, saved, kind, monkeypatch):
    reference, paths = saved
    forbid_profiling(monkeypatch)
    module = seeded(2).to(device)
    module.factor.fill_(3.0)
    tuned = xg.load(module, paths[kind])
    assert tuned.routes == ROUTES and tuned.module is module
    assert tuned.backend.state is xg.BackendState.DEPLOYED
    graph = tuned.backend.backends["graph"]
    assert graph.recorded_batch_sizes == [1, 2, 4]
    for size in (1, 2, 3, 4, 5, 9, 0, 17):
        before = graph.counters()["graph_calls"]
        check(tuned, reference, device, torch.randn(size, 6))
        assert graph.counters()["graph_calls"] - before == (size > 2), size
    for name, value in reference.state_dict().items():
        assert torch.equal(module.state_dict()[name].cpu(), value), name
    assert graph.counters()["recordings"] == 3


class Columns(nn.Module):
    """Indices whose ranges differ from column to column, and one more that does not follow the batch."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Embedding(1000, 4), nn.Embedding(10, 4), nn.Embedding(3, 4)

    def forward(self, columns, which):
        return self.a(columns[..., 0]) + self.b(columns[..., 1]) + self.c(which)


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_a_loaded_module_is_checked_on_indices_that_it_knows(device, tmp_path, batch_dim):
    def call(n):
        rows = torch.stack([torch.randint(0, 1000, (n, 2)), torch.randint(-10, 0, (n, 2)) + 10], -1)
        return rows.transpose(0, batch_dim).contiguous(), torch.tensor(2)

    reference = seeded(3, Columns)
    backend = xg.XPUGraphBackend(xg.XPUGraphBackendConfig(plan="pad"))
    columns, which = call(8)
    dims = {"columns": batch_dim, "which": None}
    backend.build(copy.deepcopy(reference).to(device), [(columns.to(device), which.to(device))], batch_dims=dims)
    state = json.loads(json.dumps(backend.to_dict()))
    again = xg.XPUGraphBackend.from_dict(copy.deepcopy(reference).to(device), state)
    again.deploy()
    for n in (1, 3, 8):
        columns, which = call(n)
        got = again.infer(columns.to(device), which.to(device))
        torch.testing.assert_close(got.cpu(), reference(columns, which).detach())


def test_what_tune_chose_comes_back(device, tmp_path, monkeypatch):
    reference = seeded(3)
    strategy = xg.HighestThroughputStrategy(profiling_config=TINY)
    tuned = xg.tune(
        copy.deepcopy(reference).to(device), torch.randn(4, 6), [1, 2, 4], strategy=strategy, progress=False
    )
    path = xg.save(tuned, tmp_path / "net.zip")
    forbid_profiling(monkeypatch)
    again = xg.load(seeded(4).to(device), path)
    assert again.routes == tuned.routes
    assert again.report.to_dict() == json.loads(json.dumps(tuned.report.to_dict()))
    assert list(again.backend.backends) == list(tuned.backend.backends)
    for size in (1, 3, 4, 6):
        check(again, reference, device, torch.randn(size, 6))
    # Saved again it is the same file, byte for byte: nothing was lost on the way.
    assert xg.save(again, tmp_path / "again.zip").read_bytes() == path.read_bytes()


def test_another_process_loads_it(saved, tmp_path):
    reference, paths = saved
    x = torch.randn(7, 6)
    torch.save(x, tmp_path / "x.pt")
    script = (
        "import sys, torch, xpugraph as xg, test_checkpoint as t\n"
        "device = xg.enable_sycl_device()\n"
        "tuned = xg.load(t.seeded(9).to(device), sys.argv[1])\n"
        "x = torch.load(sys.argv[2] + '/x.pt').to(device)\n"
        "torch.save([tuned(x[:n]).cpu() for n in (1, 7)], sys.argv[2] + '/y.pt')\n"
        "print(tuned.routes)"
    )
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{script}"
    done = subprocess.run(
        [sys.executable, "-W", "error::xpugraph.CheckpointWarning", "-c", code, str(paths["zip"]), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == repr(ROUTES)
    one, seven = torch.load(tmp_path / "y.pt")
    torch.testing.assert_close(one, reference(x[:1]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seven, reference(x), rtol=1e-4, atol=1e-5)


class Tied(nn.Module):
    def __init__(self, width=128, tied=True):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def weight_bytes(path):
    return (path / "weights.safetensors").stat().st_size


def test_weights_are_stored_once_for_all_backends(device, tmp_path):
    """PyTorch's .to unties weights on its way to a PrivateUse1 device; they are stored once all the same."""
    reference = seeded(5, Tied)
    routes = [xg.Route(1, 1, "graph"), xg.Route(2, 2, "eager"), xg.Route(3, None, "other")]
    other = xg.XPUGraphBackend(xg.XPUGraphBackendConfig(batch_sizes=[8], copy_outputs=False))
    sample = torch.randn(4, 128, device=device)
    tuned = tuned_by_hand(copy.deepcopy(reference).to(device), [sample], routes, {"other": other})
    path = xg.save(tuned, tmp_path / "tied", folder=True)
    expected = 4 * (128 * 128 + 2 * 128)
    assert expected < weight_bytes(path) < expected + 500
    info = xg.inspect_checkpoint(path)
    assert info.parameters == expected // 4 and info.weight_bytes == weight_bytes(path)
    again = xg.load(seeded(6, Tied).to(device), path)
    assert again.routes == routes and again.backend.backends["other"].config == other.config
    for size in (1, 2, 3, 11):
        check(again, reference, device, torch.randn(size, 128))


def test_small_tied_weights_are_stored_once_too(tmp_path):
    reference = seeded(5, lambda: Tied(16))
    path = xg.save(eager_on_cpu(copy.deepcopy(reference), torch.randn(3, 16)), tmp_path / "tied", folder=True)
    assert weight_bytes(path) < 4 * (16 * 16 + 2 * 16) + 500
    module = xg.load(seeded(6, lambda: Tied(16)), path).module
    assert module.a.weight is module.b.weight and torch.equal(module.a.weight, reference.a.weight)
    check(xg.load(seeded(7, lambda: Tied(16, tied=False)), path), reference, "cpu", torch.randn(3, 16))


def test_untied_weights_are_not_taken_for_tied_ones(tmp_path):
    path = xg.save(eager_on_cpu(seeded(5, lambda: Tied(16, tied=False)), torch.randn(3, 16)), tmp_path / "untied.zip")
    module = seeded(6, lambda: Tied(16))
    before = state_of(module)
    with pytest.raises(xg.CheckpointError, match=r"'a\.weight' shares memory with other weights of this module"):
        xg.load(module, path)
    assert all(torch.equal(value, before[name]) for name, value in state_of(module).items())


def test_buffers_that_are_not_state_stay_as_the_module_made_them(device, saved):
    module = seeded(2).to(device)
    module.factor.fill_(1.0)
    reference = copy.deepcopy(saved[0])
    reference.factor.fill_(1.0)
    check(xg.load(module, saved[1]["zip"]), reference, device, torch.randn(3, 6))


def test_bfloat16(device, tmp_path):
    module = seeded(1, lambda: mlp(16, 2)).to(device, torch.bfloat16)
    x = torch.randn(4, 16, device=device, dtype=torch.bfloat16)
    path = xg.save(tuned_by_hand(module, [x]), tmp_path / "bf16.zip")
    fresh = seeded(2, lambda: mlp(16, 2)).to(device)
    with pytest.raises(xg.CheckpointError, match=r"'0\.weight' bfloat16 .* was saved, here is .* float32"):
        xg.load(fresh, path)
    tuned = xg.load(fresh.to(torch.bfloat16), path)
    y = tuned(x)
    assert y.dtype == torch.bfloat16 and torch.equal(y.cpu(), module(x).cpu())


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, pair, *, options, mode="sum", bias=None):
        a, (b, mask) = pair["a"], pair["rest"]
        y = self.linear(a) * options[0] + b
        return {"y": y if mode == "sum" else -y, "mask": [mask & (y > 0)]}


def test_nested_and_named_arguments(device, tmp_path):
    reference = seeded(1, Nested)

    def call(size, mode="neg"):
        rest = (torch.randn(size, 6), torch.rand(size, 6) > 0.5)
        return {"pair": {"a": torch.randn(size, 6), "rest": rest}, "options": [2.5, None, "x", True], "mode": mode}

    samples = [map_tensors(lambda t: t.to(device), call(size)) for size in (4, 3)]
    path = xg.save(tuned_by_hand(copy.deepcopy(reference).to(device), samples), tmp_path / "nested.zip")
    tuned = xg.load(seeded(2, Nested).to(device), path)
    graph = tuned.backend.backends["graph"]
    for size in (1, 2, 3, 4, 7):
        before = graph.counters()["graph_calls"]
        check(tuned, reference, device, **call(size))
        assert graph.counters()["graph_calls"] - before == (size > 2)
    check(tuned, reference, device, **call(5, mode="sum"))
    assert "mode" in next(iter(graph.counters()["eager_reasons"]))


def test_views_and_conjugates_are_their_own_values(device, tmp_path):
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            z = torch.randn(4, dtype=torch.complex64)
            base = torch.randn(4, 4)
            self.register_buffer("z", z)
            self.register_buffer("conj", z.conj())
            self.register_buffer("base", base)
            self.register_buffer("turned", base.t())
            self.register_buffer("top", base[:2])

        def forward(self, x):
            y = (self.linear(x) + self.turned[0] + self.top[1]) * (self.z.imag - self.conj.imag)
            return y + self.base[0]

    reference = seeded(1, Views)
    module = seeded(1, Views)
    router = xg.BatchSizeRouterBackend([xg.Route(1, None, "eager")], {"eager": xg.TorchEagerBackend()})
    router.build(module, [torch.randn(4, 4)])
    path = xg.save(tuning.TunedModule(module, router, report_of(router.routes, "cpu")), tmp_path / "views.zip")
    fresh = seeded(2, Views)
    fresh.conj = torch.zeros(4, dtype=torch.complex64)
    check(xg.load(fresh, path), reference, "cpu", torch.randn(3, 4))
