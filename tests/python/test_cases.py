# SPDX-License-Identifier: MIT
"""Faults that users of graph capture met elsewhere. Each test shows the right value, or the clear error."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from conftest import DEVICE, Fn, accelerator, mlp

import xpugraph as xg


def reserved() -> int:
    return accelerator().memory_reserved()


def allocated() -> int:
    gc.collect()
    accelerator().current_stream().synchronize()
    return accelerator().memory_allocated()


# ---- recording happens once (1, 59, 60, 39) -------------------------------------------------------------------------


def test_no_size_is_recorded_after_build(pair):
    p = pair(mlp(), [torch.randn(256, 32)])
    assert len(p.backend.recorded_batch_sizes) == 35
    generator = torch.Generator().manual_seed(1)
    for size in torch.randint(1, 301, (300,), generator=generator).tolist():
        p.check(torch.randn(size, 32))
    assert p.backend.counters()["recordings"] == 35


def test_alternating_sizes_and_new_tensors_record_nothing(pair):
    p = pair(mlp(), [torch.randn(8, 32)])
    for size in (1, 2, 1, 2, 8, 1):
        p.check(torch.randn(size, 32))
    assert p.backend.counters()["recordings"] == len(p.backend.recorded_batch_sizes) == 4


@pytest.mark.parametrize("order", [(1, 2, 4, 8, 16), (16, 8, 4, 2, 1)])
def test_first_calls_in_any_order(pair, order):
    p = pair(mlp(), [torch.randn(16, 32)])
    for size in order:
        p.check(torch.randn(size, 32))


# ---- outputs belong to the caller (2) -------------------------------------------------------------------------------


def test_a_result_is_not_overwritten_by_later_calls(pair):
    p = pair(mlp(), [torch.randn(16, 32)])
    inputs = [torch.randn(size, 32) for size in (8, 8, 5, 16, 8)]
    results = [p.backend.infer(p.put(x)) for x in inputs]
    for x, y in zip(inputs, results, strict=True):
        torch.testing.assert_close(y.cpu(), p.expected(x), rtol=1e-4, atol=1e-5)


def test_lent_results_last_until_the_next_call(pair):
    p = pair(mlp(), [torch.randn(16, 32)], copy_outputs=False)
    x, z = torch.randn(7, 32), torch.randn(7, 32)
    y = p.backend.infer(p.put(x))
    torch.testing.assert_close(y.cpu(), p.expected(x), rtol=1e-4, atol=1e-5)
    p.backend.infer(p.put(z))
    torch.testing.assert_close(y.cpu(), p.expected(z), rtol=1e-4, atol=1e-5)
    p.check(torch.randn(40, 32))  # chunks are joined in memory of the caller's own


class Late(torch.nn.Module):
    """Reads its input again when it has worked for a while."""

    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        y = x
        for _ in range(12):
            y = self.linear(y)
        return y + x


def test_a_lent_result_outlives_its_backend(pair):
    p = pair(mlp(), [torch.randn(16, 32)], copy_outputs=False)
    x = torch.randn(16, 32)
    y, expected = p.backend.infer(p.put(x)), p.expected(x)
    p.backend.deactivate()
    noise = [torch.randn(16, 32, device=p.device) for _ in range(50)]
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-5)
    del noise


def test_a_lent_result_outlives_its_backend_also_while_the_graph_still_runs(pair, device):
    """The padded input that the graph reads must not be anybody else's meanwhile.

    A test of GPUs: the sycl device runs the noise after the graph in any case.
    """
    p = pair(Late(1024), [torch.randn(256, 1024)], copy_outputs=False, batch_sizes=[256])
    x = torch.randn(256, 1024)
    placed, expected = p.put(x), p.expected(x)
    with torch.Stream(device=device) as stream:
        y = p.backend.infer(placed)
    p.backend.deactivate()  # nothing on the default stream waits for the other one
    noise = [torch.full((256, 1024), float("nan"), device=device) for _ in range(8)]
    stream.synchronize()
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-3, atol=1e-3)
    del noise


# ---- rows that depend on each other, zeros that spread, stale rows (4, 5) -------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(0),
        lambda x: x.softmax(0),
        lambda x: x / x.abs().amax(),
        lambda x: x / x.norm(),
        lambda x: (x / x.norm(dim=1, keepdim=True)) - (x / x.norm(dim=1, keepdim=True)).amax(0),
        lambda x: x.cumsum(0),
        lambda x: x.flip(0),
        lambda x: x * x.shape[0],
    ],
    ids=["mean", "softmax", "amax", "norm", "row norm then amax", "cumsum", "flip", "batch size as a value"],
)
@pytest.mark.parametrize("sizes", [None, [8], [1]], ids=["grid", "only 8", "only 1"])
def test_rows_that_depend_on_each_other_are_refused(pair, function, sizes):
    with pytest.raises(xg.BuildError, match="rows of a batch depend|changes the real rows"):
        pair(Fn(function), [torch.randn(16, 8)], batch_sizes=sizes)


def test_zero_rows_that_make_nan_spread_are_refused(pair):
    with pytest.raises(xg.BuildError, match="rows of a batch depend|changes the real rows"):
        pair(Fn(lambda x: torch.log(x).sum(0) * 0 + x), [torch.rand(16, 8) + 0.5])


def test_a_row_that_would_divide_by_zero_in_the_padding_is_served(pair):
    p = pair(Fn(lambda x: x / x.norm(dim=1, keepdim=True)), [torch.randn(16, 8)])
    for size in (3, 5, 9, 15, 17):
        assert torch.isfinite(p.check(torch.randn(size, 8))).all()


def test_padding_rows_are_zero_before_every_replay(pair):
    # The whole-tensor norm shows stale rows at once. With zero rows it is the norm of the real rows: the graph of 8 is
    # right for 5 rows, so the check is looked through here by recording one size and reading its buffer.
    p = pair(mlp(), [torch.randn(8, 32)], plan="pad")
    p.got(torch.full((8, 32), 1e30))
    p.check(torch.ones(5, 32))
    slot = p.backend._recording.call.static_inputs(8)[0].cpu()
    assert torch.equal(slot[:5], torch.ones(5, 32)) and torch.equal(slot[5:], torch.zeros(3, 32))


# ---- writes: arguments, buffers, parameters (6, 15) -----------------------------------------------------------------


class AddsOne(torch.nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


@pytest.mark.parametrize("size", [1, 3, 8, 21])
def test_an_argument_written_in_place_is_the_callers(pair, size):
    p = pair(AddsOne(), [torch.randn(8, 4)])
    x = torch.randn(size, 4)
    mine = p.put(x)
    y = p.backend.infer(mine)
    torch.testing.assert_close(mine.cpu(), x + 1)
    torch.testing.assert_close(y.cpu(), (x + 1) * 2)
    assert p.backend.counters()["graph_calls"] >= 1


def test_samples_are_not_written_to(device):
    sample = torch.randn(8, 4).to(device)
    before = sample.cpu()
    xg.XPUGraphBackend().build(AddsOne().eval(), samples=[sample])
    assert torch.equal(sample.cpu(), before)


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(1))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.n.add_(1)
        return x + 1


def test_a_buffer_written_in_place_is_refused_and_unchanged(device):
    module = Counts().eval().to(device)
    backend = xg.XPUGraphBackend()
    with pytest.raises(xg.BuildError, match="'n' of the module in place"):
        backend.build(module, samples=[torch.randn(4, 2).to(device)])
    assert module.n.cpu().item() == 0 and module.calls == 0
    assert backend.state is xg.BackendState.INIT


def test_batch_norm_in_training_mode_is_refused_and_unchanged(device):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(device)
    before = {k: v.cpu().clone() for k, v in module.state_dict().items()}
    with pytest.raises(xg.ConfigError, match="training mode"):
        xg.XPUGraphBackend().build(module, samples=[torch.randn(4, 4).to(device)])
    module[0].eval()
    with pytest.raises(xg.ConfigError, match="1 is in training mode|training mode"):
        xg.XPUGraphBackend().build(module, samples=[torch.randn(4, 4).to(device)])
    for key, value in module.state_dict().items():
        assert torch.equal(value.cpu(), before[key]), key


def test_batch_norm_in_evaluation_mode_keeps_its_statistics(pair):
    p = pair(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), [torch.randn(8, 4)])
    p.check(torch.randn(3, 4))
    for key, value in p.module.state_dict().items():
        assert torch.equal(value.cpu(), p.reference.state_dict()[key]), key


# ---- weights changed after recording (7) ----------------------------------------------------------------------------


def test_weights_loaded_in_place_are_used(pair):
    p = pair(mlp(), [torch.randn(8, 32)])
    new = mlp().state_dict()
    p.module.load_state_dict(new)
    p.reference.load_state_dict(new)
    p.check(torch.randn(5, 32))


def _assign(module):
    module.load_state_dict({k: v.to(DEVICE) for k, v in mlp().state_dict().items()}, assign=True)


def _data(module):
    module[2].weight.data = torch.randn(32, 32).to(DEVICE)


def _replace_layer(module):
    module[2] = torch.nn.Linear(32, 32).to(DEVICE).eval()


def _parametrize(module):
    module[0].weight = torch.nn.Parameter(torch.randn(32, 32).to(DEVICE))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_assign, "0.weight"),
        (_data, "2.weight"),
        (_replace_layer, "2"),
        (_parametrize, "0.weight"),
        (lambda m: m.to(torch.float64), "0.weight"),
        (lambda m: m.train(), "training"),
    ],
    ids=["assign=True", "p.data", "layer", "new parameter", "to(dtype)", "train()"],
)
def test_replaced_weights_are_an_error_that_names_them(pair, change, name):
    p = pair(mlp(), [torch.randn(8, 32)])
    change(p.module)
    with pytest.raises(xg.StateError, match=f"'{name}'"):
        p.backend.infer(p.put(torch.randn(4, 32)))


def test_recording_again_uses_the_new_weights(pair):
    p = pair(mlp(), [torch.randn(8, 32)])
    new = mlp()
    p.module.load_state_dict({k: v.to(DEVICE) for k, v in new.state_dict().items()}, assign=True)
    p.reference.load_state_dict(new.state_dict())
    p.backend.deactivate()
    p.backend.activate()
    p.check(torch.randn(6, 32))


def test_a_toggled_attribute_is_an_error_that_names_it(pair):
    class Switch(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.double = False

        def forward(self, x):
            return x * 2 if self.double else x + 1

    p = pair(Switch(), [torch.randn(4, 3)])
    p.check(torch.randn(3, 3))
    p.module.double = True
    with pytest.raises(xg.StateError, match="'double'"):
        p.backend.infer(p.put(torch.randn(4, 3)))
    p.module.double = False
    p.check(torch.randn(3, 3))


def test_a_counter_attribute_is_as_before_the_build(pair):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x + 1

    p = pair(Counter(), [torch.randn(4, 3)])
    assert p.module.calls == 0
    p.check(torch.randn(3, 3))


# ---- failing captures (12, 13) --------------------------------------------------------------------------------------


class CallsItem(torch.nn.Module):
    def forward(self, x):
        return x / x.max().item()


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (CallsItem(), r"_local_scalar_dense.*test_cases.py"),
        (Fn(lambda x: x[x > 0].sum() + x), "nonzero|index"),
        (Fn(lambda x: x.cpu().to(x.device) + 1), "copy to the host"),
        (Fn(lambda x: torch.nn.functional.dropout(x, 0.5, True)), "random numbers"),
        (Fn(lambda x: x + torch.rand_like(x)), "random numbers"),
    ],
    ids=["item", "mask", "host copy", "dropout", "rand_like"],
)
def test_what_cannot_be_recorded_is_named_and_the_process_lives_on(device, module, named):
    backend = xg.XPUGraphBackend()
    with pytest.raises(xg.BuildError, match=named):
        backend.build(module.eval(), samples=[torch.rand(8, 4).to(device) + 0.5])
    assert not accelerator().is_current_stream_capturing()
    backend.build(mlp().eval().to(device), samples=[torch.randn(8, 32).to(device)])
    assert backend.recorded_batch_sizes == [1, 2, 4, 8]


class RaisesAt(torch.nn.Module):
    """Raises at one batch size, in the capture only or always."""

    def __init__(self, size, capture_only):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.size, self.capture_only = size, capture_only

    def forward(self, x):
        y = self.linear(x)
        if x.shape[0] == self.size and (not self.capture_only or accelerator().is_current_stream_capturing()):
            raise ValueError("no luck at this size")
        return y.relu()


@pytest.mark.parametrize("capture_only", [False, True])
def test_a_size_that_fails_is_dropped_named_and_restored(pair, capture_only):
    stream = accelerator().current_stream()
    before = allocated()
    torch.manual_seed(3)
    state = accelerator().get_rng_state()
    p = pair(RaisesAt(16, capture_only), [torch.randn(24, 4)])
    assert torch.equal(accelerator().get_rng_state(), state)
    assert accelerator().current_stream() == stream and not accelerator().is_current_stream_capturing()
    assert p.backend.recorded_batch_sizes == [1, 2, 4, 8, 24]
    assert "no luck at this size" in p.backend.dropped_batch_sizes[16]
    assert "16" in p.backend.describe() and "no luck" in p.backend.describe()
    for size in (8, 9, 16, 17, 24, 30):
        torch.testing.assert_close(
            p.got(x := torch.randn(size, 4)), p.reference.linear(x).relu().detach(), rtol=1e-4, atol=1e-5
        )
    p.backend.deactivate()
    p.module.size = -1
    p.backend.activate()
    assert 16 in p.backend.recorded_batch_sizes
    p.backend.deactivate()
    weights = sum(t.nbytes for t in p.module.parameters())
    del p
    assert allocated() - before <= weights + 4096


def test_a_module_that_fails_at_every_size_fails_to_build_with_the_reason(device):
    module = RaisesAt(-1, True).eval().to(device)
    module.forward = lambda x: (
        (_ for _ in ()).throw(ValueError("never")) if accelerator().is_current_stream_capturing() else x
    )
    with pytest.raises(xg.BuildError, match="no batch size could be recorded(.|\n)*never"):
        xg.XPUGraphBackend().build(module, samples=[torch.randn(8, 4).to(device)])
    assert torch.rand(3, device=device).shape == (3,)


# ---- many threads and streams (19) ----------------------------------------------------------------------------------


def test_threads_on_their_own_streams_get_their_own_answers(pair):
    p = pair(mlp(64, 6), [torch.randn(16, 64)])
    failures: list[str] = []

    def serve(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.Stream(device=p.device):
            for i in range(150):
                size = int(torch.randint(1, 40, (1,), generator=generator))
                x = torch.randn(size, 64, generator=generator)
                y = p.backend.infer(p.put(x)).cpu()
                if not torch.allclose(y, p.expected(x), rtol=1e-4, atol=1e-4):
                    failures.append(f"thread {seed}, call {i}, batch size {size}")

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_streams_without_waiting_in_between(pair):
    p = pair(mlp(64, 6), [torch.randn(16, 64)])
    streams = [torch.Stream(device=p.device) for _ in range(3)]
    inputs = [torch.randn(8 + 8 * (i % 2), 64) for i in range(60)]
    placed = [p.put(x) for x in inputs]
    accelerator().current_stream().synchronize()
    results = []
    for i, x in enumerate(placed):
        with streams[i % 3]:
            results.append(p.backend.infer(x))
    for stream in streams:
        stream.synchronize()
    for x, y in zip(inputs, results, strict=True):
        torch.testing.assert_close(y.cpu(), p.expected(x), rtol=1e-4, atol=1e-4)


# ---- a faulty graph is found by value (22, 25) ----------------------------------------------------------------------


class ElsewhereInCapture(torch.nn.Module):
    """What a library does that has a queue of its own: at one size its result never becomes part of the graph."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        if x.shape[0] == self.size and accelerator().is_current_stream_capturing():
            return torch.zeros_like(y)
        return y


