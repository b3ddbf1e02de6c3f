# SPDX-License-Identifier: MIT
"""Weights, memory, saving and native kernels of modules compiled by Inductor."""

from __future__ import annotations

import copy
import gc
import json

import pytest
import torch
from conftest import compilations, mlp
from torch.nn.functional import relu

import xpugraph as xg

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
