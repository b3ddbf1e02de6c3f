# SPDX-License-Identifier: MIT
"""tune with odd modules and backends that misbehave: one that does never ends the tuning, and is never kept."""

from __future__ import annotations

import copy
import gc
import logging
import threading

import pytest
import torch
from conftest import Fn
from test_tuning import FAST, Eager, FailsToBuild, model, statuses, strategy, tune, wide

import xpugraph as xg
from xpugraph.check import Tolerance
from xpugraph.timing import gc_disabled

__all__ = ["model"]  # a fixture


class Answers(Eager):
    label = "answers"

    def __init__(self, function):
        super().__init__()
        self.function = function

    def _infer(self, x):
        return self.function(super()._infer(x))


def on(device, function):
    module = Fn(function)
    module.register_buffer("anchor", torch.zeros(1))
    return module.eval().to(device)


# ---- values that are compared


def test_zeros_for_small_values_are_wrong(device):
    module = on(device, lambda x: x.softmax(1) * 3e-5)
    tuned = tune(module, torch.randn(8, 64), backends=[Answers(torch.zeros_like), xg.TorchEagerBackend()])
    assert statuses(tuned) == {"answers": "wrong", "eager": "routed"}


def test_one_wrong_row_of_indices_is_wrong(device):
    def last_row_wrong(y):
        y = y.clone()
        y[-1] += 99
        return y

    module = on(device, lambda x: x.argmax(1))
    tuned = tune(module, torch.randn(256, 16), [256], [Answers(last_row_wrong), xg.TorchEagerBackend()])
    assert statuses(tuned) == {"answers": "wrong", "eager": "routed"}


def test_what_tolerance_lets_pass_of_integers():
    expected = torch.arange(1000).reshape(10, 100)
    rounded = expected.clone()
    rounded[3, 5] += 1
    assert Tolerance().worst(rounded, expected) == 0
    assert Tolerance(exact_integers=True).worst(rounded, expected) > 1
    row = expected.clone()
    row[3] += 7
    assert Tolerance().worst(row, expected) > 1
    column = torch.arange(1000)
    for off, right in ((1, True), (2, False)):
        other = column.clone()
        other[-1] += off
        assert (Tolerance().worst(other, column) <= 1) is right


def test_rounding_noise_in_place_of_zero_is_not_wrong():
    assert Tolerance().worst(torch.full((4,), 3e-7), torch.zeros(4)) <= 1
    assert Tolerance().worst(torch.full((4,), 3e-5), torch.zeros(4)) > 1
    assert Tolerance(atol=1e-3).worst(torch.full((4,), 5e-4), torch.full((4,), 1e-4)) <= 1, "given: absolute"


# ---- modules


def test_a_module_that_refuses_sizes_nobody_asked_for(device):
    """Batch 1, where the first range begins, and odd sizes."""

    def even_only(x):
        if len(x) % 2:
            raise ValueError("odd batch")
        return x * 2

    tuned = tune(on(device, even_only), torch.randn(8, 4), [2, 8], [xg.TorchEagerBackend()])
    assert tuned.report.batch_sizes == [2, 8]
    with pytest.raises(xg.BuildError, match="at batch size 1, .*odd batch"):
        tune(on(device, even_only), torch.randn(8, 4), [1, 8], [xg.TorchEagerBackend()])
    with pytest.raises(xg.BuildError, match="eager itself raises at batch size 1: odd batch"):
        tune(on(device, even_only), torch.randn(8, 4), [2, 8], dry_run=True)


def test_a_module_without_weights_is_where_its_dataset_is(device):
    tuned = tune(Fn(lambda x: x * 2).eval(), torch.randn(4, 3, device=device), backends=[xg.XPUGraphBackend()])
    assert tuned.report.device.startswith("sycl")
    assert tuned(torch.ones(3, 3, device=device)).cpu().sum() == 18


def test_arguments_that_are_counted_up_in_place(device):
    """As positions are while decoding: every call starts from the same ones."""

    class Decodes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(12, 4)

        def forward(self, position):
            y = self.table(position)
            position.add_(1)
            return y

    module = Decodes().eval().to(device)
    reference = copy.deepcopy(module).cpu()
    tuned = tune(module, torch.arange(8) % 8, [1, 8])
    assert "routed" in statuses(tuned).values() and "failed" not in statuses(tuned).values()
    position, expected = torch.tensor([3, 5]).to(device), torch.tensor([3, 5])
    got = tuned(position)
    torch.testing.assert_close(got.cpu(), reference(expected))
    assert position.cpu().tolist() == expected.tolist() == [4, 6]


def test_a_backend_that_does_not_write_to_the_arguments_is_wrong(device):
    class Copies(Eager):
        label = "copies"

        def _infer(self, x):
            return super()._infer(x.clone())

    module = on(device, lambda x: x.add_(1) * 2)
    tuned = tune(module, torch.randn(4, 3), backends=[Copies(), xg.TorchEagerBackend()])
    assert statuses(tuned) == {"copies": "wrong", "eager": "routed"}


