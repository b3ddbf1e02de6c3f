# SPDX-License-Identifier: MIT
"""Inductor on the sycl device: kernel by kernel, and recorded. Values come from the CPU, counts from torch."""

from __future__ import annotations

import copy
import gc
import json
import random

import pytest
import torch
from conftest import Fn, mlp, on_cpu
from torch._dynamo.utils import counters
from torch.nn.functional import relu

import xpugraph as xg
from xpugraph import inductor_hooks
from xpugraph.compiling import Compiled


def compilations() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.fixture
def recorded(pair):
    """A pair whose graphs hold Inductor's kernels; checks what must hold for every one of them."""

    def make(module, samples, most=2, **config):
        before, broken = compilations(), sum(counters["graph_break"].values())
        p = pair(module, samples, compile_with_inductor=True, **config)
        assert p.backend.inductor_compiles == compilations() - before
        assert 1 <= p.backend.inductor_compiles <= most
        assert sum(counters["graph_break"].values()) == broken
        nodes = p.backend.nodes()
        assert list(nodes) == p.backend.recorded_batch_sizes and min(nodes.values()) > 0
        return p

    return make


# ---- compilations (39, 40, 42, 43) ----------------------------------------------------------------------------------


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


# ---- inputs ---------------------------------------------------------------------------------------------------------


class ManyInputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x, y, pairs, table, scale=2.0):
        z = self.linear(x) * scale + y.unsqueeze(1)
        return {"z": z, "pairs": pairs.reshape(-1, 2, 6) + z.unsqueeze(1), "table": table + 1.0, "n": 3}


def many_inputs(size):
    return torch.randn(size, 6), torch.randn(size), torch.randn(2 * size, 6), torch.randn(8, 6)


def test_several_inputs_of_one_batch(recorded):
    samples = [many_inputs(8), many_inputs(5)]
    p = recorded(ManyInputs(), samples)
    for size in (1, 3, 6, 8, 13):
        x, y, pairs, table = many_inputs(size)
        p.check(x, y, pairs=pairs, table=table)


def test_an_input_at_an_odd_address(recorded, device):
    p = recorded(mlp(7, 2), [torch.randn(8, 7)])
    inductor = xg.TorchInductorBackend().build(p.module, [torch.randn(8, 7).to(device)])
    for size in (1, 3, 8):
        buffer = torch.randn(size * 7 + 1)
        x = buffer.to(device)[1:].view(size, 7)
        assert x.data_ptr() % 16
        expected = p.expected(buffer[1:].view(size, 7))
        for backend in (p.backend, inductor):
            torch.testing.assert_close(backend.infer(x).cpu(), expected, rtol=1e-4, atol=1e-5)
    assert p.backend.counters()["eager_calls"] == inductor.counters()["eager_calls"] == 0


class Convolutions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 4, 3, stride=2)

    def forward(self, x):
        return self.second(relu(self.norm(self.first(x)))).mean((2, 3))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_memory_formats_of_convolutions(recorded, device, memory_format):
    module = Convolutions().to(memory_format=memory_format)
    torch.nn.init.uniform_(module.norm.running_var, 0.5, 2.0)
    p = recorded(module, [torch.randn(8, 3, 9, 9).to(memory_format=memory_format)])
    inductor = xg.TorchInductorBackend().build(p.module, [p.put(torch.randn(8, 3, 9, 9))])
    for size in (1, 3, 8):
        for other in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(size, 3, 9, 9).to(memory_format=other)
            p.check(x)
            torch.testing.assert_close(inductor.infer(p.put(x)).cpu(), p.expected(x), rtol=1e-4, atol=1e-5)
    assert inductor.counters()["eager_calls"] == 0


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_convolutions_are_not_laid_out_again_in_every_call(recorded, device, memory_format):
    module = Convolutions().to(memory_format=memory_format)
    xg.enable_sycl_device(gather=False)  # one node for every kernel
    try:
        p = recorded(module, [torch.randn(4, 3, 9, 9).to(memory_format=memory_format)], batch_sizes=[4])
    finally:
        xg.enable_sycl_device(gather=True)
    assert p.backend.nodes() == {4: 4}, "two convolutions, and one generated kernel after each"
    p.check(torch.randn(3, 3, 9, 9).to(memory_format=memory_format))