def test_a_graph_that_lacks_work_is_found_and_dropped(pair):
    p = pair(ElsewhereInCapture(4), [torch.randn(16, 4)])
    assert p.backend.recorded_batch_sizes == [1, 2, 8, 16]
    assert "differs from eager" in p.backend.dropped_batch_sizes[4]
    with torch.no_grad():
        x = torch.randn(4, 4)
        torch.testing.assert_close(p.got(x), p.reference.linear(x), rtol=1e-4, atol=1e-5)


def test_state_kept_between_replays_is_found(device):
    class Scratch:
        def __init__(self):
            self.memory = torch.zeros(1, device=device)

    scratch = Scratch()  # no attribute of the module: neither the probe nor the watch can see it

    def forward(x):
        y = x + scratch.memory
        if accelerator().is_current_stream_capturing():
            scratch.memory.add_(1)  # right in the first replay, wrong in every later one
        return y

    with pytest.raises(xg.BuildError, match="keeps state between calls"):
        xg.XPUGraphBackend().build(Fn(forward).eval(), samples=[torch.randn(2, 4).to(device)])


# ---- memory (27, 28) ------------------------------------------------------------------------------------------------


def test_the_pool_of_all_sizes_is_that_of_the_largest(pair):
    alone = pair(mlp(256, 24), [torch.randn(256, 256)], batch_sizes=[256])
    every = pair(mlp(256, 24), [torch.randn(256, 256)])
    assert len(every.backend.recorded_batch_sizes) == 35
    assert every.backend.pool_stats()["reserved"] <= 1.1 * alone.backend.pool_stats()["reserved"]


