# SPDX-License-Identifier: MIT
"""Ways in which graphs once gave a wrong answer, or none, found by trying to break them."""

from __future__ import annotations

import copy
import math
import threading
import time

import pytest
import torch
from conftest import Fn, mlp

import xpugraph as xg

DEPENDS = "rows of a batch depend|changes the real rows|eager gives other values|is built differently|no larger graph"


# ---- memory that graphs read and somebody else lets go --------------------------------------------------------------


class Lazy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.ones(8, device=x.device)
        return x + self.table


class CachePerSize(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = {}

    def forward(self, x):
        if x.shape[0] not in self.cache:
            self.cache[x.shape[0]] = torch.ones(8, device=x.device)
        return x + self.cache[x.shape[0]]


@pytest.mark.parametrize("make", [Lazy, CachePerSize])
def test_memory_that_only_the_graphs_still_need_is_kept(pair, make):
    p = pair(make(), [torch.randn(16, 8)])
    getattr(p.module, "cache", {}).clear()
    noise = [torch.full((8,), 777.0, device=p.device) for _ in range(200)]
    for size in (1, 3, 16):
        x = torch.randn(size, 8)
        torch.testing.assert_close(p.got(x), x + 1)
    del noise


# ---- rows that depend on each other in ways that ordinary values do not show ----------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.nan_to_num() * 2, x.isnan().any()),
        lambda x: x.nan_to_num() * torch.isfinite(x).all(),
        lambda x: x.softmax(0) * 1e-5,
        lambda x: (x - x.mean(0)).softmax(1),
        lambda x: torch.cat([x * 0 + 1e6, x - x.mean(0)], 1),
        lambda x: x + torch.relu(x.amax() - 6.0),
        lambda x: x * 2 if x.shape[0] > 16 else x * 1,
        lambda x: x * 2 if x.shape[0] > 4 else x,
        lambda x: x.squeeze() * 2,
        lambda x: x.roll(1, 0),
        lambda x: x.argsort(0),
    ],
    ids=[
        "isnan any",
        "isfinite all",
        "small",
        "50000",
        "large",
        "amax",
        "above",
        "branch",
        "squeeze",
        "roll",
        "argsort",
    ],
)
def test_floats(pair, function):
    with pytest.raises(xg.BuildError, match=DEPENDS):
        pair(Fn(function), [torch.randn(16, 50)])


@pytest.mark.parametrize(
    "sample", [torch.zeros(16, 8, dtype=torch.long), torch.full((16, 8), 3)], ids=["zeros", "threes"]
)
@pytest.mark.parametrize("function", [lambda x: x.cumsum(0), lambda x: x - x.amax(0), lambda x: x.sort(0).values])
def test_constant_integers(pair, sample, function):
    with pytest.raises(xg.BuildError, match=DEPENDS):
        pair(Fn(function), [sample])


def test_a_mask_that_is_true_everywhere_in_the_sample(pair):
    with pytest.raises(xg.BuildError, match=DEPENDS):
        pair(Fn(lambda x, m: torch.where(m.all(0), x, -x)), [(torch.randn(16, 4), torch.ones(16, 4, dtype=torch.bool))])


# ---- chunks and layouts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "dim"),
    [
        (torch.nn.Linear(8, 3), 1),
        (Fn(lambda x: x.relu()), 1),
        (Fn(lambda x: torch.stack([x, x + 1], 0)), 0),
        (Fn(lambda x: x.transpose(0, 1).contiguous()), 0),
        (torch.nn.GRU(8, 5), 1),
        (torch.nn.LSTM(8, 5), 1),
    ],
    ids=["linear", "relu", "stack", "transpose", "gru", "lstm"],
)
@pytest.mark.parametrize("config", [{}, {"copy_outputs": False}])
def test_a_last_chunk_of_one_row_with_the_batch_inside(pair, module, dim, config):
    shape = (2, 4, 8) if dim == 1 else (4, 6, 8)
    name = "input" if isinstance(module, (torch.nn.Linear, torch.nn.RNNBase)) else "args[0]"
    dims = {name: dim}
    p = pair(copy.deepcopy(module), [torch.randn(shape)], batch_sizes=[1, 4], batch_dims=dims, **config)
    for size in (1, 3, 4, 5, 8, 9, 13, 15):
        p.check(torch.randn(2, size, 8) if dim == 1 else torch.randn(size, 6, 8))


# ---- arguments ------------------------------------------------------------------------------------------------------


class AddsOneToA(torch.nn.Module):
    def forward(self, a, b):
        a.add_(1)
        return a + b