def test_strides_of_results_are_eagers(recorded):
    p = recorded(torch.nn.Conv2d(3, 4, 3), [torch.randn(8, 3, 9, 7).to(memory_format=torch.channels_last)])
    x = p.put(torch.randn(5, 3, 9, 7)).to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert p.backend.infer(x).stride() == p.module(x).stride()


def test_work_on_the_host_inside_of_forward(recorded):
    """Kernels of host and device with the same text; scalars of the host; values made on the host."""

    def function(x):
        host = torch.arange(16.0).view(4, 4).sin() + 1
        table = torch.arange(16.0, device=x.device).view(4, 4).sin() + 1
        return (x @ host.to(x.device) + x @ table) * torch.tensor(0.5), host.sum() * x

    p = recorded(Fn(function), [torch.randn(8, 4)])
    for size in (1, 3, 8):
        p.check(torch.randn(size, 4))


class Attention(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.project = torch.nn.Linear(16, 48)
        self.kind = kind
        mask = {"float": torch.randn(5, 5), "bool": torch.rand(5, 5) > 0.3}.get(kind)
        self.register_buffer("mask", mask.fill_diagonal_(1) if mask is not None else None)

    def forward(self, x):
        parts = self.project(x).chunk(3, -1)
        if self.kind != "flat":
            parts = [part.unflatten(-1, (2, 8)).transpose(1, 2) for part in parts]
        causal = self.kind == "causal"
        y = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=self.mask, is_causal=causal)
        return y * 2.0


@pytest.mark.parametrize("kind", ["plain", "float", "bool", "causal", "flat"])
def test_attention(recorded, kind):
    p = recorded(Attention(kind), [torch.randn(4, 5, 16)], batch_sizes=[1, 4])
    for size in (1, 3, 4, 6):
        p.check(torch.randn(size, 5, 16))


