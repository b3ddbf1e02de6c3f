# SPDX-License-Identifier: MIT
"""Inputs and results of modules compiled by Inductor, and the modes that they are called in."""

from __future__ import annotations

import pytest
import torch
from conftest import Fn, mlp, on_cpu

import xpugraph as xg


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


class Options(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x, y=None, ids=None, *, scale=2.0, **others):
        z = self.linear(x) * scale
        for name, other in (("y", y), ("ids", ids), *others.items()):
            z = z if other is None else z + other * len(name)
        return z


@pytest.mark.parametrize(
    ("sample", "calls"),
    [
        ("x=x", ["x", "x=x", "x, None", "x, scale=2.0"]),
        ("x=x, y=y", ["x, y", "x, y, None", "y=y, x=x", "x, y, ids=None, scale=2.0"]),
        ("x=x, ids=y, scale=3.0", ["x, None, y, scale=3.0", "x, scale=3.0, ids=y"]),
        ("x=x, b=y, aa=x * 2", ["x, aa=x * 2, b=y", "x, b=y, aa=x * 2", "x, b=y, scale=2.0, aa=x * 2"]),
    ],
)
def test_calls_that_say_the_same_in_another_way_compile_nothing(recorded, device, sample, calls):
    def call(function, text, x, y=None):
        return eval(f"function({text})", {"function": function, "x": x, "y": x + 1 if y is None else y})

    p = recorded(Options(), [call(dict, sample, torch.randn(8, 6))], batch_sizes=[1, 8])
    inductor = xg.TorchInductorBackend().build(p.module, [call(dict, sample, torch.randn(8, 6).to(device))])
    assert inductor.inductor_compiles == 2
    for text in calls:
        for size in (1, 3, 8):
            x = torch.randn(size, 6)
            expected = call(p.expected, text, x)
            for backend in (p.backend, inductor):
                result = call(backend.infer, text, x.to(device))
                torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)
                assert backend.counters()["eager_calls"] == 0, backend.describe()
    assert inductor.inductor_compiles == 2
    for bad in ("", "x, x=x", "x, None, None, None"):
        with pytest.raises(TypeError, match="argument"):
            call(inductor.infer, bad, torch.randn(3, 6).to(device))


def test_written_arguments_that_share_memory_are_eagers(device):
    """torch.compile would not notice."""

    def function(x, y):
        x.add_(1)
        return x * y

    def separate(size):
        return torch.randn(size, 3).to(device), torch.randn(size, 3).to(device)

    module = Fn(function)
    module.register_buffer("anchor", torch.zeros(1))
    backend = xg.TorchInductorBackend().build(module.eval().to(device), [separate(4)])
    for size in (1, 3, 4):
        for view in (lambda t: (t[1:], t[1:]), lambda t: (t[1:], t[:-1]), lambda t: (t[:-1], t[1:])):
            buffer = torch.randn(size + 1, 3)
            given = buffer.to(device)
            expected = function(*view(buffer))
            torch.testing.assert_close(backend.infer(*view(given)).cpu(), expected)
            torch.testing.assert_close(given.cpu(), buffer)
    assert backend.counters()["eager_reasons"] == {"arguments share memory, and forward writes to arguments": 7}
    for size in (1, 3, 4):
        x, y = separate(size)
        expected = (x.cpu() + 1) * y.cpu()
        torch.testing.assert_close(backend.infer(x, y).cpu(), expected)
        both = torch.randn(2, size, 3)
        given = both.to(device)
        torch.testing.assert_close(backend.infer(*given).cpu(), (both[0] + 1) * both[1])
    assert backend.counters()["eager_calls"] == 7


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
    assert inductor.inductor_compiles == 2


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


def test_results_of_every_kind(recorded):
    def function(x):
        y = x.sin() + 1
        return {"y": y, "none": None, "n": 3, "views": (y[:, 1:], y.t()), "top": y.argmax(1), "flag": y > 1, "same": x}

    p = recorded(Fn(function), [torch.randn(8, 4)])
    for size in (1, 3, 8, 11):
        p.check(torch.randn(size, 4))
