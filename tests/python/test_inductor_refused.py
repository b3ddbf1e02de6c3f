# SPDX-License-Identifier: MIT
"""What Inductor cannot compile, and what is refused: each by name, and the next build works."""

from __future__ import annotations

import copy

import pytest
import torch
from conftest import mlp
from torch.nn.functional import relu

import xpugraph as xg
from xpugraph import inductor_hooks

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


def test_sizes_that_fail_count_as_compilations(pair, monkeypatch):
    class EverySize(torch.nn.Module):
        def forward(self, x):
            return x * (1.0 + float(len(list(range(x.shape[0]))) > 0))

    compile_graph, tried = inductor_hooks.compile_graph, []

    def fail(*args, **kwargs):
        tried.append(args)
        if len(tried) > 1:
            raise RuntimeError("no compiler any more")
        return compile_graph(*args, **kwargs)

    monkeypatch.setattr(inductor_hooks, "compile_graph", fail)
    p = pair(EverySize(), [torch.randn(16, 4)], compile_with_inductor=True)
    assert len(tried) == 3 and p.backend.inductor_compiles == 1
    assert p.backend.recorded_batch_sizes == [16] and list(p.backend.dropped_batch_sizes) == [8, 4, 2, 1]
    p.check(torch.randn(3, 4))


def test_a_compiler_that_fails_is_an_error_whatever_the_process_suppresses(pair, device, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(inductor_hooks, "compile_graph", fail)
    with torch._dynamo.config.patch(suppress_errors=True):
        with pytest.raises(xg.BuildError, match="no compiler here"):
            pair(mlp(8, 1), [torch.randn(4, 8)], compile_with_inductor=True)
        with pytest.raises(xg.BuildError, match="no compiler here"):
            xg.TorchInductorBackend().build(mlp(8, 1).eval().to(device), [torch.randn(4, 8).to(device)])


def test_a_forward_of_which_nothing_is_compiled_is_an_error(device, pair):
    with torch.compiler.set_stance("force_eager"):
        with pytest.raises(xg.BuildError, match="ran the forward without compiling anything"):
            pair(mlp(8, 1), [torch.randn(4, 8)], compile_with_inductor=True)
        with pytest.raises(xg.BuildError, match="ran the forward without compiling any"):
            xg.TorchInductorBackend().build(mlp(8, 1).eval().to(device), [torch.randn(4, 8).to(device)])
    lstm = torch.nn.LSTM(4, 4, batch_first=True).eval().to(device)
    with pytest.raises(xg.BuildError, match=r"without compiling any of it \(graph breaks: .*LSTM"):
        xg.TorchInductorBackend().build(lstm, [torch.randn(4, 5, 4).to(device)])


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
        for size in (2, 3, 4, 5, 6, 2):
            x = torch.randn(size, 8)
            torch.testing.assert_close(backend.infer(x.to(device)).cpu(), module(x).detach(), rtol=1e-4, atol=1e-5)
    assert backend.inductor_compiles == 3 and backend.counters()["eager_calls"] == 2
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
