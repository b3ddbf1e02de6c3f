# SPDX-License-Identifier: MIT
"""tune on the sycl device: right values against the CPU, wrong and failing backends, memory, datasets."""

from __future__ import annotations

import copy
import gc
import logging
import re
import time

import pytest
import torch
from conftest import Fn, mlp, on_cpu

import xpugraph as xg
from xpugraph.tuning.workload import Workload

FAST = xg.ProfilingConfig(
    measurement_stop_strategy=xg.NumStepsMeasuringStopStrategy(num_steps=3, warmup_samples=1),
    profiling_stop_strategy=xg.NeverProfilingStopStrategy(),
    sample_seconds=0,
)


class Eager(xg.TorchEagerBackend):
    """Base of the backends of these tests, which are all eager with something wrong with it."""

    label = "eager-like"


def strategy(backends=None, **options):
    """Over eager and graphs unless others are given: Inductor takes seconds to compile, and has a test of its own."""
    backends = [xg.TorchEagerBackend(), xg.XPUGraphBackend()] if backends is None else backends
    return xg.HighestThroughputStrategy(backends, FAST, **options)


def tune(module, dataset, batch_sizes=None, backends=None, **options):
    return xg.tune(module, dataset, batch_sizes, strategy(backends), progress=False, **options)


@pytest.fixture
def model(device):
    torch.manual_seed(0)
    return mlp(16, 3).eval().to(device)


def statuses(tuned):
    return {backend.label: backend.status for backend in tuned.report.backends}


# ---- values


@pytest.mark.parametrize("backends", [None, [xg.TorchEagerBackend()], [xg.XPUGraphBackend()]])
def test_a_tuned_module_answers_as_the_cpu_at_every_size(model, device, backends):
    reference = copy.deepcopy(model).cpu()
    tuned = tune(model, torch.randn(24, 16), [1, 3, 24], backends)
    for n in (1, 2, 3, 5, 16, 17, 23, 24, 25, 60):
        x = torch.randn(n, 16)
        torch.testing.assert_close(tuned(x.to(device)).cpu(), reference(x), rtol=1e-4, atol=1e-5)
    assert tuned(torch.empty(0, 16, device=device)).shape == (0, 16)
    with pytest.raises(RuntimeError):
        tuned(torch.randn(3, 17, device=device))
    tuned(torch.randn(3, 16, device=device))


def test_every_recorded_size_and_every_requested_one_is_measured(model):
    tuned = tune(model, torch.randn(3, 16), [1, 17, 40])
    assert tuned.report.batch_sizes == [1, 2, 4, 8, 16, 17, 24, 32, 40]
    assert all(list(b.measurements) == tuned.report.batch_sizes for b in tuned.report.backends)
    assert tune(model, torch.randn(9, 16)).report.batch_sizes == [1, 2, 4, 8, 9], "up to the largest of the dataset"


def test_the_module_and_the_given_backends_stay_as_they_were(model):
    backends = [xg.TorchEagerBackend(), xg.XPUGraphBackend()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tune(model, torch.randn(4, 16), backends=backends)
    assert [backend.state for backend in backends] == [xg.BackendState.INIT] * 2
    assert all(torch.equal(value.cpu(), before[name].cpu()) for name, value in model.state_dict().items())


def test_grad_modes_of_the_caller_do_not_matter(model, device):
    reference = copy.deepcopy(model).cpu()
    with torch.inference_mode():
        tuned = tune(model, torch.randn(4, 16, device=device))
    x = torch.randn(3, 16)
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            y = tuned(x.to(device))
            assert not y.requires_grad
            torch.testing.assert_close(y.cpu(), reference(x).detach(), rtol=1e-4, atol=1e-5)


# ---- backends that fail or are wrong


class Wrong(Eager):
    """Faster than anything, and slightly off from a batch size on."""

    def __init__(self, label, spoil, from_size=1):
        super().__init__()
        self.name, self.spoil, self.from_size = label, spoil, from_size

    label = property(lambda self: self.name)

    def _infer(self, x):
        result = super()._infer(x)
        return self.spoil(result) if len(x) >= self.from_size else result


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda y: y * 1.01, r"output differs from eager's by \d"),
        (lambda y: torch.where(torch.arange(len(y), device=y.device)[:, None] == 0, y + 1, y), "output differs"),
        (lambda y: y * float("nan"), "output differs from eager's by inf"),
        (lambda y: y[:, :-1], "output is torch.float32"),
        (lambda y: y.double(), "output is torch.float64"),
        (lambda y: (y,), "output is a tuple and a tensor"),
        (lambda y: None, "output is a const and a tensor"),
    ],
)
def test_a_backend_with_other_values_is_never_kept(model, spoil, reason):
    tuned = tune(model, torch.randn(8, 16), backends=[Wrong("wrong", spoil), xg.TorchEagerBackend()])
    assert statuses(tuned) == {"wrong": "wrong", "eager": "routed"}
    assert [route.backend for route in tuned.routes] == ["eager"]
    assert re.search(reason, tuned.report.backends[0].reason), tuned.report.backends[0].reason
    assert "wrong" in str(tuned.report)