def test_memory_comes_back_when_a_backend_goes(device):
    module = mlp(256, 4).eval().to(device)
    sample = torch.randn(64, 256).to(device)
    levels = []
    for _ in range(20):
        backend = xg.XPUGraphBackend()
        backend.build(module, samples=[sample])
        backend.infer(sample)
        del backend
        levels.append((allocated(), reserved()))
    assert levels[-1][0] == levels[0][0]
    assert levels[-1][1] == levels[0][1]


def test_deactivate_gives_the_pool_back(pair):
    p = pair(mlp(256, 4), [torch.randn(64, 256)])
    p.check(torch.randn(3, 256))
    before = reserved()
    p.backend.deactivate()
    gc.collect()
    assert reserved() < before
    with pytest.raises(xg.StateError, match=r"activate\(\) first"):
        p.backend.infer(p.put(torch.randn(3, 256)))
    p.backend.activate()
    p.check(torch.randn(3, 256))


# ---- sizes between and above the recorded ones, and none (30, 31) ---------------------------------------------------


@pytest.mark.parametrize("size", [255, 256, 257, 300, 511, 512, 513, 1000])
def test_batches_above_the_largest_size_are_chunks(pair, size):
    p = pair(mlp(), [torch.randn(256, 32)], plan="pad")
    before = p.backend.counters()["replays"]
    p.check(torch.randn(size, 32))
    assert p.backend.counters()["replays"] - before == -(-size // 256)


def test_an_empty_batch_is_eagers_empty_result(pair):
    p = pair(mlp(), [torch.randn(8, 32)], strict=True)
    before = p.backend.counters()["replays"]
    y = p.got(torch.empty(0, 32))
    assert y.shape == (0, 32) and y.dtype == torch.float32
    assert p.backend.counters()["replays"] == before
    assert p.backend.counters()["eager_reasons"] == {"the batch is empty": 1}


# ---- memory formats and batch dimensions (32, 34) -------------------------------------------------------------------


def conv() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))


