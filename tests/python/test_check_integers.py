# SPDX-License-Identifier: MIT
"""The check of modules with integer inputs: it invents no index, and integers hide nothing that it would find."""

from __future__ import annotations

import pytest
import torch
from conftest import Fn
from torch import nn

import xpugraph as xg
from xpugraph.check import Checker


class Tables(nn.Module):
    """Embeddings of 100 and of 5 entries, and a function of both and of the arguments."""

    def __init__(self, function):
        super().__init__()
        self.wide, self.narrow = nn.Embedding(100, 4), nn.Embedding(5, 4)
        self.function = function

    def forward(self, *args):
        return self.function(self, *args)


def columns(n):
    return torch.stack([torch.randint(50, 100, (n,)), torch.randint(0, 5, (n,))], 1)


def both(module, c):
    return module.wide(c[:, 0]) + module.narrow(c[:, 1])


@pytest.fixture(params=["fatal", "not fatal"])
def either(request, device, monkeypatch):
    """A bad index ends the process, as on a GPU, or is an error, as on a CPU."""
    if request.param == "fatal":
        monkeypatch.setattr("xpugraph.check._BAD_INDEX_IS_FATAL", (device.type,))
    elif device.type != "sycl":
        pytest.skip("a bad index is fatal there")


@pytest.fixture
def checked(monkeypatch):
    """What the check puts in place of the samples."""
    seen, poisoned = [], Checker._poisoned

    def looks(self, *args):
        seen.append(poisoned(self, *args))
        return seen[-1]

    monkeypatch.setattr(Checker, "_poisoned", looks)
    return seen


def test_the_check_invents_no_index(pair, either, checked):
    rows = torch.tensor([[90, 3], [5, 4], [99, 0], [7, 2]])
    pair(Tables(both), [rows])
    assert checked
    for values in checked:
        found = [tuple(row) for row in values.tolist()]
        assert set(found) <= {tuple(row) for row in rows.tolist()}
        assert len({found[0], found[1], found[-1]}) > 1


@pytest.mark.parametrize("flag", [torch.isinf, torch.isnan])
def test_columns_of_indices_do_not_hide_that_rows_depend_on_a_float(pair, either, flag):
    module = Tables(lambda m, x, c: both(m, c) + x + flag(x).any().to(x.dtype))
    with pytest.raises(xg.BuildError, match="rows of a batch depend"):
        pair(module, [(torch.randn(8, 4), columns(8))], plan="pad")


@pytest.mark.parametrize("place", range(8))
def test_a_flag_over_the_batch_is_found_wherever_its_value_is(pair, either, place):
    x = torch.full((8,), 50)
    x[place] = 99
    module = Tables(lambda m, x: m.wide(x) * 0 + (x == 99).any().to(torch.float32))
    with pytest.raises(xg.BuildError, match="rows of a batch depend|padding"):
        pair(module, [x], plan="pad")


def test_items_of_several_rows_stay_whole(pair, either):
    def interleaved(n):
        return columns(n).reshape(-1)

    module = Tables(lambda m, i, y: both(m, i.view(-1, 2)) + y)
    p = pair(module, [(interleaved(8), torch.randn(8, 4)), (interleaved(4), torch.randn(4, 4))], plan="pad")
    state = p.backend.to_dict()
    for n in (1, 5, 8, 11):
        p.check(interleaved(n), torch.randn(n, 4))
    p.backend.record_batch_size(3)
    again = xg.XPUGraphBackend.from_dict(p.module, state)
    again.deploy()
    i, y = interleaved(5), torch.randn(5, 4)
    torch.testing.assert_close(again.infer(p.put(i), p.put(y)).cpu(), p.expected(i, y))


def test_arguments_that_belong_together_stay_together(pair, either):
    def call(n):
        kind = torch.randint(0, 2, (n,))
        return kind, torch.where(kind == 0, torch.randint(0, 95, (n,)), torch.randint(0, 5, (n,)))

    p = pair(Tables(lambda m, t, i: m.wide(t * 95 + i)), [call(16)], plan="pad")
    for n in (1, 5, 16, 20):
        p.check(*call(n))


TO_INTEGERS = {
    "copy_": lambda m, x: m.wide(torch.empty(x.shape, dtype=torch.long, device=x.device).copy_(x)),
    "assignment": lambda m, x: m.wide(_assigned(x)),
    "sum": lambda m, x: m.wide(x[:, None].sum(1, dtype=torch.long)),
    "bucketize": lambda m, x: m.wide(torch.bucketize(x, torch.arange(0, 101.0, device=x.device), right=True) - 1),
    "long": lambda m, x: m.wide(x.long()),
}


def _assigned(x):
    y = torch.zeros(x.shape, dtype=torch.long, device=x.device)
    y[:] = x
    return y


@pytest.mark.parametrize("kind", TO_INTEGERS)
def test_floats_that_become_indices_stay_tame(pair, device, monkeypatch, checked, kind):
    monkeypatch.setattr("xpugraph.check._BAD_INDEX_IS_FATAL", (device.type,))
    p = pair(Tables(TO_INTEGERS[kind]), [torch.randint(1, 100, (8,)).float()], plan="pad")
    assert checked and all(bool(((values >= 0) & (values < 100)).all()) for values in checked)
    p.check(torch.randint(1, 100, (5,)).float())


def test_indexing_by_numbers_is_recorded_and_by_a_mask_refused(pair):
    p = pair(Fn(lambda x, i: x[torch.arange(len(x), device=x.device), i]), [(torch.randn(8, 5), torch.arange(8) % 5)])
    for n in (1, 3, 8, 11):
        p.check(torch.randn(n, 5), torch.randint(0, 5, (n,)))
    pair(Fn(lambda x: x[:, torch.arange(3, device=x.device)]), [torch.randn(8, 5)]).check(torch.randn(3, 5))
    with pytest.raises(xg.BuildError, match="shape depends on values"):
        pair(Fn(lambda x: x[x > 0]), [torch.randn(8, 5)])


def test_nothing_is_waited_for_where_nothing_is_copied(pair, device, monkeypatch):
    monkeypatch.setattr("xpugraph.probe._COPY_FROM_HOST_WAITS", (device.type,))
    p = pair(Fn(lambda x: torch.cat([x, torch.tensor([], device=x.device).reshape(0, 5)])), [torch.randn(8, 5)])
    p.check(torch.randn(3, 5))
    with pytest.raises(xg.BuildError, match="copies a tensor of the host"):
        pair(Fn(lambda x: x[:, torch.tensor([0, 2])]), [torch.randn(8, 5)])
