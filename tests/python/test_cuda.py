# SPDX-License-Identifier: MIT
"""What is CUDA's own: streams, captures and the memory of torch.cuda. Skipped where torch sees no CUDA device.

The other tests run there too: see conftest.py.
"""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from conftest import Fn, mlp

import xpugraph as xg
from xpugraph import _native

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or "cuda" not in _native.load().runtimes(), reason="no CUDA device, or built without"
)


@pytest.fixture
def device():
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda", 0)


def reserved() -> int:
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def test_memory_comes_back_also_after_captures_that_failed(pair):
    class Picky(torch.nn.Module):
        waits = False

        def forward(self, x):
            y = torch.cat([x] * 64, 1).relu()
            if Picky.waits and x.shape[0] == 17:
                torch.cuda.current_stream().synchronize()
            return y.sum(1)

    p = pair(Picky(), [torch.randn(32, 4096)])  # whatever is initialised once, is now
    p.backend.deactivate()
    before = reserved()
    p.backend.activate()
    Picky.waits = True
    for _ in range(3):
        with pytest.raises(Exception, match="(?i)captur"):
            p.backend.record_batch_size(17)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert not torch.cuda.is_current_stream_capturing()
    Picky.waits = False
    p.check(torch.randn(17, 4096))
    p.backend.record_batch_size(17)
    p.check(torch.randn(17, 4096))
    p.backend.deactivate()
    assert reserved() <= before


def test_random_numbers_work_after_a_capture_that_failed(pair, device):
    class Draws(torch.nn.Module):
        def forward(self, x):
            draws = x.shape[0] == 2 and torch.cuda.is_current_stream_capturing()  # unseen until the capture
            return x + torch.rand_like(x) if draws else x * 1

    p = pair(Draws(), [torch.randn(8, 4)])
    assert 2 in p.backend.dropped_batch_sizes
    torch.manual_seed(5)
    a = torch.rand(4, device=device)
    torch.manual_seed(5)
    assert torch.equal(a, torch.rand(4, device=device))


def test_operators_that_could_draw_and_do_not(pair):
    p = pair(torch.nn.LSTM(8, 6, batch_first=True), [torch.randn(8, 5, 8)])
    p.check(torch.randn(3, 5, 8))
    attention = Fn(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q))
    p = pair(attention, [torch.randn(8, 2, 16, 32)])
    p.check(torch.randn(3, 2, 16, 32))


def test_every_stream(pair, device):
    p = pair(mlp(), [torch.randn(32, 32)])
    expected = {rows: p.expected(torch.full((rows, 32), float(rows))) for rows in (1, 3, 17)}
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(34))]  # more than torch's pool has
    for stream in streams:
        with torch.cuda.stream(stream):
            results = {rows: p.backend.infer(torch.full((rows, 32), float(rows), device=device)) for rows in expected}
            stream.synchronize()
        for rows, result in results.items():
            torch.testing.assert_close(result.cpu(), expected[rows], rtol=1e-4, atol=1e-5)


def test_a_call_inside_the_users_own_capture_is_refused(pair, device):
    p = pair(mlp(), [torch.randn(8, 32)])
    x = torch.randn(3, 32, device=device)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(xg.CaptureError, match="recording a"), torch.cuda.graph(graph):
        y = torch.zeros_like(x)
        p.backend.infer(y)
    p.check(torch.randn(3, 32))


def test_others_work_while_a_size_is_captured(pair, device):
    """Allocations and kernels of other threads neither fail nor end up in the graph or its pool."""
    p = pair(mlp(256, 12), [torch.randn(64, 256)])
    stop, wrong = threading.Event(), []

    def work():
        while not stop.is_set():
            x = torch.ones(1 << 20, device=device)
            if float((x + x).sum()) != 2.0 * (1 << 20):
                wrong.append("sum")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for size in (3, 5, 7, 9, 11, 13, 15, 17):
            p.backend.record_batch_size(size)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert p.backend.pool_stats()["reserved"] < 1 << 26  # cuBLAS's workspace is 32 MiB of it on Hopper
    for rows in (3, 9, 17, 64):
        p.check(torch.randn(rows, 256))


