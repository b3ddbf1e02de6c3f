# SPDX-License-Identifier: MIT
"""The Python parts on their own: structure, batch dimension, fresh inputs, tolerance. No device needed."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xpugraph import BuildError, ConfigError
from xpugraph.batching import fresh_inputs, output_dims, take_rows, tensor_arguments
from xpugraph.call import take_apart
from xpugraph.check import Tolerance
from xpugraph.structure import Leaves, describe, first_difference, rebuild

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: object
    label: str = "x"


leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=3),
    st.builds(lambda n: torch.full((2,), n), st.integers(0, 9)),
)
trees = st.recursive(
    leaf,
    lambda child: st.one_of(
        st.lists(child, max_size=3),
        st.lists(child, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), child, max_size=3),
        st.dictionaries(st.text(max_size=3), child, max_size=3).map(OrderedDict),
        st.dictionaries(st.text(max_size=3), child, max_size=3).map(UserDict),
        st.builds(Pair, child, child),
        st.builds(Frozen, child),
    ),
    max_leaves=12,
)


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return a is b
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and same(a.value, b.value) and a.label == b.label
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (dict, UserDict)):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


@given(trees)
def test_a_tree_taken_apart_is_built_again(tree):
    leaves = Leaves()
    spec = describe(tree, "tree", leaves)
    assert same(rebuild(spec, leaves.tensors), tree)
    assert first_difference(spec, describe(tree, "tree", Leaves()), "tree") is None


@given(trees, trees)
def test_two_trees_are_the_same_exactly_if_nothing_differs(a, b):
    difference = first_difference(describe(a, "t", Leaves()), describe(b, "t", Leaves()), "t")
    stand_in = object()  # for every tensor
    shape = [rebuild(describe(tree, "t", Leaves()), [stand_in] * 99) for tree in (a, b)]
    assert (difference is None) == same(*shape)


def test_names_are_what_a_user_writes():
    leaves = Leaves()
    t = torch.zeros(1)
    describe({"a": t, "b": [t, Pair(t, (t,))], "c": Frozen(t)}, "x", leaves)
    assert leaves.names == ["x['a']", "x['b'][0]", "x['b'][1].left", "x['b'][1].right[0]", "x['c'].value"]


class TwoInputs(torch.nn.Module):
    def forward(self, x, y):
        return x


@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(1, 3),
    st.data(),
)
def test_the_batch_dimension_is_found_wherever_it_is(rest, per_item, data):
    dim = data.draw(st.integers(0, len(rest)))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=3, unique=True))
    calls = []
    for size in sizes:
        shape = [*rest[:dim], per_item * size, *rest[dim:]]
        calls.append(take_apart(TwoInputs(), (torch.zeros(size, 2), torch.zeros(shape)), {}))
    (x, y), found = tensor_arguments(calls)
    assert found == sizes
    assert (x.batch_dim, x.rows_per_item) == (0, 1)
    assert (y.batch_dim, y.rows_per_item) == (dim, per_item)
    assert y.shape[dim] == per_item * max(sizes)


def test_rows_that_are_no_multiple_of_the_batch_are_refused():
    calls = [take_apart(TwoInputs(), (torch.zeros(n, 2), torch.zeros(n + 1, 2)), {}) for n in (4, 8)]
    with pytest.raises(ConfigError, match="y has 5 rows at batch size 4, 9 rows at batch size 8"):
        tensor_arguments(calls)


class OneInput(torch.nn.Module):
    def forward(self, x):
        return x


@pytest.mark.parametrize(
    "sample",
    [
        torch.rand(6, 5) + 0.1,
        torch.randn(6, 5),
        torch.randint(3, 9, (6, 5)),
        torch.randint(0, 2, (6, 5)).bool(),
        torch.randn(6, 4, 3, 2).to(memory_format=torch.channels_last),
        torch.randn(3, 6, 2).half(),
        torch.randn(6, 5, dtype=torch.complex64),
    ],
    ids=["positive", "normal", "indices", "bool", "channels_last", "half", "complex"],
)
@pytest.mark.parametrize("with_source", [True, False])
@pytest.mark.parametrize("rows", [1, 6, 17])
def test_fresh_inputs_stay_within_the_sample(sample, with_source, rows):
    dim = 1 if sample.dtype is torch.half else 0
    calls = [take_apart(OneInput(), (sample,), {})]
    arguments, _ = tensor_arguments(calls, {"x": dim})
    generator = torch.Generator().manual_seed(0)
    source = [sample] if with_source else None
    (fresh,) = fresh_inputs(arguments, source, rows, torch.device("cpu"), generator)
    assert fresh.dtype is sample.dtype and fresh.shape[dim] == rows
    if not sample.dtype.is_complex:
        assert fresh.double().max() <= sample.double().max() and fresh.double().min() >= min(0, sample.double().min())
        assert (fresh > 0).all() or not (sample > 0).all()
    if sample.dim() == 4 and rows > 1:
        assert fresh.is_contiguous(memory_format=torch.channels_last)
    assert take_rows(fresh, arguments[0], 0, rows).shape == fresh.shape


def test_outputs_that_follow_the_batch():
    def at(n):
        return [torch.zeros(n, 3), torch.zeros(4, 2 * n), torch.zeros(7), torch.tensor(1.0)]

    names = ["a", "b", "c", "d"]
    assert output_dims(names, at(8), at(4), 8, 4) == [(0, 1), (1, 2), (None, 1), (None, 1)]
    with pytest.raises(BuildError, match="b has shape"):
        output_dims(["b"], [torch.zeros(9)], [torch.zeros(5)], 8, 4)


def test_tolerance():
    one = torch.ones(4)
    nan = torch.tensor([1.0, float("nan"), float("inf"), 1.0])
    assert Tolerance().worst(one, one) == 0.0
    assert Tolerance().worst(nan, nan.clone()) == 0.0
    assert Tolerance().worst(one, nan) == float("inf")
    assert Tolerance().worst(nan, one) == float("inf")
    assert Tolerance().worst(-nan, nan) == float("inf")
    assert Tolerance().worst(one * 1.01, one) > 1.0
    assert Tolerance(rtol=0.1).worst(one * 1.01, one) < 1.0
    assert Tolerance(rtol=0.0, atol=0.0).worst(one, one) == 0.0
    assert Tolerance(rtol=0.0, atol=0.0).worst(one * 1.01, one) == float("inf")
    assert Tolerance().worst(one.long(), one.long()) == 0.0
    assert Tolerance().worst(one.long() + 1, one.long()) == float("inf")
    assert Tolerance().worst(one, one.double()) == float("inf")
    assert Tolerance().worst(one, torch.ones(5)) == float("inf")
    assert Tolerance().worst(torch.empty(0), torch.empty(0)) == 0.0
    big = torch.tensor([1000.0, 0.0])
    assert Tolerance().worst(big + torch.tensor([0.0, 0.01]), big) < 1.0  # atol grows with the largest value