def test_aliased_arguments_of_which_one_is_written_go_to_eager(pair):
    p = pair(AddsOneToA(), [(torch.randn(8, 3), torch.randn(8, 3))])
    x = torch.randn(4, 3)
    d = p.put(x)
    torch.testing.assert_close(p.backend.infer(d, d).cpu(), 2 * (x + 1))
    z = torch.randn(12, 3)
    dz = p.put(z)
    y = p.backend.infer(dz[:8], dz[4:12])
    torch.testing.assert_close(y.cpu(), AddsOneToA()(z[:8], z[4:12]))  # views of one tensor here as well
    assert p.backend.counters()["eager_calls"] == 2
    p.check(torch.randn(4, 3), torch.randn(4, 3))


def test_a_default_that_is_a_tensor(device):
    default = torch.full((3,), 99.0, device=device)

    class Model(torch.nn.Module):
        def forward(self, x, bias=default):
            return x + bias

    x = torch.randn(8, 3).to(device)
    backend = xg.XPUGraphBackend().build(Model().eval(), [(x,), (x[:4],)])
    other = torch.zeros(3, device=device)
    torch.testing.assert_close(backend.infer(x, other).cpu(), x.cpu())
    torch.testing.assert_close(backend.infer(x).cpu(), x.cpu() + 99)


def test_negative_zero_is_another_value(pair):
    p = pair(Fn(lambda x, s: x + math.copysign(1.0, s)), [(torch.ones(4, 2), 0.0)])
    assert torch.equal(p.got(torch.ones(3, 2), -0.0), torch.zeros(3, 2))
    assert p.backend.counters()["eager_calls"] == 1
    p.check(torch.ones(3, 2), 0.0)


def test_a_dict_key_whose_comparison_raises(pair):
    class Bad:
        def __hash__(self):
            return hash("a")

        def __eq__(self, other):
            raise RuntimeError("no")

    class Model(torch.nn.Module):
        def forward(self, tree):
            return next(iter(tree.values())) + 1

    p = pair(Model(), [{"tree": {"a": torch.randn(4, 2)}}])
    y = p.backend.infer({Bad(): p.put(torch.zeros(3, 2))})
    assert torch.equal(y.cpu(), torch.ones(3, 2))
    p.check({"a": torch.randn(3, 2)})


@pytest.mark.parametrize(
    "function",
    [
        lambda d: (d.__setitem__("y", d["x"]), d["x"] + 1)[1],
        lambda d: (d.__setitem__("x", d["x"] + 1), d["x"] + 1)[1],
        lambda d: (setattr(d["x"], "data", d["x"] * 2), d["x"] + 1)[1],
    ],
    ids=["new key", "other tensor", "data"],
)
def test_a_forward_that_changes_its_arguments_is_refused(device, function):
    with pytest.raises(xg.BuildError, match="which a graph would not do"):
        xg.XPUGraphBackend().build(Fn(function).eval(), [({"x": torch.randn(8, 2).to(device)},)])


# ---- state ----------------------------------------------------------------------------------------------------------


class SwallowsRefusal(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(1))

    def forward(self, x):
        try:
            self.n.add_(1)
        except Exception:
            pass
        return x + 1


class CountsInAList(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = [torch.zeros(1, device="sycl")]

    def forward(self, x):
        self.counts[0].add_(1)
        return x + 1


@pytest.mark.parametrize("make", [SwallowsRefusal, CountsInAList])
def test_hidden_writes_to_state_are_refused_and_undone(device, make):
    module = make().eval().to(device)
    with pytest.raises(xg.BuildError, match="in place"):
        xg.XPUGraphBackend().build(module, [torch.randn(4, 2).to(device)])
    state = module.n if make is SwallowsRefusal else module.counts[0]
    assert state.cpu().item() == 0


class Remembers(torch.nn.Module):
    def __init__(self, start):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.last = start

    def forward(self, x):
        self.last = self.linear(x)
        return self.last + 1


@pytest.mark.parametrize("start", [None, torch.zeros(1)], ids=["None", "tensor"])
def test_an_attribute_that_forward_assigns_is_put_back_and_not_watched(pair, start):
    p = pair(Remembers(start), [torch.randn(8, 3)])
    assert p.module.last is None or p.module.last.shape == (1,)
    p.check(torch.randn(5, 3))


def _clear(module):
    module.cfg.clear()


class Configured(torch.nn.Module):
    double = False

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(2, 2, 1)
        self.cfg = {"k": 1.0}
        self.scales = [2.0, torch.ones(1, device="sycl")]
        self.act = torch.relu
        self.options = type("Options", (), {})()
        self.options.on = True

    def forward(self, x):
        return self.act(self.conv(x)) * self.cfg["k"] * self.scales[0]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda m: setattr(m.conv, "stride", (2,)), "conv.stride"),
        (lambda m: m.register_forward_hook(lambda *_: None), "_forward_hooks"),
        (lambda m: m.conv.register_forward_pre_hook(lambda *_: None), "conv._forward_pre_hooks"),
        (lambda m: setattr(m.conv, "forward", lambda x: x), "the attributes of conv"),
        (lambda m: setattr(m, "double", True), "the attributes of the module"),
        (lambda m: m.add_module("extra", torch.nn.ReLU()), "_modules"),
        (lambda m: m.cfg.__setitem__("k", 3.0), "cfg.k"),
        (_clear, "cfg.k"),
        (lambda m: m.scales.__setitem__(0, 5.0), "scales"),
        (lambda m: m.scales.__setitem__(1, torch.ones(1)), "scales"),
        (lambda m: m.scales.append(1), "scales"),
        (lambda m: setattr(m, "act", torch.tanh), "act"),
        (lambda m: setattr(m.options, "on", False), "options.on"),
    ],
)
def test_changes_of_a_module_are_noticed(device, change, name):
    module = Configured().eval().to(device)
    backend = xg.XPUGraphBackend().build(module, [torch.randn(8, 2, 4, device=device)])
    backend.infer(torch.randn(3, 2, 4, device=device))
    change(module)
    with pytest.raises(xg.StateError, match=f"'{name}'"):
        backend.infer(torch.randn(3, 2, 4, device=device))