def test_a_backend_that_is_wrong_at_one_size_only_is_not_kept_either(model):
    tuned = tune(model, torch.randn(24, 16), [1, 24], [Wrong("late", lambda y: -y, from_size=20), xg.XPUGraphBackend()])
    assert statuses(tuned)["late"] == "wrong"
    assert "at batch size 24" in tuned.report.backends[0].reason


def test_a_range_is_compared_at_both_ends_before_it_is_served(model):
    """Wrong at 5 alone, which is not measured: the range that begins there is looked at."""

    class AtFive(Eager):
        label = "at five"

        def _infer(self, x):
            return super()._infer(x) * (-1 if len(x) == 5 else 1)

    class Slow(Eager):
        label = "slow"

        def _infer(self, x):
            time.sleep(0.05 if len(x) > 4 else 0)
            return super()._infer(x)

    class FastFromFive(AtFive):
        def _infer(self, x):
            time.sleep(0.05 if len(x) <= 4 else 0)
            return super()._infer(x)

    config = xg.ProfilingConfig([4, 6], FAST.measurement_stop_strategy, sample_seconds=0)
    chosen = xg.HighestThroughputStrategy([Slow(), FastFromFive()], config)
    tuned = xg.tune(model, torch.randn(6, 16), [4, 6], chosen, progress=False)
    assert statuses(tuned) == {"slow": "routed", "at five": "wrong"}
    assert "at batch size 5" in tuned.report.backends[1].reason


class FailsToBuild(Eager):
    label = "fails"

    def _build(self, module, samples, **options):
        logging.getLogger("torch.something").warning("on the way to ruin")
        raise RuntimeError("no such kernel")


class FailsAt(Eager):
    label = "fails"

    def __init__(self, size):
        super().__init__()
        self.size = size

    def _infer(self, x):
        if len(x) == self.size:
            raise MemoryError("full")
        return super()._infer(x)


def test_one_that_fails_is_told_with_its_log_and_the_others_go_on(model):
    tuned = tune(model, torch.randn(4, 16), backends=[FailsToBuild(), xg.XPUGraphBackend(), FailsAt(4)])
    assert statuses(tuned) == {"fails": "failed", "graph": "routed", "fails#2": "failed"}
    first, _, last = tuned.report.backends
    assert first.reason == "RuntimeError: no such kernel"
    assert "on the way to ruin" in first.log and "Traceback" in first.log and "no such kernel" in first.log
    assert last.reason == "at batch size 4: MemoryError: full"
    assert "fails failed: RuntimeError: no such kernel" in str(tuned.report)


def test_it_fails_only_when_none_is_left_and_then_names_every_reason(model, device):
    with pytest.raises(xg.BuildError, match=r"(?s)no backend is left.*fails failed: RuntimeError: no.*wrong wrong: at"):
        tune(model, torch.randn(4, 16), backends=[FailsToBuild(), Wrong("wrong", lambda y: -y)])
    with pytest.raises(xg.BuildError, match="no backend is left"):
        tune(model, torch.randn(4, 16), backends=[FailsToBuild()])


def test_eager_that_raises_itself_is_told(device):
    module = mlp(16, 1).eval().to(device)
    with pytest.raises(xg.BuildError, match="eager itself raises at batch size 1, where .*17"):
        tune(module, torch.randn(4, 17), backends=[xg.TorchEagerBackend()])