def test_multi_head_attention_of_a_transformer(recorded):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    p = recorded(torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), [torch.randn(4, 5, 16)])
    for size in (1, 3, 4, 6):
        p.check(torch.randn(size, 5, 16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(device, dtype):
    module = Convolutions().to(dtype).eval()
    config = xg.XPUGraphBackendConfig(compile_with_inductor=True, batch_sizes=[1, 4])
    x = torch.randn(4, 3, 9, 9, dtype=dtype).to(memory_format=torch.channels_last)
    expected = module(x).detach()
    backend = xg.XPUGraphBackend(config).build(module.to(device), [x.to(device)])
    assert backend.recorded_batch_sizes == [1, 4] and backend.infer(x.to(device)).dtype is dtype
    tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-8
    torch.testing.assert_close(backend.infer(x.to(device)).cpu(), expected, rtol=tolerance, atol=tolerance)


def test_three_dimensional_convolutions_in_channels_last(recorded):
    sample = torch.randn(4, 2, 4, 5, 6).to(memory_format=torch.channels_last_3d)
    p = recorded(torch.nn.Conv3d(2, 3, 3).to(memory_format=torch.channels_last_3d), [sample])
    assert p.backend.dropped_batch_sizes == {}
    for size in (1, 3, 4):
        p.check(torch.randn(size, 2, 4, 5, 6).to(memory_format=torch.channels_last_3d))


def test_arguments_that_are_written(recorded):
    def function(x, y):
        x.add_(1)
        return x * y

    p = recorded(Fn(function), [(torch.randn(8, 3), torch.randn(8, 3))])
    for size in (1, 3, 8, 11):
        x, y = torch.randn(size, 3), torch.randn(size, 3)
        before, given = x.clone(), p.put(x)
        torch.testing.assert_close(p.backend.infer(given, p.put(y)).cpu(), (before + 1) * y)
        torch.testing.assert_close(given.cpu(), before + 1)


def test_dimensions_marked_by_the_caller(recorded, device):
    p = recorded(mlp(8, 1), [torch.randn(4, 8)], batch_sizes=[1, 4])
    inductor = xg.TorchInductorBackend().build(p.module, [torch.randn(4, 8).to(device)])
    for mark in (torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic, torch._dynamo.mark_static):
        for dim in (0, 1):
            for size in (1, 3):
                x = torch.randn(size, 8)
                given = x.to(device)
                mark(given, dim)
                for backend in (p.backend, inductor):
                    torch.testing.assert_close(backend.infer(given).cpu(), p.expected(x), rtol=1e-4, atol=1e-5)
                    assert backend.counters()["eager_calls"] == 0, backend.describe()


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
def test_inference_mode_and_no_grad_in_either_order(recorded, device, first):
    second = torch.no_grad if first is torch.inference_mode else torch.inference_mode
    with first():
        p = recorded(mlp(8, 1), [torch.randn(4, 8)], batch_sizes=[1, 4])
        inductor = xg.TorchInductorBackend().build(p.module, [torch.randn(4, 8).to(device)])
    for mode in (second, first, torch.enable_grad, second):
        with mode():
            for size in (1, 2, 3, 4, 6):
                x = torch.randn(size, 8)
                p.check(x)
                result = inductor.infer(p.put(x))
                torch.testing.assert_close(on_cpu(result), p.expected(x), rtol=1e-4, atol=1e-5)
                assert not result.requires_grad
    assert p.backend.inductor_compiles <= 2 and inductor.counters()["eager_calls"] == 0
    assert inductor.inductor_compiles <= 6


# ---- autocast -------------------------------------------------------------------------------------------------------


class OwnAutocast(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=x.device.type == "sycl"):
            return self.linear(x)


def test_autocast_inside_and_around(recorded, device):
    p = recorded(OwnAutocast(), [torch.randn(4, 8)], batch_sizes=[1, 4])
    p.check(torch.randn(3, 8))  # autocast does not cast on this device: values and dtype of plain float32
    with torch.autocast("sycl", dtype=torch.bfloat16):
        inside = recorded(mlp(8, 1), [torch.randn(4, 8)], batch_sizes=[1, 4])
        inside.check(torch.randn(3, 8))
    x = torch.randn(3, 8)
    torch.testing.assert_close(inside.got(x), inside.expected(x), rtol=1e-4, atol=1e-5)
    assert "autocast is not as it was" in inside.backend.describe()


def test_autocast_of_the_inductor_backend(device):
    with pytest.raises(xg.ConfigError, match="autocast='bfloat16': autocast does not cast on the sycl device"):
        xg.TorchInductorBackend(xg.TorchInductorBackendConfig(autocast=torch.bfloat16)).build(
            mlp(8, 1).eval().to(device), [torch.randn(4, 8).to(device)]
        )
    module = mlp(8, 1).eval()
    backend = xg.TorchInductorBackend(xg.TorchInductorBackendConfig(autocast="bfloat16"))
    result = backend.build(module, [torch.randn(4, 8)]).infer(x := torch.randn(3, 8))
    assert result.dtype is torch.bfloat16
    torch.testing.assert_close(result.float(), module(x).detach(), rtol=3e-2, atol=3e-2)


# ---- what cannot be compiled ----------------------------------------------------------------------------------------


class Breaks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)
        torch._dynamo.graph_break("a break of the test's own")
        return relu(x)


def test_a_graph_break_is_named_and_the_plain_graph_still_builds(pair, recorded, device):
    with pytest.raises(xg.BuildError, match=r"Inductor cannot compile(.|\n)*a break of the test's own"):
        pair(Breaks(), [torch.randn(4, 4)], compile_with_inductor=True)
    plain = pair(Breaks(), [torch.randn(4, 4)])
    plain.check(torch.randn(3, 4))
    assert plain.backend.inductor_compiles == 0 and "inductor" not in plain.backend.describe()
    recorded(mlp(8, 1), [torch.randn(4, 8)], batch_sizes=[4]).check(torch.randn(3, 8))  # and so does the next one

    sample = torch.randn(4, 4).to(device)
    whole = xg.TorchInductorBackend(xg.TorchInductorBackendConfig(fullgraph=True))
    with pytest.raises(xg.BuildError, match="a break of the test's own"):
        whole.build(plain.module, [sample])
    parts = xg.TorchInductorBackend().build(plain.module, [sample])
    assert parts.graph_breaks and "a break of the test's own" in parts.describe()
    x = torch.randn(3, 4)
    torch.testing.assert_close(parts.infer(x.to(device)).cpu(), plain.expected(x), rtol=1e-4, atol=1e-5)


def test_a_compiler_that_fails_is_named(pair, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(inductor_hooks, "compile_graph", fail)
    with pytest.raises(xg.BuildError, match="Inductor cannot compile the forward: RuntimeError: no compiler here"):
        pair(mlp(8, 1), [torch.randn(64, 8)], compile_with_inductor=True)
    pair(mlp(8, 1), [torch.randn(4, 8)]).check(torch.randn(3, 8))


def test_torch_compile_that_does_nothing_is_an_error(device, pair):
    with torch._dynamo.config.patch(disable=True):
        with pytest.raises(xg.BuildError, match="torch.compile is disabled"):
            pair(mlp(8, 1), [torch.randn(4, 8)], compile_with_inductor=True)
        with pytest.raises(xg.BuildError, match="torch.compile is disabled"):
            xg.TorchInductorBackend().build(mlp(8, 1).eval().to(device), [torch.randn(4, 8).to(device)])


def test_a_forward_that_counts_its_calls_is_refused_with_the_guard(pair):
    class Counts(torch.nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * 2.0 + float(self.calls * 0)

    with pytest.raises(xg.BuildError, match=r"calls"):
        pair(Counts(), [torch.randn(4, 4)], compile_with_inductor=True)


def test_past_the_recompile_limit_calls_are_eager_and_counted(device):
    module = mlp(8, 1).eval()
    backend = xg.TorchInductorBackend(xg.TorchInductorBackendConfig(dynamic=False))
    with torch._dynamo.config.patch(recompile_limit=2):
        backend.build(copy.deepcopy(module).to(device), [torch.randn(2, 8).to(device), torch.randn(3, 8).to(device)])
        assert backend.inductor_compiles == 2
        for size in (2, 3, 4, 5, 2):
            x = torch.randn(size, 8)
            torch.testing.assert_close(backend.infer(x.to(device)).cpu(), module(x).detach(), rtol=1e-4, atol=1e-5)
    assert backend.inductor_compiles == 2 and backend.counters()["eager_calls"] == 2
    assert "recompile limit" in backend.describe()


@pytest.mark.parametrize("version", ["2.10.0", "2.15.0a0+git", "3.0", "unknown"])
def test_a_torch_that_is_not_known_is_refused_by_name(version):
    with pytest.raises(xg.MissingRuntimeError, match=f"torch {version.replace('+', '.')}.*2.11, 2.12, 2.13, 2.14"):
        inductor_hooks.version(version)
    assert inductor_hooks.version("2.14.1+xpu") == (2, 14)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"mode": "fast"}, "mode='fast'"),
        ({"mode": "default", "options": {}}, "only one of the two"),
        ({"options": [1]}, "a dict of Inductor's options"),
        ({"dynamic": "yes"}, "dynamic='yes'"),
        ({"fullgraph": 1}, "fullgraph=1"),
        ({"autocast": "float8"}, "autocast='float8'"),
    ],
)
def test_bad_configuration(config, message):
    with pytest.raises(xg.ConfigError, match=message):
        xg.TorchInductorBackendConfig(**config)


