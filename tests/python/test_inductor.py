# SPDX-License-Identifier: MIT
"""How often Inductor compiles on the sycl device: counted by torch, for recorded graphs and without them."""

from __future__ import annotations

import copy
import gc
import random
import threading
import weakref

import pytest
import torch
from conftest import Fn, compilations, mlp
from torch._dynamo.utils import counters
from torch.nn.functional import relu

import xpugraph as xg
from xpugraph import inductor_hooks
from xpugraph.batching import tensor_arguments
from xpugraph.call import take_apart
from xpugraph.compiling import Compiled


def test_two_compilations_serve_35_sizes_and_none_comes_after_the_build(recorded):
    p = recorded(mlp(32, 3), [torch.randn(256, 32)])
    assert len(p.backend.recorded_batch_sizes) == 35 and p.backend.inductor_compiles == 2
    assert p.backend.dropped_batch_sizes == {}
    before = copy.deepcopy(counters)
    sizes = random.Random(0).choices(range(1, 301), k=300)
    for size in (1, 2, 3, 8, 17, 255, 256, 257, *sizes):
        p.check(torch.randn(size, 32))
    assert counters == before and p.backend.inductor_compiles == 2
    assert p.backend.counters()["eager_calls"] == 0 and p.backend.counters()["recordings"] == 35
    assert "inductor: 2 compilations" in p.backend.describe()


@pytest.mark.parametrize(("sizes", "compiles"), [([1, 2, 4], 2), ([1], 1), ([2], 1), ([3, 32], 1)])
def test_sizes_with_and_without_1(recorded, sizes, compiles):
    p = recorded(mlp(32, 1), [torch.randn(2, 32)], batch_sizes=sizes)
    assert p.backend.recorded_batch_sizes == sizes and p.backend.inductor_compiles == compiles
    for size in (1, 2, 3, 4, 9):
        p.check(torch.randn(size, 32))


def test_a_batch_as_long_as_other_dimensions_is_not_taken_for_them(recorded):
    p = recorded(mlp(16, 2), [torch.randn(16, 16)])
    for size in (1, 5, 8, 16, 19):
        p.check(torch.randn(size, 16))