def test_one_backend_strategy_raises_when_it_is_wrong(model):
    with pytest.raises(xg.BuildError, match="wrong"):
        xg.tune(model, torch.randn(4, 16), strategy=xg.OneBackendStrategy(Wrong("wrong", lambda y: -y), FAST))
    tuned = xg.tune(model, torch.randn(4, 16), strategy=xg.OneBackendStrategy(xg.XPUGraphBackend(), FAST))
    assert tuned.routes == [xg.Route(1, None, "graph")]


# ---- case 56: the device's eager itself wrong


def test_a_device_whose_own_operators_are_wrong_is_found_by_the_cpu(device):
    class Differs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(16, 16)

        def forward(self, x):
            y = self.linear(x)
            return y + 1 if x.device.type == "sycl" else y

    module = Differs().eval().to(device)
    assert statuses(tune(module, torch.randn(4, 16), backends=[xg.TorchEagerBackend()])) == {"eager": "routed"}
    with pytest.raises(xg.BuildError, match="eager wrong: at batch size 1: output differs from eager on the CPU's"):
        xg.tune(module, torch.randn(4, 16), strategy=strategy([xg.TorchEagerBackend()], reference="cpu"))


def test_the_cpu_as_reference_accepts_what_is_right(model):
    tuned = xg.tune(model, torch.randn(4, 16), strategy=strategy(reference="cpu"), progress=False)
    assert set(statuses(tuned).values()) <= {"routed", "not routed"}


# ---- memory


def wide(width):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 8)).eval()


def test_losers_are_freed(device):
    """The pool of a graph backend that gets no route is given back; the report tells both figures."""

    class Waits(xg.XPUGraphBackend):
        def infer(self, *args, **kwargs):
            time.sleep(0.05)
            return super().infer(*args, **kwargs)

        __call__ = infer
        label = "waits"

    module = wide(200_000).to(device)
    gc.collect()
    torch.sycl.empty_cache()
    tuned = tune(module, torch.randn(8, 8), [1, 8], [xg.TorchEagerBackend(), Waits()])
    assert statuses(tuned) == {"eager": "routed", "waits": "not routed"}
    assert list(tuned.backend.backends) == ["eager"]
    report = tuned.report
    assert report.reserved_while_profiling - report.reserved_for_serving >= 8 * 200_000 * 4
    assert report.reserved_for_serving == torch.sycl.memory_reserved()
    assert "MiB with every backend built" in str(report)


def test_everything_is_freed_when_tuning_fails(model):
    gc.collect()
    torch.sycl.empty_cache()
    before = torch.sycl.memory_reserved()
    with pytest.raises(KeyboardInterrupt):
        xg.tune(model, torch.randn(4, 16), strategy=strategy([xg.XPUGraphBackend()]), progress=interrupt_at(4))
    gc.collect()
    torch.sycl.empty_cache()
    assert torch.sycl.memory_reserved() == before


def interrupt_at(size):
    def progress(step):
        if step.batch_size == size:
            raise KeyboardInterrupt

    return progress


# ---- datasets


class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x, shift=None, *, scale=1.0):
        y = self.linear(x) * scale
        return {"y": y if shift is None else y + shift["by"], "n": 3}


@pytest.mark.parametrize(
    "dataset",
    [
        torch.ones(8, 16),
        (torch.ones(8, 16), {"by": torch.ones(8, 16)}),
        {"x": torch.ones(8, 16), "scale": 2.0},
        [torch.ones(8, 16), torch.ones(5, 16)],
        [(torch.ones(8, 16), None), (torch.ones(3, 16), None)],
        torch.utils.data.DataLoader(torch.ones(20, 16), batch_size=8),
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(20, 16)), batch_size=8),
        torch.utils.data.DataLoader([{"x": torch.ones(16)} for _ in range(20)], batch_size=8),
        iter([torch.ones(8, 16)]),
    ],
    ids=["tensor", "tuple", "dict", "list", "tuples", "loader", "loader of tuples", "loader of dicts", "iterator"],
)
def test_datasets(device, dataset):
    torch.manual_seed(0)
    module = Named().eval().to(device)
    reference = copy.deepcopy(module).cpu()
    tuned = tune(module, dataset)
    assert tuned.report.batch_sizes[-1] == 8
    given = dataset if isinstance(dataset, dict) else {}
    options = {"scale": given["scale"]} if "scale" in given else {}
    x = torch.randn(5, 16)
    extra = ({"by": torch.randn(5, 16)},) if isinstance(dataset, tuple) else ()
    got = on_cpu(tuned(x.to(device), *({"by": e["by"].to(device)} for e in extra), **options))
    expected = reference(x, *extra, **options)
    assert got["n"] == 3
    torch.testing.assert_close(got["y"], expected["y"], rtol=1e-4, atol=1e-5)
    if "graph" in tuned.backend.backends:
        assert tuned.backend.eager_calls() == 0