def test_reduce_overhead_is_refused_where_it_would_silently_do_nothing(device):
    backend = xg.TorchInductorBackend(xg.TorchInductorBackendConfig(mode="reduce-overhead"))
    with pytest.raises(xg.ConfigError, match="silently does not on sycl.*compile_with_inductor=True"):
        backend.build(mlp(8, 1).eval().to(device), [torch.randn(4, 8).to(device)])


# ---- weights and memory ---------------------------------------------------------------------------------------------


def test_changed_weights(recorded):
    p = recorded(mlp(8, 2), [torch.randn(4, 8)], batch_sizes=[1, 4])
    with torch.no_grad():
        for module in (p.module, p.reference):
            module[0].weight.mul_(2.0)
            module[0].bias.fill_(0.25)
    p.check(torch.randn(3, 8))
    p.module[0].weight = torch.nn.Parameter(p.module[0].weight.detach().clone())
    with pytest.raises(xg.StateError, match="'0.weight' of the module was changed"):
        p.got(torch.randn(3, 8))
    p.backend.deactivate()
    before = compilations()
    p.backend.activate()
    assert p.backend.inductor_compiles == compilations() - before == 2
    p.check(torch.randn(3, 8))


def test_what_graphs_read_stays_alive(recorded, device):
    places = []
    table = torch.randn(8)

    class ReadsAGlobal(torch.nn.Module):
        def forward(self, x):
            return relu(x + places[0].to(x.device)) * 2.0

    places.append(table.to(device))
    p = recorded(ReadsAGlobal(), [torch.randn(4, 8)], batch_sizes=[1, 4])
    places[0] = None
    gc.collect()
    torch.sycl.empty_cache()
    junk = [torch.full((8,), 1e9, device=device) for _ in range(64)]
    for size in (1, 3, 4):
        x = torch.randn(size, 8)
        torch.testing.assert_close(p.got(x), relu(x + table) * 2.0)
    assert len(junk) == 64