class Buckets(torch.nn.Module):
    """Another branch from a batch of 5 on, with the same values."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return relu(self.linear(x)) if x.shape[0] >= 5 else self.linear(x).clamp_min(0)


def test_a_branch_on_the_batch_size_takes_one_compilation_more(recorded):
    p = recorded(Buckets(), [torch.randn(16, 4)], most=3)
    assert p.backend.inductor_compiles == 3 and p.backend.dropped_batch_sizes == {}
    for size in (1, 3, 5, 16):
        p.check(torch.randn(size, 4))


def test_a_low_recompile_limit_of_the_process_is_not_met(recorded):
    with torch._dynamo.config.patch(recompile_limit=1):
        p = recorded(Buckets(), [torch.randn(16, 4)], most=3)
    assert p.backend.inductor_compiles == 3 and p.backend.dropped_batch_sizes == {}


class EverySizeIsSpecial(torch.nn.Module):
    def forward(self, x):
        return x * (1.0 + float(len(list(range(x.shape[0]))) > 0))


def test_sizes_that_would_need_a_fourth_compilation_are_dropped_and_named(recorded):
    p = recorded(EverySizeIsSpecial(), [torch.randn(16, 4)], most=3)
    assert p.backend.inductor_compiles == 3
    assert p.backend.recorded_batch_sizes == [1, 8, 16]
    for size in (2, 4):
        assert "would have to be compiled on its own" in p.backend.dropped_batch_sizes[size]
        assert f"{size}" in p.backend.dropped_batch_sizes[size]
    before = compilations()
    for size in (1, 2, 4, 7, 20):
        p.check(torch.randn(size, 4))
    assert compilations() == before


def test_many_models_of_one_class_stay_below_the_recompile_limit(recorded, device):
    limit = torch._dynamo.config.recompile_limit
    for _ in range(limit + 2):
        p = recorded(mlp(8, 1), [torch.randn(4, 8)], batch_sizes=[1, 4])
        p.check(torch.randn(3, 8))
    for _ in range(limit + 2):
        module = mlp(8, 1).eval()
        backend = xg.TorchInductorBackend().build(copy.deepcopy(module).to(device), [torch.randn(4, 8).to(device)])
        x = torch.randn(3, 8)
        torch.testing.assert_close(backend.infer(x.to(device)).cpu(), module(x).detach(), rtol=1e-4, atol=1e-5)
        assert backend.counters() == {
            "eager_calls": 0,
            "eager_reasons": {},
            "inductor_compiles": 2,
            "graph_breaks": [],
        }


class Breaks(torch.nn.Module):
    """Dynamo keeps what follows the break by the code of this class, whichever instance it is of."""

    def __init__(self, reason="first"):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.reason = reason

    def forward(self, x):
        x = self.linear(x)
        if self.reason == "second":
            torch._dynamo.graph_break("second")
        else:
            torch._dynamo.graph_break("first")
        return relu(x)


def test_many_models_of_one_class_with_a_graph_break(device):
    for _ in range(torch._dynamo.config.recompile_limit + 4):
        module = Breaks().eval()
        backend = xg.TorchInductorBackend().build(copy.deepcopy(module).to(device), [torch.randn(4, 4).to(device)])
        built = backend.inductor_compiles
        for size in (1, 3, 6):
            x = torch.randn(size, 4)
            torch.testing.assert_close(backend.infer(x.to(device)).cpu(), module(x).detach(), rtol=1e-4, atol=1e-5)
        assert backend.inductor_compiles == built and backend.counters()["eager_calls"] == 0


def test_graph_breaks_are_those_of_the_build(device):
    for reason in ("first", "second", "first"):
        backend = xg.TorchInductorBackend().build(Breaks(reason).eval().to(device), [torch.randn(4, 4).to(device)])
        assert len(backend.graph_breaks) == 1 and f"'{reason}'" in backend.graph_breaks[0], backend.graph_breaks


HOSTILE = {
    "suppress_errors": True,
    "automatic_dynamic_shapes": True,
    "assume_static_by_default": False,
    "error_on_recompile": True,
    "recompile_limit": 1,
    "accumulated_recompile_limit": 1,
}


@pytest.mark.parametrize("setting", HOSTILE)
def test_settings_of_the_process_change_nothing(recorded, device, setting):
    with torch._dynamo.config.patch({setting: HOSTILE[setting]}):
        p = recorded(mlp(8, 1), [torch.randn(8, 8)], batch_sizes=[1, 4, 8])
        inductor = xg.TorchInductorBackend().build(p.module, [torch.randn(8, 8).to(device)])
        for size in (1, 2, 4, 7, 8):
            p.check(torch.randn(size, 8))
            inductor.infer(torch.randn(size, 8).to(device))
        assert p.backend.inductor_compiles == inductor.inductor_compiles == 2
        assert inductor.counters()["eager_calls"] == 0
        assert getattr(torch._dynamo.config, setting) == HOSTILE[setting]


def test_nothing_but_the_batch_is_variable(device):
    """Kernels of fixed lengths are faster; another length shows whether it was fixed."""
    module = Fn(lambda x: x.sin() + 1)
    module.register_buffer("anchor", torch.zeros(1))
    with torch._dynamo.config.patch(assume_static_by_default=False):
        backend = xg.TorchInductorBackend().build(module.eval().to(device), [torch.randn(8, 4).to(device)])
    for size, width, compiles in ((3, 4, 2), (3, 5, 3)):
        x = torch.randn(size, width)
        torch.testing.assert_close(backend.infer(x.to(device)).cpu(), x.sin() + 1)
        assert backend.inductor_compiles == compiles


def test_dynamic_true_with_a_batch_as_long_as_other_dimensions(device):
    module = mlp(16, 2).eval()
    backend = xg.TorchInductorBackend(xg.TorchInductorBackendConfig(dynamic=True))
    backend.build(copy.deepcopy(module).to(device), [torch.randn(16, 16).to(device)])
    assert backend.inductor_compiles == 2
    for size in (1, 2, 5, 16, 33):
        x = torch.randn(size, 16)
        torch.testing.assert_close(backend.infer(x.to(device)).cpu(), module(x).detach(), rtol=1e-4, atol=1e-5)
    assert backend.inductor_compiles == 2 and backend.counters()["eager_calls"] == 0


def test_builds_in_two_threads_count_their_own(device):
    """Each with other settings in force while the other one's begin and end."""
    modules = {compiles: module.eval() for compiles, module in ((2, mlp(8, 3)), (3, Buckets()))}
    settings, shapes = torch._dynamo.config.get_config_copy(), torch.fx.experimental._config.get_config_copy()
    before, built, failed = compilations(), {}, []

    def build(compiles):
        width = 8 if compiles == 2 else 4
        config = xg.XPUGraphBackendConfig(compile_with_inductor=True)
        module = copy.deepcopy(modules[compiles]).to(device)
        try:
            built[compiles] = xg.XPUGraphBackend(config).build(module, [torch.randn(16, width).to(device)])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=build, args=(compiles,)) for compiles in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert {compiles: backend.inductor_compiles for compiles, backend in built.items()} == {2: 2, 3: 3}
    assert compilations() - before == 5
    for compiles, backend in built.items():
        for size in (1, 3, 5, 16):
            x = torch.randn(size, 8 if compiles == 2 else 4)
            expected = modules[compiles](x).detach()
            torch.testing.assert_close(backend.infer(x.to(device)).cpu(), expected, rtol=1e-4, atol=1e-5)
    assert torch._dynamo.config.get_config_copy() == settings
    assert torch.fx.experimental._config.get_config_copy() == shapes


