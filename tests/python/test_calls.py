# SPDX-License-Identifier: MIT
"""What a call may look like, what it returns, and what bad input gets."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import Fn, mlp

import xpugraph as xg

# ---- pytrees in (9) -------------------------------------------------------------------------------------------------


class Nested(torch.nn.Module):
    def forward(self, tree, scale=1.0, mask=None, *, bias=None):
        y = tree["a"] + tree["b"][0] * tree["b"][1]["c"] * scale
        if mask is not None:
            y = y * mask
        return y if bias is None else y + bias


def tree(size: int, swapped: bool = False) -> dict[str, Any]:
    entries = {"a": torch.randn(size, 4), "b": [torch.randn(size, 4), {"c": torch.randn(size, 1)}]}
    return dict(reversed(entries.items())) if swapped else entries


def test_nested_arguments_in_any_key_order_by_position_or_name(pair):
    p = pair(Nested(), [(tree(8), 2.0), (tree(3), 2.0)])
    p.check(tree(5), 2.0)
    p.check(tree(5, swapped=True), scale=2.0)
    p.check(tree=tree(8), scale=2.0)
    p.check(tree(2), 2.0, None)
    p.check(tree(2), 2.0, mask=None, bias=None)


def test_keyword_samples(pair):
    sample = {"tree": tree(8), "scale": 0.5, "mask": torch.ones(8, 1), "bias": torch.randn(4)}
    other = {"tree": tree(4), "scale": 0.5, "mask": torch.ones(4, 1), "bias": torch.randn(4)}
    p = pair(Nested(), [sample, other])
    p.check(tree(5), mask=torch.rand(5, 1), bias=torch.randn(4), scale=0.5)


def test_a_default_that_was_recorded_may_be_left_out(pair):
    p = pair(Nested(), [(tree(8),)])
    p.check(tree(5))
    p.check(tree(5), 1.0, None)


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    weight: float
    extra: torch.Tensor | None = None


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class TakesObjects(torch.nn.Module):
    def forward(self, batch, point, more):
        return Batch(batch.x * batch.weight + point.x, 2.0), Point(point.y, more["z"] + 1)


def objects(size: int) -> tuple[Any, ...]:
    z = collections.OrderedDict(z=torch.randn(size, 2))
    return Batch(torch.randn(size, 3), 0.5), Point(torch.randn(size, 3), torch.randn(size, 2)), z


def test_dataclasses_named_tuples_and_ordered_dicts(pair):
    p = pair(TakesObjects(), [objects(8), objects(2)])
    for size in (1, 5, 8, 12):
        args = objects(size)
        batch, point = p.backend.infer(*p.put(args))
        expected_batch, expected_point = p.expected(*args)
        assert type(batch) is Batch and type(point) is Point and batch.weight == 2.0 and batch.extra is None
        torch.testing.assert_close(batch.x.cpu(), expected_batch.x)
        torch.testing.assert_close(point.x.cpu(), expected_point.x)
        torch.testing.assert_close(point.y.cpu(), expected_point.y)
    assert p.backend.counters()["eager_calls"] == 0


# ---- pytrees out (49) -----------------------------------------------------------------------------------------------


class Returns(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(3, 2))

    def forward(self, x):
        y = x @ self.table
        return {
            "y": y,
            "none": None,
            "n": 3,
            "text": "ok",
            "list": [y + 1, (y * 2,)],
            "table": self.table * 1.0,
            "weight": self.table,
            "same": x,
            "top": y.argmax(1),
            "flag": y > 0,
        }


@pytest.mark.parametrize("size", [1, 3, 8, 13])
def test_results_of_every_kind(pair, size):
    p = pair(Returns(), [torch.randn(8, 3)])
    result = p.check(torch.randn(size, 3))
    assert list(result) == ["y", "none", "n", "text", "list", "table", "weight", "same", "top", "flag"]
    assert result["none"] is None and result["n"] == 3 and type(result["list"][1]) is tuple
    assert result["table"].shape == (3, 2)


def test_results_that_are_views_of_each_other(pair):
    def function(x):
        return x.t().contiguous().t(), x[:, 1:], x.unsqueeze(0), x[:, :1].expand(-1, 5)

    p = pair(Fn(function), [torch.randn(8, 4)])
    for size in (1, 3, 8, 9):
        p.check(torch.randn(size, 4))


def test_a_result_that_is_the_batch_size_is_refused(device):
    with pytest.raises(xg.BuildError, match=r"output\['n'\] is 9 and 8"):
        xg.XPUGraphBackend().build(
            Fn(lambda x: {"y": x, "n": x.shape[0]}).eval(), samples=[torch.randn(8, 2).to(device)]
        )


def test_a_result_square_in_the_batch_is_refused(device):
    with pytest.raises(xg.BuildError, match="one dimension must follow the batch"):
        xg.XPUGraphBackend().build(Fn(lambda x: x @ x.T).eval(), samples=[torch.randn(8, 2).to(device)])


def test_a_sum_over_the_batch_is_refused(device):
    with pytest.raises(xg.BuildError, match="rows of a batch depend|changes the real rows"):
        xg.XPUGraphBackend().build(Fn(lambda x: (x, x.sum())).eval(), samples=[torch.randn(8, 2).to(device)])


# ---- bad input to infer (35, 36, 37) --------------------------------------------------------------------------------


class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x, scale=1.0, offset=None):
        y = self.linear(x) * scale
        return y if offset is None else y + offset


BAD = {
    "wrong feature shape": (
        lambda: ((torch.randn(8, 7),), {}),
        r"x has shape \[8, 7\]; recorded for shape \[batch, 6\]",
    ),
    "would broadcast": (lambda: ((torch.randn(8, 1),), {}), r"x has shape \[8, 1\]; recorded for shape \[batch, 6\]"),
    "wrong dtype": (lambda: ((torch.randn(8, 6).double(),), {}), "x has dtype Double; recorded with Float"),
    "integers": (lambda: ((torch.ones(8, 6, dtype=torch.int64),), {}), "x has dtype Long"),
    "missing argument": (lambda: ((), {}), "'x' is missing"),
    "extra argument": (lambda: ((torch.randn(8, 6), 1.0, None, 4), {}), "4 positional arguments were given"),
    "unknown name": (lambda: ((torch.randn(8, 6),), {"nope": 1}), "'nope' is not among"),
    "twice": (lambda: ((torch.randn(8, 6),), {"x": torch.randn(8, 6)}), "'x' is not among"),
    "no tensor": (lambda: (([[1.0] * 6],), {}), "x is a list; recorded with a Tensor"),
    "numpy": (lambda: ((np.zeros((8, 6), dtype=np.float32),), {}), "x is a numpy.ndarray; recorded with a Tensor"),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_an_error_that_names_it_and_the_next_call_works(pair, kind, strict):
    make, message = BAD[kind]
    p = pair(Named(), [torch.randn(8, 6)], strict=strict)
    args, kwargs = make()
    with pytest.raises(xg.InputError, match=message):
        p.backend.infer(*p.put(args), **p.put(kwargs))
    assert p.backend.counters()["eager_calls"] == 0
    p.check(torch.randn(5, 6))


def test_a_tensor_on_the_host_is_an_error(pair, device):
    p = pair(Named(), [torch.randn(8, 6)])
    with pytest.raises(xg.InputError, match=f"x is on cpu; recorded on {device.type}"):
        p.backend.infer(torch.randn(8, 6))
    p.check(torch.randn(5, 6))


GOOD_FOR_EAGER = {
    "another value": (lambda: ((torch.randn(8, 6), 3.0), {}), "scale is 3.0; recorded with 1.0"),
    "another type of value": (lambda: ((torch.randn(8, 6), 1), {}), "scale is 1; recorded with 1.0"),
    "a tensor for None": (lambda: ((torch.randn(8, 6),), {"offset": torch.ones(6)}), "offset is tensor"),
    "more dimensions": (lambda: ((torch.randn(2, 8, 6),), {}), r"x has shape \[2, 8, 6\]"),
}


@pytest.mark.parametrize("kind", GOOD_FOR_EAGER)
def test_what_eager_can_serve_is_served_by_eager_and_counted(pair, kind):
    make, message = GOOD_FOR_EAGER[kind]
    args, kwargs = make()
    p = pair(Named(), [torch.randn(8, 6)])
    torch.testing.assert_close(p.got(*args, **kwargs), p.expected(*args, **kwargs), rtol=1e-4, atol=1e-5)
    reasons = p.backend.counters()["eager_reasons"]
    assert len(reasons) == 1 and list(reasons.values()) == [1]
    assert next(iter(reasons)).startswith(message.replace("\\", "").split(";")[0])
    assert message.replace("\\", "").split(";")[0] in p.backend.describe()

    strict = pair(Named(), [torch.randn(8, 6)], strict=True)
    with pytest.raises(xg.InputError, match=message):
        strict.backend.infer(*strict.put(args), **strict.put(kwargs))
    strict.check(torch.randn(3, 6))


def test_arguments_that_disagree_on_the_batch(pair):
    p = pair(Fn(lambda x, y: x + y), [(torch.randn(8, 3), torch.randn(8, 3))])
    with pytest.raises(
        xg.InputError, match=r"args\[1\] has shape \[5, 3\].*batch size of the arguments before it is 4"
    ):
        p.backend.infer(p.put(torch.randn(4, 3)), p.put(torch.randn(5, 3)))
    p.check(torch.randn(4, 3), torch.randn(4, 3))


COPIED = {
    "to": lambda x: x + torch.arange(x.shape[1]).to(x.device),
    "tensor": lambda x: x * torch.tensor([2.0, 3, 4, 5, 6], device=x.device),
    "copy_": lambda x: x + torch.empty(5, device=x.device).copy_(torch.ones(5)),
}


@pytest.mark.parametrize("kind", COPIED)
def test_a_host_tensor_made_in_forward_is_part_of_the_graph(pair, device, kind):
    if device.type != "sycl":
        pytest.skip("other devices wait for the copy")
    p = pair(Fn(COPIED[kind]), [torch.randn(8, 5)])
    for size in (1, 3, 8):
        p.check(torch.randn(size, 5))


@pytest.mark.parametrize("kind", COPIED)
def test_where_a_copy_from_the_host_waits_it_is_named(pair, device, kind, monkeypatch):
    monkeypatch.setattr("xpugraph.probe._COPY_FROM_HOST_WAITS", (device.type,))
    with pytest.raises(xg.BuildError, match="copies a tensor of the host to the device(.|\n)*test_calls.py:"):
        pair(Fn(COPIED[kind]), [torch.randn(8, 5)])
    pair(Fn(lambda x: x * torch.tensor(2.0) + 1), [torch.randn(8, 5)]).check(torch.randn(3, 5))


def test_record_stream_is_named_where_torch_cannot_record_it(pair, device, monkeypatch):
    def forward(x):
        y = x * 2
        y.record_stream(torch.get_device_module(device).current_stream())
        return y

    monkeypatch.setattr("xpugraph.probe._RECORD_STREAM_HARMS", (device.type,))
    with pytest.raises(xg.BuildError, match="record_stream(.|\n)*test_calls.py:"):
        pair(Fn(forward), [torch.randn(8, 5)])


@pytest.mark.parametrize("which", ["input", "weight"])
def test_record_stream_is_no_write(pair, device, which):
    class Records(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5))

        def forward(self, x):
            if x.device.type != "cpu":
                (x if which == "input" else self.weight.data).record_stream(
                    torch.get_device_module(device).current_stream()
                )
            return x * self.weight

    pair(Records(), [torch.randn(8, 5)]).check(torch.randn(3, 5))


def test_gradients(pair):
    p = pair(Named(), [torch.randn(8, 6)])
    x = p.put(torch.randn(4, 6))
    assert not p.backend.infer(x).requires_grad
    x.requires_grad_()
    y = p.backend.infer(x)
    assert y.requires_grad and "requires a gradient" in p.backend.describe()
    with torch.no_grad():
        assert not p.backend.infer(x).requires_grad
    assert p.backend.counters()["eager_calls"] == 1


def test_inference_mode_and_no_grad_in_either_order(pair):
    p = pair(Named(), [torch.randn(8, 6)])
    x = torch.randn(3, 6)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(p.got(x), p.expected(x), rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        p.check(torch.randn(40, 6))
        x = p.put(torch.randn(5, 6))
        torch.testing.assert_close(p.backend.infer(x.t().contiguous().t()).cpu(), p.expected(x.cpu()))


def test_built_in_inference_mode_called_outside_of_it(device):
    with torch.inference_mode():
        backend = xg.XPUGraphBackend().build(Named().eval().to(device), [torch.randn(8, 6, device=device)])
        inside = backend.infer(torch.randn(6, 5, device=device).t())
    assert inside.shape == (5, 6)
    outside = backend.infer(torch.randn(6, 5, device=device).t())  # a copy by torch into the padded buffer
    assert outside.shape == (5, 6) and not outside.is_inference()
    assert backend.counters()["eager_calls"] == 0


def test_one_dimension_and_no_feature(pair):
    p = pair(Fn(lambda x: (x * 2, x > 0)), [torch.randn(8)])
    for size in (1, 3, 8, 20):
        p.check(torch.randn(size))


# ---- bad input to build ---------------------------------------------------------------------------------------------


def build(device, module=None, samples=None, config=None, **options):
    module = Named().eval().to(device) if module is None else module
    samples = [torch.randn(8, 6).to(device)] if samples is None else samples
    return xg.XPUGraphBackend(config).build(module, samples, **options)


def test_the_life_of_a_backend(device):
    backend = xg.XPUGraphBackend()
    with pytest.raises(xg.StateError, match=r"build\(\) first"):
        backend.infer(torch.randn(8, 6))
    with pytest.raises(xg.StateError, match=r"build\(\) first"):
        backend.activate()
    with pytest.raises(xg.StateError, match=r"pool_stats\(\) in state 'init'"):
        backend.pool_stats()
    module, sample = Named().eval().to(device), torch.randn(8, 6).to(device)
    assert backend.build(module, samples=[sample]) is backend
    with pytest.raises(xg.StateError, match="built already"):
        backend.build(module, samples=[sample])
    backend.activate()
    assert backend.infer(sample).shape == (8, 6)
    backend.deploy()
    assert backend.state is xg.BackendState.DEPLOYED
    assert backend.infer(sample).shape == (8, 6)
    backend.deactivate()
    backend.deactivate()
    with pytest.raises(xg.StateError, match=r"activate\(\) first"):
        backend.infer(sample)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "at least one sample"),
        (torch.randn(8, 6), "at least one sample"),
        ([torch.randn(8, 6)], "is on cpu; graphs exist on"),
        ([(torch.randn(8, 6), 1.0, None, 7)], "too many positional"),
        ([(np.zeros(3),)], r"x is a numpy.ndarray; accepted are"),
        ([3.0], "without any tensor"),
    ],
)
def test_bad_samples(device, samples, message):
    with pytest.raises(xg.ConfigError, match=message):
        build(device, samples=samples)


def test_samples_that_do_not_tell_the_batch(device):
    a, b = torch.randn(8, 6).to(device), torch.randn(4, 5).to(device)
    with pytest.raises(xg.ConfigError, match=r"x differs in dimensions \[0, 1\]"):
        build(device, samples=[a, b])
    with pytest.raises(xg.ConfigError, match="differ in more than the batch: scale is 1.0 and 2.0"):
        build(device, samples=[(a, 1.0), (a[:4], 2.0)])
    with pytest.raises(xg.ConfigError, match="empty batch"):
        build(device, samples=[a[:0]])
    with pytest.raises(xg.ConfigError, match="no tensor is called 'y'"):
        build(device, batch_dims={"y": 0})
    with pytest.raises(xg.ConfigError, match="has 2 dimensions, so 2 is not one"):
        build(device, batch_dims=[2])
    with pytest.raises(xg.ConfigError, match="no tensor follows the batch"):
        build(device, batch_dims=[None])


def test_bad_modules(device):
    with pytest.raises(xg.ConfigError, match="a torch.nn.Module is needed"):
        build(device, module=lambda x: x)
    with pytest.raises(xg.ConfigError, match="parameter linear.weight is on cpu"):
        build(device, module=Named().eval())
    with pytest.raises(xg.BuildError, match="eager itself raises at batch size 8"):
        build(device, module=torch.nn.Linear(5, 5).eval().to(device))
    with pytest.raises(xg.ConfigError, match="unknown option 'nonsense'"):
        build(device, nonsense=1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"compile_with_inductor": 1}, "compile_with_inductor=1"),
        ({"max_recorded_batch_size": 0}, "max_recorded_batch_size=0"),
        ({"max_recorded_batch_size": True}, "max_recorded_batch_size=True"),
        ({"batch_sizes": []}, "at least one size"),
        ({"batch_sizes": [0]}, "batch_sizes=0"),
        ({"batch_sizes": [2.5]}, "batch_sizes=2.5"),
        ({"padding": "edge"}, "accepted is 'zeros'"),
        ({"pool_limit_bytes": -1}, "pool_limit_bytes=-1"),
        ({"rtol": -1.0}, "rtol=-1.0"),
        ({"atol": float("nan")}, "atol=nan"),
    ],
)
def test_bad_configuration(config, message):
    with pytest.raises(xg.ConfigError, match=message):
        xg.XPUGraphBackendConfig(**config)


def test_a_pool_limit_too_small_for_any_size_and_one_for_some(device):
    module, sample = mlp(256, 4).eval().to(device), torch.randn(2048, 256).to(device)
    config = {"batch_sizes": [1, 8, 64, 1024, 2048]}
    with pytest.raises(xg.BuildError, match="no batch size could be recorded(.|\n)*limit"):
        xg.XPUGraphBackend(xg.XPUGraphBackendConfig(**config, pool_limit_bytes=1)).build(module, [sample])
    alone = xg.XPUGraphBackend(xg.XPUGraphBackendConfig(batch_sizes=[2048])).build(module, [sample])
    limit = alone.pool_stats()["reserved"] - 1
    some = xg.XPUGraphBackend(xg.XPUGraphBackendConfig(**config, pool_limit_bytes=limit)).build(module, [sample])
    assert some.recorded_batch_sizes == [1, 8, 64, 1024]
    assert some.pool_stats()["reserved"] <= limit
    assert "2048" in some.describe() and "limit" in some.dropped_batch_sizes[2048]
    x = torch.randn(1500, 256)
    with torch.no_grad():
        expected = module(x.to(device)).cpu()
    torch.testing.assert_close(some.infer(x.to(device)).cpu(), expected, rtol=1e-4, atol=1e-5)


def test_own_batch_sizes_beyond_the_sample(pair):
    p = pair(Named(), [torch.randn(3, 6)], batch_sizes=[5, 20, 5])
    assert p.backend.recorded_batch_sizes == [5, 20]
    for size in (1, 5, 6, 20, 47):
        p.check(torch.randn(size, 6))


def test_the_largest_batch_off_the_grid_is_recorded(pair):
    p = pair(Named(), [torch.randn(13, 6), torch.randn(2, 6)])
    assert p.backend.recorded_batch_sizes == [1, 2, 4, 8, 13]
    capped = pair(Named(), [torch.randn(100, 6)], max_recorded_batch_size=20)
    assert capped.backend.recorded_batch_sizes == [1, 2, 4, 8, 16, 20]
    capped.check(torch.randn(100, 6))


# ---- saving ---------------------------------------------------------------------------------------------------------


def test_to_dict_and_back(device):
    import json

    module = Nested().eval()
    sample = (tree(8), 2.0)
    sample = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), sample)
    backend = xg.XPUGraphBackend(xg.XPUGraphBackendConfig(max_recorded_batch_size=8)).build(module, [sample])
    state = json.loads(json.dumps(backend.to_dict()))
    other = xg.XPUGraphBackend.from_dict(module, state)
    assert other.key() == backend.key() and other.state is xg.BackendState.CHECKPOINT_LOADED
    with pytest.raises(xg.StateError, match=r"deploy\(\) first"):
        other.infer(*sample)
    other.deploy(device)
    assert other.recorded_batch_sizes == backend.recorded_batch_sizes
    torch.testing.assert_close(other.infer(*sample).cpu(), backend.infer(*sample).cpu())
    assert other.counters()["eager_calls"] == 0


def test_state_that_is_not_ours(device):
    with pytest.raises(xg.ConfigError, match="state"):
        xg.XPUGraphBackend.from_dict(Named().eval().to(device), {"config": {}})
    with pytest.raises(xg.ConfigError, match="state"):
        xg.XPUGraphBackend.from_dict(Named().eval().to(device), {"config": {"nope": 1}, "recipe": {}})


def test_keys_tell_configurations_apart():
    a, b = xg.XPUGraphBackend(), xg.XPUGraphBackend(xg.XPUGraphBackendConfig(max_recorded_batch_size=8))
    assert a.key() != b.key() and a.key() == xg.XPUGraphBackend().key()
    assert "max_recorded_batch_size=8" in b.describe()


def test_eager_backend(device):
    module = Named().to(device)
    backend = xg.TorchEagerBackend().build(module, [torch.randn(2, 6).to(device)])
    assert backend.infer(torch.randn(3, 6).to(device)).shape == (3, 6)
    assert not backend.infer(torch.randn(3, 6).to(device)).requires_grad
    assert "TorchEagerBackend" in backend.describe()