def test_memory_comes_back(recorded):
    module = mlp(64, 2)
    recorded(copy.deepcopy(module), [torch.randn(32, 64)])
    gc.collect()
    torch.sycl.empty_cache()
    before = torch.sycl.memory_allocated()
    for _ in range(3):
        p = recorded(copy.deepcopy(module), [torch.randn(32, 64)])
        del p
        gc.collect()
        assert torch.sycl.memory_allocated() == before


def test_results_of_every_kind(recorded):
    def function(x):
        y = x.sin() + 1
        return {"y": y, "none": None, "n": 3, "views": (y[:, 1:], y.t()), "top": y.argmax(1), "flag": y > 1, "same": x}

    p = recorded(Fn(function), [torch.randn(8, 4)])
    for size in (1, 3, 8, 11):
        p.check(torch.randn(size, 4))


# ---- saving, and the parts ------------------------------------------------------------------------------------------


def test_to_dict_and_back(recorded, device):
    p = recorded(mlp(8, 1), [torch.randn(4, 8)], batch_sizes=[1, 4])
    inductor = xg.TorchInductorBackend(xg.TorchInductorBackendConfig(fullgraph=True))
    inductor.build(p.module, [torch.randn(4, 8).to(device)])
    x = torch.randn(3, 8)
    for backend in (p.backend, inductor):
        state = json.loads(json.dumps(backend.to_dict()))
        other = type(backend).from_dict(p.module, state)
        assert other.key() == backend.key() and other.state is xg.BackendState.CHECKPOINT_LOADED
        with pytest.raises(xg.StateError, match=r"deploy\(\) first"):
            other.infer(x.to(device))
        other.deploy(device)
        assert other.inductor_compiles == backend.inductor_compiles == 2
        before = compilations()
        torch.testing.assert_close(other.infer(x.to(device)).cpu(), p.expected(x), rtol=1e-4, atol=1e-5)
        assert compilations() == before and other.counters()["eager_calls"] == 0
    inductor.deactivate()
    with pytest.raises(xg.StateError, match=r"activate\(\) first"):
        inductor.infer(x.to(device))
    inductor.activate()
    torch.testing.assert_close(inductor.infer(x.to(device)).cpu(), p.expected(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(xg.ConfigError, match="state"):
        xg.TorchInductorBackend.from_dict(p.module, {"config": {"nope": 1}, "recipe": {}})
    assert xg.TorchInductorBackend().key() != inductor.key()


def test_generated_kernels_are_launched_through_the_queue(device):
    """Nothing of a compiled module runs while a graph is recorded, and all of it when it is replayed."""
    core = pytest.importorskip("xpugraph._C").sycl
    module = mlp(8, 2).eval()
    backend = xg.TorchInductorBackend().build(copy.deepcopy(module).to(device), [torch.randn(4, 8).to(device)])
    x, out = torch.randn(4, 8).to(device), torch.zeros(4, 8, device=device)
    out.copy_(backend.infer(x))
    out.zero_()
    torch.sycl.synchronize()
    pool = core.create_pool()
    core.begin_capture(pool)
    out.copy_(backend.infer(x))
    graph = core.end_capture()
    torch.sycl.synchronize()
    assert graph.nodes > 0 and not out.cpu().any()
    fresh = torch.randn(4, 8)
    x.copy_(fresh)
    graph.replay()
    torch.testing.assert_close(out.cpu(), module(fresh).detach(), rtol=1e-4, atol=1e-5)
    del graph
    core.release_pool(pool)


def test_kernels_refuse_what_they_cannot_take(device):
    kernel = pytest.importorskip("xpugraph._C").sycl.Kernel
    with pytest.raises(xg.ConfigError, match="its address is null"):
        kernel("none", 0, 1)
    with pytest.raises(xg.ConfigError, match="kernel k: 1 arguments were given; it takes 2"):
        kernel("k", 1, 2)(torch.ones(1, device=device))
    for tensor in (torch.ones((), device="meta"), torch.ones(1)):
        with pytest.raises(xg.ConfigError, match=f"argument 0 is on {tensor.device}"):
            kernel("k", 1, 1)(tensor)
