# SPDX-License-Identifier: MIT
"""Inductor and what models are made of: convolutions, attention, dtypes, work on the host. Values come from the CPU."""

from __future__ import annotations

import pytest
import torch
from conftest import Fn
from torch.nn.functional import relu

import xpugraph as xg
from xpugraph import inductor_hooks


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


@pytest.mark.skipif(inductor_hooks.version() == (2, 11), reason="its fused encoder layer has no fake kernel there")
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


def test_random_numbers_are_eagers(device):
    """They come from the device's generator, in the order of the stream."""
    module = torch.nn.Sequential(torch.nn.Linear(6, 6)).eval().to(device)
    noisy = Fn(lambda x: module(x) + torch.rand_like(x) * 2).to(device)
    backend = xg.TorchInductorBackend().build(noisy, [torch.randn(8, 6).to(device)])
    for size in (1, 3, 8):
        x = torch.randn(size, 6).to(device)
        torch.manual_seed(size)
        result = backend.infer(x)
        torch.manual_seed(size)
        torch.testing.assert_close(result.cpu(), noisy(x).detach().cpu(), rtol=1e-4, atol=1e-5)
    assert backend.counters()["eager_calls"] == 0


def test_branches_of_cond(device):
    """Inductor writes a function of its own for each."""

    def forward(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2 + 1, lambda x: x.cos() - 3, (x,))

    backend = xg.TorchInductorBackend(xg.TorchInductorBackendConfig(fullgraph=True))
    module = Fn(forward)
    module.register_buffer("anchor", torch.zeros(1))
    backend.build(module.eval().to(device), [torch.randn(8, 6).to(device)])
    for size in (1, 3, 8):
        for sign in (1, -1):
            x = torch.rand(size, 6) * sign
            torch.testing.assert_close(backend.infer(x.to(device)).cpu(), forward(x), rtol=1e-4, atol=1e-5)
    assert backend.counters()["eager_calls"] == 0