@pytest.mark.parametrize("recorded", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("called", [torch.contiguous_format, torch.channels_last])
def test_memory_formats(pair, recorded, called):
    p = pair(conv(), [torch.randn(8, 3, 9, 7).to(memory_format=recorded)])
    for size in (1, 3, 8, 11):
        p.check(torch.randn(size, 3, 9, 7).to(memory_format=called))


def test_strides_of_results_are_eagers_for_the_recorded_format(pair):
    p = pair(conv(), [torch.randn(8, 3, 9, 7).to(memory_format=torch.channels_last)])
    x = p.put(torch.randn(5, 3, 9, 7)).to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert p.backend.infer(x).stride() == p.module(x).stride()


def test_views_as_arguments(pair):
    p = pair(mlp(16), [torch.randn(16, 16)])
    wide = p.put(torch.randn(12, 32))
    square = p.put(torch.randn(16, 16))
    rows = p.put(torch.randn(24, 16))
    for view in (wide[:, ::2], square.T, rows[::2], rows[3:8], rows[:1].expand(6, 16)):
        y = p.backend.infer(view)
        torch.testing.assert_close(y.cpu(), p.expected(view.cpu()), rtol=1e-4, atol=1e-5)
    assert p.backend.counters()["eager_calls"] == 0


class TimeFirst(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 5)

    def forward(self, x):
        return self.linear(x.view(-1, 6)).view(x.shape[0], x.shape[1], 5).cumsum(0)


def test_batch_in_the_middle_dimension(pair):
    p = pair(TimeFirst(), [torch.randn(7, 8, 6), torch.randn(7, 3, 6)])
    for size in (1, 3, 5, 8, 19):
        p.check(torch.randn(7, size, 6))


def test_batch_dimension_given(pair):
    p = pair(TimeFirst(), [torch.randn(7, 8, 6)], batch_dims={"x": 1})
    p.check(torch.randn(7, 5, 6))


class Lookup(torch.nn.Module):
    def forward(self, x, table):
        return x @ table.T, table * 2


def test_a_table_of_batch_length_is_not_padded(pair):
    p = pair(Lookup(), [(torch.randn(8, 4), torch.randn(8, 4)), (torch.randn(5, 4), torch.randn(8, 4))])
    for size in (1, 5, 8, 13):
        y, table = p.check(torch.randn(size, 4), torch.randn(8, 4))
        assert y.shape == (size, 8) and table.shape == (8, 4)


class TwoRowsEach(torch.nn.Module):
    def forward(self, x, pairs, scale):
        return x + pairs.view(-1, 2, x.shape[1]).sum(1) * scale, pairs + 1


def test_two_rows_an_item_and_a_scalar_tensor(pair):
    def sample(size):
        return torch.randn(size, 3), torch.randn(2 * size, 3), torch.tensor(0.5)

    p = pair(TwoRowsEach(), [sample(8), sample(5)])
    for size in (1, 3, 8, 20):
        x, pairs, _ = sample(size)
        p.check(x, pairs, torch.tensor(1.5 + size))


# ---- numerics, garbage (57, 46) -------------------------------------------------------------------------------------


def test_the_choice_of_class_is_stable_under_padding(pair):
    p = pair(mlp(64, 8), [torch.randn(64, 64)])
    for size in (5, 17, 33):
        x = torch.randn(size, 64)
        assert torch.equal(p.got(x).argmax(1), p.expected(x).argmax(1))


def test_garbage_with_device_memory_is_not_collected_inside_a_capture(device):
    class Node:
        pass

    def make_cycle():
        a, b = Node(), Node()
        a.other, b.other, a.memory = b, a, torch.ones(64, 64, device=device)

    class MakesCycles(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            for _ in range(3):
                make_cycle()
            return self.linear(x)

    module = MakesCycles().eval().to(device)
    old = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        backend = xg.XPUGraphBackend()
        backend.build(module, samples=[torch.randn(8, 4).to(device)])
        assert gc.isenabled()
    finally:
        gc.set_threshold(*old)
    gc.collect()
    x = torch.randn(5, 4)
    with torch.no_grad():
        expected = torch.nn.functional.linear(x, module.linear.weight.cpu(), module.linear.bias.cpu())
    torch.testing.assert_close(backend.infer(x.to(device)).cpu(), expected, rtol=1e-4, atol=1e-5)