def test_a_changed_module_is_noticed_before_an_argument_is_written(pair):
    class Adds(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x.add_(self.w)

    p = pair(Adds(), [torch.randn(4, 3)])
    x = torch.randn(3, 3)
    d = p.put(x)
    p.module.w = torch.nn.Parameter(torch.ones(3, device=p.device))
    with pytest.raises(xg.StateError, match="'w'"):
        p.backend.infer(d)
    assert torch.equal(d.cpu(), x)


# ---- errors and counters --------------------------------------------------------------------------------------------


def test_an_error_of_the_device_is_not_lost_when_a_backend_goes(device, bad_index_is_an_error):
    module = torch.nn.Embedding(10, 4).eval().to(device)
    backend = xg.XPUGraphBackend().build(module, [torch.randint(0, 10, (8,)).to(device)])
    y = backend.infer(torch.full((8,), 99).to(device))
    backend.deactivate()
    with pytest.raises(RuntimeError, match="(?i)index out of range"):
        y.cpu()
    backend.activate()
    assert backend.infer(torch.ones(3, dtype=torch.long).to(device)).cpu().shape == (3, 4)


def test_the_builds_own_checks_are_not_counted(pair):
    p = pair(mlp(), [torch.randn(8, 32)])
    assert p.backend.counters()["graph_calls"] == 0 and p.backend.counters()["replays"] == 0
    p.check(torch.randn(3, 32))
    assert p.backend.counters()["graph_calls"] == 1 and p.backend.counters()["replays"] == 1


def test_modules_that_are_no_modules(device):
    scripted = torch.jit.script(torch.nn.Linear(3, 3).eval())
    with pytest.raises(xg.ConfigError, match="no torch.jit one"):
        xg.XPUGraphBackend().build(scripted, [torch.randn(4, 3).to(device)])


def test_a_guessed_batch_dimension_is_said_in_the_error(device):
    module = torch.nn.GRU(8, 5).eval().to(device)
    with pytest.raises(xg.BuildError, match="dimension 0 of input(.|\n)*batch_dims"):
        xg.XPUGraphBackend().build(module, [torch.randn(6, 16, 8).to(device)])


def test_operators_written_in_python_do_not_deadlock(device):
    library = torch.library.Library("xpugraph_tests", "DEF")
    library.define("slow(Tensor x) -> Tensor")

    def slow(x):
        time.sleep(0.002)
        return x + 1

    library.impl("slow", slow, "CPU")
    library.impl("slow", torch.empty_like, "Meta")
    x = torch.zeros(4, 2, device=device)
    backend = xg.XPUGraphBackend().build(Fn(torch.ops.xpugraph_tests.slow).eval(), [x])
    done = threading.Event()

    def serve():
        for _ in range(40):
            backend.infer(x)
        done.set()

    thread = threading.Thread(target=serve)
    thread.start()
    while not done.is_set():
        backend.counters()
    thread.join()
    torch.sycl.manual_seed(1)
    y = backend.infer(x)
    backend.infer(x)
    backend.deactivate()
    assert torch.equal(y.cpu(), torch.ones(4, 2))


def test_integers_at_the_end_of_their_range_can_be_recorded_again(device):
    module = Fn(lambda x: x & 255).eval()
    x = torch.tensor([[torch.iinfo(torch.int64).max, torch.iinfo(torch.int64).min]] * 4, device=device)
    backend = xg.XPUGraphBackend().build(module, [x])
    backend.deactivate()
    backend.activate()
    assert torch.equal(backend.infer(x).cpu(), x.cpu() & 255)
