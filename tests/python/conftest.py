# SPDX-License-Identifier: MIT
"""Shared fixtures: everything runs on the sycl device, and every expected value comes from the CPU.

XPUGRAPH_TEST_DEVICE=cuda (or xpu) runs the tests on that device instead; those that are about the sycl device itself
fail there.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import xpugraph as xg
from xpugraph.structure import Leaves, describe, first_difference, rebuild

DEVICE = os.environ.get("XPUGRAPH_TEST_DEVICE", "sycl")


@pytest.fixture(scope="session")
def device() -> torch.device:
    if DEVICE == "sycl":
        return xg.enable_sycl_device()
    torch.backends.cudnn.allow_tf32 = False  # values are compared with the CPU's
    return torch.device(DEVICE, 0)


def accelerator() -> Any:
    """torch.sycl, torch.cuda or torch.xpu: streams, generators and memory of the device under test."""
    return torch.get_device_module(DEVICE)


@pytest.fixture
def bad_index_is_an_error(device: torch.device) -> None:
    if device.type in ("cuda", "xpu"):
        pytest.skip("a bad index is an assertion on the device, after which the process can use it no more")


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    leaves = Leaves()
    try:
        spec = describe(value, "value", leaves)
    except xg.ConfigError:  # something no backend accepts, such as a numpy array: passed on as it is
        return value
    return rebuild(spec, [function(t) for t in leaves.tensors])


def on_cpu(value: Any) -> Any:
    return map_tensors(lambda t: t.detach().cpu(), value)


class Pair:
    """A module on the device behind a backend, and the same module on the CPU to say what is right."""

    def __init__(self, module: torch.nn.Module, device: torch.device, samples: list[Any], **config: Any) -> None:
        batch_dims = config.pop("batch_dims", None)
        self.reference = copy.deepcopy(module).eval()
        self.module = module.eval().to(device)
        self.device = device
        self.backend = xg.XPUGraphBackend(xg.XPUGraphBackendConfig(**config))
        self.backend.build(self.module, samples=[self.put(s) for s in samples], batch_dims=batch_dims)

    def put(self, value: Any) -> Any:
        return map_tensors(lambda t: t.to(self.device), value)

    def expected(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self.reference(*copy.deepcopy(args), **copy.deepcopy(kwargs))

    def got(self, *args: Any, **kwargs: Any) -> Any:
        return on_cpu(self.backend.infer(*self.put(args), **self.put(kwargs)))

    def check(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the backend and asserts that the graphs, not eager, served it with the CPU's values."""
        before = self.backend.counters()
        got = self.got(*args, **kwargs)
        after = self.backend.counters()
        assert after["graph_calls"] == before["graph_calls"] + 1, self.backend.describe()
        expected = self.expected(*args, **kwargs)
        leaves, expected_leaves = Leaves(), Leaves()
        spec, expected_spec = describe(got, "result", leaves), describe(expected, "result", expected_leaves)
        assert first_difference(spec, expected_spec, "result") is None
        torch.testing.assert_close(leaves.tensors, expected_leaves.tensors, rtol=1e-4, atol=1e-5)
        return got


@pytest.fixture
def pair(device: torch.device) -> Callable[..., Pair]:
    def make(module: torch.nn.Module, samples: list[Any], **config: Any) -> Pair:
        return Pair(module, device, samples, **config)

    return make


def compilations() -> int:
    """Graphs that Dynamo had compiled in this process so far, by torch's own counter."""
    return counters["stats"]["unique_graphs"]


@pytest.fixture
def recorded(pair: Callable[..., Pair]) -> Callable[..., Pair]:
    """A pair whose graphs hold Inductor's kernels; checks what must hold for every one of them."""

    def make(module: torch.nn.Module, samples: list[Any], most: int = 2, **config: Any) -> Pair:
        before, broken = compilations(), sum(counters["graph_break"].values())
        p = pair(module, samples, compile_with_inductor=True, **config)
        assert p.backend.inductor_compiles == compilations() - before
        assert 1 <= p.backend.inductor_compiles <= most
        assert sum(counters["graph_break"].values()) == broken
        nodes = p.backend.nodes()
        assert list(nodes) == p.backend.recorded_batch_sizes and min(nodes.values()) > 0
        return p

    return make


class Fn(torch.nn.Module):
    """A module around a function of tensors, with one small weight so that it is on a device."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def mlp(width: int = 32, depth: int = 4) -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for _ in range(depth):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)