def test_a_module_that_counts_its_calls_is_put_back(device):
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.register_buffer("n", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            self.n.add_(1)
            return x * 2

    module = Counts().eval().to(device)
    tune(module, torch.randn(4, 3), backends=[xg.TorchEagerBackend()])
    assert module.calls == 0 and float(module.n) == 0


def test_a_module_that_never_answers_twice_alike_is_left_to_eager(device):
    module = on(device, lambda x: x + torch.rand_like(x))
    tuned = tune(module, torch.randn(4, 3), backends=[Answers(lambda y: y), xg.TorchEagerBackend()])
    assert statuses(tuned) == {"answers": "wrong", "eager": "routed"}
    assert "itself gives other values" in tuned.report.backends[0].reason


def test_the_cpu_as_reference_takes_no_memory_of_the_device(device):
    module = wide(200_000).to(device)
    gc.collect()
    torch.sycl.synchronize()
    torch.sycl.reset_peak_memory_stats()
    before = torch.sycl.memory_allocated()
    options = {"strategy": strategy([xg.TorchEagerBackend()], reference="cpu"), "progress": False}
    xg.tune(module, torch.randn(1, 8), [1], **options)
    weights = sum(p.nbytes for p in module.parameters())
    assert torch.sycl.max_memory_allocated() - before < weights / 2
    module.made = module[0].weight * 2  # not a leaf, which deepcopy refuses
    with pytest.raises(xg.ConfigError, match="reference='cpu'"):
        xg.tune(module, torch.randn(1, 8), [1], **options)


# ---- backends


def test_a_build_that_changes_the_module_is_told(model):
    class Ruins(Eager):
        label = "ruins"

        def _build(self, module, samples, **options):
            super()._build(module, samples, **options)
            with torch.no_grad():
                module[0].bias.zero_()

    with pytest.raises(xg.BuildError, match="backend ruins changed '0.bias' of the module"):
        tune(model, torch.randn(4, 16), backends=[Ruins(), xg.TorchEagerBackend()])


class LyingSizes(Eager):
    label = "lies"

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    def facts(self):
        return {"recorded_batch_sizes": self.sizes}


class NoState(Eager):
    label = "lies"

    def build(self, module, samples, **options):
        self._module = module
        return self


class Locked(Eager):
    label = "lies"

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class RaisesLate(Eager):
    label = "lies"

    def eager_calls(self):
        raise RuntimeError("no count")


class Silent(Eager):
    label = "lies"

    def describe(self):
        return ""


class NoInit(Eager):
    label = "lies"

    def __init__(self):
        pass


class LogsBadly(Eager):
    label = "lies"

    def _build(self, module, samples, **options):
        super()._build(module, samples, **options)
        logging.getLogger("xpugraph").debug("%d", "no number")


@pytest.mark.parametrize(
    "backend",
    [
        *(LyingSizes(sizes) for sizes in (["a"], [0], [-1], [8, 1, 4], [1, 1], [True])),
        NoState(),
        Locked(),
        RaisesLate(),
        NoInit(),
    ],
    ids=lambda backend: f"{type(backend).__name__}{getattr(backend, 'sizes', '')}",
)
def test_a_backend_that_misbehaves_does_not_end_the_tuning(model, backend):
    tuned = tune(model, torch.randn(4, 16), backends=[backend, xg.TorchEagerBackend()])
    assert statuses(tuned) == {"lies": "failed", "eager": "routed"}
    assert tuned.report.backends[0].log


@pytest.mark.parametrize("backend", [Silent(), LogsBadly()], ids=lambda backend: type(backend).__name__)
def test_what_is_only_odd_does_not_fail(model, backend):
    tuned = tune(model, torch.randn(4, 16), backends=[backend, xg.TorchEagerBackend()])
    assert "failed" not in statuses(tuned).values()


def test_no_handler_is_left_on_the_loggers(model):
    handlers = [list(logging.getLogger(name).handlers) for name in ("torch", "xpugraph")]
    tune(model, torch.randn(4, 16), backends=[FailsToBuild(), xg.TorchEagerBackend()])
    assert [list(logging.getLogger(name).handlers) for name in ("torch", "xpugraph")] == handlers


def test_what_other_threads_log_is_not_in_the_log(model):
    class Waits(FailsToBuild):
        def _build(self, module, samples, **options):
            thread = threading.Thread(target=logging.getLogger("xpugraph").warning, args=("from elsewhere",))
            thread.start()
            thread.join()
            super()._build(module, samples, **options)

    tuned = tune(model, torch.randn(4, 16), backends=[Waits(), xg.TorchEagerBackend()])
    assert "on the way to ruin" in tuned.report.backends[0].log
    assert "from elsewhere" not in tuned.report.backends[0].log


def test_one_that_failed_is_freed(model):
    freed = []

    class Fails(Eager):
        def _infer(self, x):
            raise RuntimeError("no")

        def _deactivate(self):
            freed.append(1)

    tune(model, torch.randn(4, 16), backends=[Fails(), xg.TorchEagerBackend()])
    assert freed == [1]


def test_the_backends_are_not_copied_before_they_are_needed(model):
    copies = []

    class Heavy(Eager):
        label = "heavy"

        def __deepcopy__(self, memo):
            copies.append(1)
            return Heavy()

    chosen = strategy([Heavy()])
    assert not copies
    xg.tune(model, torch.randn(2, 16), strategy=chosen, progress=False)
    assert copies == [1]


def test_sizes_that_went_to_eager_are_told(model):
    class PassesOn(Eager):
        label = "passes on"
        passed = 0

        def _infer(self, x):
            self.passed += len(x) > 2
            return super()._infer(x)

        def eager_calls(self):
            return self.passed

    tuned = tune(model, torch.randn(8, 16), [1, 4, 8], [PassesOn()])
    assert tuned.report.backends[0].served_by_eager == [4, 8]
    assert "passes on passed batch sizes 4, 8 on to eager" in str(tuned.report)


def test_no_call_gets_the_tensors_of_the_call_before(model):
    seen = []

    class Notes(Eager):
        def _infer(self, x):
            seen.append(x.data_ptr())
            return super()._infer(x)

    tune(model, torch.randn(4, 16), [4], [Notes()])
    assert all(a != b for a, b in zip(seen, seen[1:], strict=False))


# ---- the same rules in every range


@pytest.fixture
def two_ranges(model, device):
    """1…4 by the graph, 5 and above by eager."""
    backends = {"graph": xg.XPUGraphBackend(), "eager": xg.TorchEagerBackend()}
    routes = [xg.Route(1, 4, "graph"), xg.Route(5, None, "eager")]
    return xg.BatchSizeRouterBackend(routes, backends).build(model, [torch.randn(8, 16, device=device)])


@pytest.mark.parametrize("rows", [2, 6])
def test_gradients_bad_input_and_training_mode(two_ranges, model, device, rows):
    infer = two_ranges.infer
    with torch.enable_grad():
        assert infer(torch.randn(rows, 16, device=device).requires_grad_()).requires_grad
        assert not infer(torch.randn(rows, 16, device=device)).requires_grad
    with torch.no_grad():
        assert not infer(torch.randn(rows, 16, device=device).requires_grad_()).requires_grad
    for bad in ((torch.randn(rows, 17, device=device),), (torch.randn(rows, 16),), (), ([[1.0] * 16] * rows,)):
        with pytest.raises(xg.InputError):
            infer(*bad)
    model.train()
    with pytest.raises(xg.StateError, match="train"):
        infer(torch.randn(rows, 16, device=device))
    model.eval()
    assert infer(torch.randn(rows, 16, device=device)).shape == (rows, 16)


# ---- the process


def test_a_tuned_module_is_not_copied_or_pickled(model):
    import pickle

    tuned = tune(model, torch.randn(2, 16))
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(xg.ConfigError, match="xpugraph.save"):
            attempt(tuned)


def test_collection_is_off_while_it_is_measured_and_on_afterwards(model):
    states = []

    class Notes(Eager):
        def _infer(self, x):
            states.append(gc.isenabled())
            return super()._infer(x)

    assert gc.isenabled()
    tune(model, torch.randn(4, 16), backends=[Notes()])
    assert states and not any(states) and gc.isenabled()


def test_collection_stays_off_until_the_last_of_several_threads_is_done():
    entered, leave, states = threading.Event(), threading.Event(), []

    def other():
        with gc_disabled():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with gc_disabled():
        thread.start()
        entered.wait()
    states.append(gc.isenabled())
    leave.set()
    thread.join()
    assert states == [False] and gc.isenabled()


def test_batch_dims_reach_the_backends(device):
    module = on(device, lambda x, table: (x * table[:, None, :1]).sum(0))
    dataset = [(torch.randn(6, 6, 4), torch.randn(6, 3)), (torch.randn(6, 2, 4), torch.randn(6, 3))]
    for options in ({"dataset": dataset}, {"dataset": dataset[0], "batch_dims": [1, None]}):
        tuned = xg.tune(module, strategy=strategy([xg.XPUGraphBackend()]), progress=False, **options)
        assert statuses(tuned) == {"graph": "routed"}
        assert tuned.report.batch == "dimension 1 of args[0]"
        assert "the batch is dimension 1 of args[0]" in str(tuned.report)


def test_the_config_of_one_backend_is_used_for_its_estimate(model):
    slow = xg.ProfilingConfig(measurement_stop_strategy=xg.NumStepsMeasuringStopStrategy(20, 0), sample_seconds=0.5)
    for config, least, most in ((FAST, 0, 2), (slow, 3, 60)):
        chosen = xg.OneBackendStrategy(xg.TorchEagerBackend(), config)
        assert least < xg.tune(model, torch.randn(4, 16), strategy=chosen, dry_run=True).seconds < most