def test_a_build_while_other_threads_serve(recorded, device):
    first = recorded(mlp(8, 2), [torch.randn(8, 8)], batch_sizes=[1, 8])
    backends = [first.backend, xg.TorchInductorBackend().build(first.module, [torch.randn(8, 8).to(device)])]
    failed, stop = [], threading.Event()

    def serve():
        while not stop.is_set():
            for size in (1, 3, 8):
                x = torch.randn(size, 8)
                for backend in backends:
                    if not torch.allclose(backend.infer(x.to(device)).cpu(), first.expected(x), rtol=1e-4, atol=1e-5):
                        failed.append(size)

    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        p = recorded(mlp(8, 3), [torch.randn(16, 8)])
        inductor = xg.TorchInductorBackend().build(p.module, [torch.randn(8, 8).to(device)])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed
    assert [backend.inductor_compiles for backend in (*backends, p.backend, inductor)] == [2, 2, 2, 2]
    assert p.backend.dropped_batch_sizes == {} and first.backend.counters()["eager_calls"] == 0


def test_settings_of_two_threads_do_not_mix():
    """Torch 2.11 has them once for all threads."""
    inside, order = threading.Event(), []

    def other():
        with inductor_hooks.compiling(final=True):
            order.append("other")

    before = torch._dynamo.config.get_config_copy()
    with inductor_hooks.compiling():
        thread = threading.Thread(target=lambda: (inside.set(), other()))
        thread.start()
        inside.wait()
        thread.join(0.1)
        order.append("first")
        with inductor_hooks.compiling(final=True):
            assert torch._dynamo.config.error_on_recompile
        assert not torch._dynamo.config.error_on_recompile
    thread.join()
    assert order == ["first", "other"]
    assert torch._dynamo.config.get_config_copy() == before


def test_a_capture_compiles_nothing(device):
    module = mlp(8, 1).eval().to(device)
    call = take_apart(module, (torch.randn(4, 8).to(device),), {})
    tensors, _ = tensor_arguments([call], None)
    compiled = Compiled(module, call.arguments, tensors, device)
    with torch.no_grad():
        compiled.warm_up([torch.randn(4, 8).to(device)])
        compiled.capture([torch.randn(3, 8).to(device)])
        with pytest.raises(xg.BuildError, match="would have to be compiled on its own"):
            compiled.capture([torch.randn(1, 8).to(device)])
    assert compiled.compiles == 1


def test_what_was_compiled_goes_with_the_backend(recorded, device, monkeypatch):
    compile_graph, functions = inductor_hooks.compile_graph, []

    def spy(*args):
        run = compile_graph(*args)

        def function(*args):
            return run(*args)

        functions.append(weakref.ref(function))
        return function

    monkeypatch.setattr(inductor_hooks, "compile_graph", spy)
    p = recorded(mlp(8, 1), [torch.randn(4, 8)], batch_sizes=[1, 4])
    inductor = xg.TorchInductorBackend().build(p.module, [torch.randn(4, 8).to(device)])
    assert len(functions) == 4
    p.backend.deactivate()
    inductor.deactivate()
    gc.collect()
    assert [function() for function in functions] == [None] * 4


def test_every_size_is_warmed_up_before_its_capture_and_nothing_compiles_inside_one(recorded, monkeypatch):
    steps = []

    def spy(name):
        original = getattr(Compiled, name)

        def step(self, inputs):
            before = compilations()
            result = original(self, inputs)
            steps.append((name, len(inputs[0]), compilations() - before))
            return result

        monkeypatch.setattr(Compiled, name, step)

    spy("warm_up")
    spy("capture")
    recorded(mlp(8, 1), [torch.randn(4, 8)])
    sizes = [size for name, size, _ in steps if name == "capture"]
    assert sizes == [4, 2, 1]
    for size in sizes:
        assert [name for name, of, _ in steps if of == size][-2:] == ["warm_up", "capture"]
    assert [step for step in steps if step[2]] == [("warm_up", 4, 1), ("warm_up", 1, 1)]


def test_other_compiled_code_and_settings_of_the_process_survive(recorded):
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    mine = torch.compile(lambda x: x + 1, backend=backend)
    mine(torch.ones(3))
    settings = torch._dynamo.config.get_config_copy()
    recorded(mlp(8, 1), [torch.randn(4, 8)], batch_sizes=[4])
    assert torch._dynamo.config.get_config_copy() == settings
    mine(torch.ones(3))
    assert len(calls) == 1