def test_inputs_and_results_anywhere_in_memory(pair, device):
    """Copies inside the graph get new addresses and lengths at every call."""
    p = pair(Fn(lambda x, y: (x + y, x * 2)), [(torch.randn(32, 24), torch.randn(32, 24))], plan="pad")
    kept = []
    big = torch.randn(4096, 24)
    on_device = big.to(device)
    for turn in range(200):
        rows, start = 1 + turn * 7 % 40, turn * 13 % 1000
        x, y = on_device[start : start + rows], on_device[start + 1 : start + 1 + rows]
        kept.append((p.backend.infer(x, y), start, rows))
        if turn % 3:
            kept[turn // 2] = None
    for entry in filter(None, kept):
        (total, double), start, rows = entry
        x, y = big[start : start + rows], big[start + 1 : start + 1 + rows]
        torch.testing.assert_close(total.cpu(), x + y)
        torch.testing.assert_close(double.cpu(), 2 * x)


def test_layouts_that_are_copied_by_torch(pair):
    p = pair(torch.nn.Conv2d(3, 4, 3), [torch.randn(8, 3, 9, 9)])
    x = torch.randn(5, 3, 9, 9)
    p.check(x.to(memory_format=torch.channels_last))
    p.check(x)
    p.check(torch.randn(3, 9, 9, 5).permute(3, 0, 1, 2))


def test_half_precision_attention(pair, device):
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).half().eval().to(device)
    backend = xg.XPUGraphBackend().build(layer, [torch.randn(16, 10, 64, device=device, dtype=torch.half)])
    for rows in (1, 3, 9, 16, 40):
        x = torch.randn(rows, 10, 64, device=device, dtype=torch.half)
        with torch.no_grad():
            torch.testing.assert_close(backend.infer(x), layer(x), rtol=2e-2, atol=2e-2)
    assert backend.eager_calls() == 0


def test_tf32_is_no_dependence_of_rows(device):
    """Convolutions in TF32 differ by batch size by more than float32 rounds."""
    torch.backends.cudnn.allow_tf32 = True
    layers = [layer for _ in range(20) for layer in (torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.Tanh())]
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1), *layers).eval().to(device)
    for layer in module:
        if isinstance(layer, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="linear").data.mul_(3)
    backend = xg.XPUGraphBackend().build(module, [torch.randn(64, 3, 32, 32, device=device)])
    assert torch.backends.cudnn.allow_tf32 is True
    assert len(backend.recorded_batch_sizes) > 5


def test_a_changed_module_is_noticed_on_every_python(pair):
    p = pair(torch.nn.Sequential(torch.nn.Linear(8, 8), Fn(lambda x: x * 2)), [torch.randn(8, 8)])
    p.check(torch.randn(3, 8))
    p.module[1].function = lambda x: x * 3
    with pytest.raises(xg.StateError, match="function"):
        p.backend.infer(p.put(torch.randn(3, 8)))


def wide_sum(pair):
    """A product that cuBLAS splits along its long inner dimension, with partial sums in its workspace."""
    return pair(torch.nn.Linear(32768, 16), [torch.randn(4, 32768)], batch_sizes=[4], atol=1e-3)


def test_a_graph_keeps_cublas_workspace_when_others_clear_it(pair, device):
    p = wide_sum(pair)
    x = torch.randn(4, 32768)
    expected = p.expected(x)
    torch._C._cuda_clearCublasWorkspaces()  # as torch.compile(mode="reduce-overhead") does
    torch.cuda.empty_cache()
    others = [torch.full((1 << 20,), 7.0, device=device) for _ in range(32)]
    for _ in range(3):
        torch.testing.assert_close(p.backend.infer(p.put(x)).cpu(), expected, rtol=1e-3, atol=1e-3)
    assert all(bool((other == 7.0).all()) for other in others)


def test_backends_that_run_at_once_have_workspaces_of_their_own(pair, device):
    pairs = [wide_sum(pair) for _ in range(2)]
    inputs = [p.put(torch.randn(4, 32768)) for p in pairs]
    alone = [p.backend.infer(x) for p, x in zip(pairs, inputs, strict=True)]
    streams = [torch.cuda.Stream() for _ in pairs]
    results: list[list[torch.Tensor]] = [[], []]
    torch.cuda.current_stream().synchronize()
    for _ in range(300):
        for p, x, stream, found in zip(pairs, inputs, streams, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(p.backend.infer(x))
    for stream in streams:
        stream.synchronize()
    for first, found in zip(alone, results, strict=True):
        assert all(torch.equal(result, first) for result in found)


def test_no_workspace_of_the_capture_stream_is_left(pair, device):
    torch.nn.Linear(32768, 16).to(device)(torch.randn(4, 32768, device=device))  # the current stream's stay
    gc.collect()
    before = torch.cuda.memory_allocated()
    p = wide_sum(pair)
    p.backend.deactivate()
    p.module.cpu()
    del p
    gc.collect()
    torch.cuda.current_stream().synchronize()
    assert torch.cuda.memory_allocated() <= before