def test_two_batch_sizes_in_the_dataset_tell_the_batch_dimension(device):
    """(T, B, D): the batch is dimension 1, and the table does not follow it although it is as long."""
    module = Fn(lambda x, table: (x * table[:, None, :1]).sum(0)).eval()
    module.register_buffer("anchor", torch.zeros(1))
    module = module.to(device)
    dataset = [(torch.randn(6, 6, 4), torch.randn(6, 3)), (torch.randn(6, 2, 4), torch.randn(6, 3))]
    tuned = tune(module, dataset)
    x, table = torch.randn(6, 5, 4), dataset[0][1]
    got = tuned(x.to(device), table.to(device)).cpu()
    torch.testing.assert_close(got, (x * table[:, None, :1]).sum(0))
    tuned = tune(module, dataset[0], batch_dims=[1, None])
    torch.testing.assert_close(tuned(x.to(device), table.to(device)).cpu(), got)


@pytest.mark.parametrize(
    ("dataset", "names"),
    [
        (3, "dataset: a int"),
        ("abc", "dataset: a str"),
        ([], "dataset: it is empty"),
        (torch.nn.Linear(1, 1), "dataset: a Linear"),
        (torch.ones(()), "no tensor follows the batch"),
        ([[torch.ones(4, 16), torch.ones(4), torch.ones(4)]], r"labels as well.*\(\[x\] for x, label in loader\)"),
        ([torch.ones(4, 16), torch.ones(5, 17)], "only the batch may differ"),
        ([torch.ones(4, 16), torch.ones(4, 17, 1)], "3 dimensions"),
        ({"y": torch.ones(4, 16)}, "unexpected|missing"),
    ],
)
def test_a_dataset_that_does_not_fit_is_named(device, dataset, names):
    with pytest.raises(xg.ConfigError, match=names):
        tune(Named().eval().to(device), dataset)


def test_of_a_loader_only_some_batches_are_taken(device):
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield torch.ones(4, 16)

    tune(Named().eval().to(device), endless())
    assert len(taken) == 8


def test_a_batch_dimension_that_was_found_wrongly_is_named(device):
    with pytest.raises(xg.BuildError, match="at batch size 1, where the batch is dimension 1 of x"):
        tune(Named().eval().to(device), [torch.ones(4, 16), torch.ones(4, 17)])


@pytest.mark.parametrize("sizes", [[], [0], [-1], [1.5], ["1"], [True], 4, "14"])
def test_batch_sizes_out_of_range_are_named(model, sizes):
    with pytest.raises(xg.ConfigError, match="batch_sizes"):
        tune(model, torch.ones(4, 16), sizes)


def test_a_module_in_training_mode_or_a_bad_strategy_is_refused(model):
    with pytest.raises(xg.ConfigError, match="training mode"):
        tune(mlp(16, 1), torch.ones(4, 16))
    with pytest.raises(xg.ConfigError, match="strategy="):
        xg.tune(model, torch.ones(4, 16), strategy=xg.TorchEagerBackend())
    with pytest.raises(xg.ConfigError, match="not built"):
        strategy([xg.TorchEagerBackend().build(model, [torch.ones(1, 16)])])


def test_batches_look_like_the_dataset_and_repeat_for_the_same_size(device):
    module = Named().eval().to(device)
    workload = Workload(module, {"x": torch.full((4, 16), 3.0)}, [1, 12])
    (x,) = workload.tensors(12)
    assert x.shape == (12, 16) and x.device.type == "sycl"
    assert 0 < float(x.min()) and float(x.max()) <= 3.0
    assert torch.equal(x.cpu(), workload.tensors(12)[0].cpu())
    assert len({round(float(row.mean()), 6) for row in x.cpu()}) == 12
