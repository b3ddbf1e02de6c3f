# SPDX-License-Identifier: MIT
"""The checks of ``xpugraph selftest``. Each returns a line about what it found, or raises."""

from __future__ import annotations

import contextlib
import copy
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from . import _native, environment, libsycl, memory
from .backends import XPUGraphBackend, XPUGraphBackendConfig
from .errors import BuildError, MissingRuntimeError
from .models import make_model
from .precision import full_precision, uses_tf32
from .selftest import PROBE, SelftestConfig, Skipped, Stop
from .timing import stream_synchronizer, time_interleaved

Checks = Iterator[tuple[str, Callable[[], str | None]]]
_TOLERANCE = 2e-3  # of the largest value, as in the bench
_TOLERANCE_CPU = 2e-2  # a GPU's convolutions and matrix products may round their operands (TF32)
_WIDTH = 64
NODE_KINDS = ("kernel", "copy", "fill", "reduction", "gather", "sort", "matrix product", "convolution", "attention")


def checks(config: SelftestConfig) -> Checks:
    """Yields the checks by name, those that tell most when all fail first."""
    device = config.device
    if config.auto:
        yield "torch sees the GPU", _torch_sees_the_gpu
    yield "build", lambda: _build(device, config.problem)
    yield PROBE, lambda: _probe(device)
    for name in NODE_KINDS:
        yield f"node: {name}", lambda name=name: _node(name, device)  # type: ignore[misc]
    yield "attention in bfloat16 under autocast", lambda: _autocast_attention(device)
    yield "constant made on the host", lambda: _host_constant(device)
    yield "side stream", lambda: _side_stream(device)
    yield "side stream that is not joined", lambda: _apart("_unjoined", device)
    yield "one node after another, many times", lambda: _many_replays(device, 50 if config.quick else 500)
    yield "what cannot be recorded is refused", lambda: _refusals(device)
    yield "failing capture and recovery", lambda: _failing_capture(device)
    yield "waiting while recorded", lambda: _apart("_waiting", device)
    yield "two threads", lambda: _two_threads(device, 50 if config.quick else 300)
    yield "many sizes", lambda: _many_sizes(device, 32 if config.quick else 256)
    if not config.quick:
        yield "graph of Inductor's kernels", lambda: _inductor(device)
    for name in config.models:
        yield f"model {name}", lambda name=name: _model(name, device)  # type: ignore[misc]
    yield "memory after delete", lambda: _memory(device)
    yield "time of a replay and of a call", lambda: _timing(device, 0.2 if config.quick else 1.0)


# ---- building blocks ------------------------------------------------------------------------------------------------


class Fn(nn.Module):
    """A module around a function of one tensor."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Calls the function."""
        return self.function(x)


def _rows(count: int) -> torch.Tensor:
    return torch.randn(count, _WIDTH, generator=torch.Generator().manual_seed(count))


def _mlp() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        layers = [layer for _ in range(4) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(_WIDTH, _WIDTH)).requires_grad_(False).eval()


def _graph(module: nn.Module, sample: torch.Tensor, **config: Any) -> XPUGraphBackend:
    backend = XPUGraphBackend(XPUGraphBackendConfig(**config))
    backend.build(module, samples=[sample])
    return backend


def _same(got: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float = _TOLERANCE) -> None:
    got, expected = got.detach().cpu().double(), expected.detach().cpu().double()
    if got.shape != expected.shape:
        raise AssertionError(f"{what}: shape {tuple(got.shape)} instead of {tuple(expected.shape)}")
    error = float((got - expected).abs().max().nan_to_num(nan=float("inf")))
    allowed = tolerance * max(1e-3, float(expected.abs().max()))
    if error > allowed:
        raise AssertionError(f"{what}: differs by up to {error:.3g}, allowed is {allowed:.3g}")


def _graph_is_right(
    module: nn.Module,
    sample: torch.Tensor,
    device: torch.device,
    batches: list[int],
    tolerances: tuple[float, float] = (_TOLERANCE, _TOLERANCE_CPU),
    **config: Any,
) -> str:
    """Records for the sample's batch and below, and compares batches with eager on the device and on the CPU.

    In full precision, so that what differs is wrong: how far TF32 moves a result depends on the model.
    """
    with full_precision(device) if uses_tf32(device) else contextlib.nullcontext():
        return _compare(module, sample, device, batches, tolerances, config)


def _compare(
    module: nn.Module,
    sample: torch.Tensor,
    device: torch.device,
    batches: list[int],
    tolerances: tuple[float, float],
    config: dict[str, Any],
) -> str:
    reference = copy.deepcopy(module)
    on_device = module.to(device)
    backend = _graph(on_device, sample.to(device), batch_sizes=sorted({1, 2, 4, len(sample)}), **config)
    try:
        for batch in batches:
            x = torch.cat([sample.flip(0) * 0.5] * (batch // len(sample) + 1))[:batch]
            with torch.no_grad():
                eager, cpu = on_device(x.to(device)), reference(x)
            for repetition in range(3):
                got = backend.infer(x.to(device))
                _same(got, eager, f"batch {batch}, replay {repetition + 1}, against eager on the device", tolerances[0])
            what = f"batch {batch} against the CPU (eager on the device agrees with the graph: report it to torch)"
            _same(got, cpu, what, tolerances[1])
        counters = backend.counters()
        if counters["eager_calls"]:
            raise AssertionError(f"eager served {counters['eager_calls']} calls: {counters['eager_reasons']}")
        if backend.dropped_batch_sizes:
            dropped = "; ".join(f"{size}: {why}" for size, why in backend.dropped_batch_sizes.items())
            raise AssertionError(f"sizes were dropped: {dropped}")
        nodes = backend.nodes()
        return f"{nodes[max(nodes)]} nodes at batch {max(nodes)}"
    finally:
        backend.deactivate()


def _node(name: str, device: torch.device) -> str:
    return _graph_is_right(node_kinds(device)[name], _rows(8), device, [1, 3, 8, 11])


def node_kinds(device: torch.device) -> dict[str, nn.Module]:
    """A module for each kind of work that a graph holds: kernels, library calls, copies, fills, gathers."""

    def copies(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        y.copy_(x)
        return y.clone()

    def fills(x: torch.Tensor) -> torch.Tensor:
        z = torch.zeros_like(x)
        z[:, ::2] = 1.0
        return x * z + torch.full_like(x, 0.5)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        convolution = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
        attention = nn.Sequential(nn.Unflatten(1, (4, 16)), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))
    found = {
        "kernel": Fn(lambda x: torch.sin(x) * 2 + 1),
        "copy": Fn(copies),
        "fill": Fn(fills),
        "reduction": Fn(lambda x: torch.softmax(x, 1) - x.mean(1, keepdim=True)),
        "gather": Fn(lambda x: x.flip(1).index_select(1, torch.arange(8, device=x.device))),
        "sort": Fn(lambda x: x.sort(1).values),
        "matrix product": _mlp(),
        "convolution": convolution.requires_grad_(False).eval(),
        "attention": attention.requires_grad_(False).eval(),
    }
    assert tuple(found) == NODE_KINDS
    return found


# ---- checks ---------------------------------------------------------------------------------------------------------


def _torch_sees_the_gpu() -> str:
    """A torch that was built for XPU sees one; without a driver all else would pass on the CPU."""
    if getattr(torch.version, "xpu", None) is None:
        raise Skipped("this torch was not built for XPU")
    if (unseen := environment.unseen_gpu()) is not None:
        raise AssertionError(unseen)
    return f"{torch.xpu.device_count()} xpu"


def _build(device: torch.device, problem: str | None = None) -> str:
    """Whether the extension loads and was built for what is here."""
    if problem is not None:
        raise Stop(problem, "there is no device to test")
    try:
        runtimes = _native.load().runtimes()
    except ImportError as error:
        raise Stop(str(error), "the extension does not load") from error
    if device.type == "xpu" and "xpu" not in runtimes:
        raise Stop(
            "torch sees an xpu device, but this build of xpugraph records nothing on it; build it again beside this "
            "torch: pip install --no-build-isolation --no-deps --force-reinstall .",
            "this build does not record on xpu",
        )
    if device.type not in runtimes:
        raise Stop(
            f"this build records on {', '.join(runtimes) or 'nothing'}, not on {device.type}",
            f"this build does not record on {device.type}",
        )
    if found := libsycl.warnings():
        raise AssertionError("; ".join(found))
    return f"records on {', '.join(runtimes)}"


_PROBE_SECONDS = 300
_PROBE = """
import sys, torch
from xpugraph.bench import resolve_device
from xpugraph.selftest_checks import _graph_is_right, _rows, Fn
device = resolve_device(sys.argv[1])
x = torch.ones(4, device=device)
print("submitted", float((x + x).sum().cpu()), flush=True)
print(_graph_is_right(Fn(lambda x: x * 2), _rows(2), device, [1, 2]), flush=True)
"""


# A check that may leave a driver, or a stream of torch's, in a state that no other check should meet.
_APART = """
import sys
from xpugraph import selftest_checks
from xpugraph.bench import resolve_device
from xpugraph.selftest import Skipped
try:
    found = getattr(selftest_checks, sys.argv[2])(resolve_device(sys.argv[1]))
    print(" ".join(found.split()), flush=True)  # the last line is what is read
except Skipped as reason:
    print(f"skipped: {reason}", flush=True)
"""


class _Ended(Exception):  # noqa: N818  the message says how
    """A child process crashed or hung."""


def _child(script: str, *arguments: str) -> str:
    """What a script wrote last, in a process whose crash is not this one's."""
    command = [sys.executable, "-X", "faulthandler", "-c", script, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired as error:
        said = error.stderr if isinstance(error.stderr, bytes) else (error.stderr or "").encode()
        raise _Ended(f"the process hung for {_PROBE_SECONDS} s{_last_lines(said.decode(errors='replace'))}") from error
    if done.returncode < 0:
        step = f" {'after' if 'submitted' in done.stdout else 'at'} its first submission" if script is _PROBE else ""
        name = signal.Signals(-done.returncode).name
        raise _Ended(f"the process crashed (signal {name}){step}{_last_lines(done.stderr)}")
    if done.returncode != 0:
        raise AssertionError(f"the process failed with {done.returncode}{_last_lines(done.stderr)}")
    return done.stdout.splitlines()[-1]


def _probe(device: torch.device) -> str:
    """The first submission, capture and replay. When they end the process, nothing else is tried in this one."""
    try:
        return _child(_PROBE, str(device))
    except _Ended as error:
        raise Stop(str(error), "the probe crashed") from error


def _apart(check: str, device: torch.device) -> str:
    """Another check of this file in a process of its own."""
    try:
        found = _child(_APART, str(device), check)
    except _Ended as error:
        raise AssertionError(str(error)) from error
    if found.startswith("skipped: "):
        raise Skipped(found.removeprefix("skipped: "))
    return found


def _last_lines(text: str, count: int = 12) -> str:
    """The end of what a process wrote, to follow a message."""
    lines = [line[:200] for line in text.splitlines() if line.strip()][-count:]
    return ". It wrote:" + "".join(f"\n    {line}" for line in lines) if lines else ""


def _side_stream(device: torch.device) -> str:
    """A forward that forks to a second stream and joins it."""
    streams = getattr(torch, device.type)

    def forked(x: torch.Tensor) -> torch.Tensor:
        main, side = streams.current_stream(), other
        side.wait_stream(main)
        with streams.stream(side):
            y = x * 3
        main.wait_stream(side)
        return y + x

    other = streams.Stream()
    try:
        return _graph_is_right(Fn(forked), _rows(4), device, [1, 3, 4])
    except BuildError as error:
        if device.type == "sycl" and "recording a graph" in str(error):
            raise Skipped("the sycl device refuses to record several streams, as it says") from error
        raise


def _unjoined(device: torch.device) -> str:
    """A fork whose stream is not joined is refused or right; both streams, and a good capture, work afterwards."""
    streams = getattr(torch, device.type)
    side = streams.Stream()

    def forked(x: torch.Tensor) -> torch.Tensor:
        side.wait_stream(streams.current_stream())
        with streams.stream(side):
            x * 3  # noqa: B018  nobody waits for it
        return x + 1

    skip = False
    try:
        found = _graph_is_right(Fn(forked), _rows(4), device, [1, 3, 4])
    except BuildError as error:
        skip = device.type == "sycl" and "recording a graph" in str(error)
        found = f"refused ({str(error)[:200]})"
    with streams.stream(side):
        _same(_rows(2).to(device) * 2, _rows(2) * 2, "the side stream afterwards")
    afterwards = _graph_is_right(_mlp(), _rows(4), device, [1, 4])
    if skip:
        raise Skipped("the sycl device refuses to record several streams, as it says; a capture afterwards is right")
    return f"{found}; {afterwards} afterwards"


def _autocast_attention(device: torch.device) -> str:
    """The attention that serves models in half precision, which is another kernel than that of float32."""

    def attention(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            q, k, v = (torch.matmul(x, weight).view(-1, 4, 8, 16).transpose(1, 2) for weight in weights[x.device.type])
            return nn.functional.scaled_dot_product_attention(q, k, v).flatten(1)

    x = _rows(_WIDTH).to(device)
    with torch.autocast(device.type, torch.bfloat16):
        if (x @ x).dtype != torch.bfloat16:
            raise Skipped(f"autocast does not cast on the {device.type} device")
    generator = torch.Generator().manual_seed(5)
    host = [torch.randn(_WIDTH, 512, generator=generator) / 8 for _ in range(3)]
    weights = {"cpu": host, device.type: [weight.to(device) for weight in host]}
    return _graph_is_right(Fn(attention), _rows(4), device, [1, 3, 4], (3e-2, 6e-2))


def _host_constant(device: torch.device) -> str:
    """A tensor that the forward makes of numbers of the host: recorded right, or refused with a reason."""
    numbers = [number / 8 for number in range(_WIDTH)]
    module = Fn(lambda x: x + torch.tensor(numbers, device=x.device))
    try:
        return _graph_is_right(module, _rows(4), device, [1, 3, 4])
    except BuildError as error:
        return f"refused: {str(error)[:200]}"


def _inductor(device: torch.device) -> str:
    return _graph_is_right(_mlp(), _rows(4), device, [1, 3, 4], compile_with_inductor=True)


def _many_replays(device: torch.device, count: int) -> str:
    """A value that `count` replays in a row carry from call to call."""
    backend = _graph(Fn(lambda x: x + 1), torch.zeros(2, _WIDTH).to(device), batch_sizes=[1, 2])
    x = torch.zeros(1, _WIDTH).to(device)
    for _ in range(count):
        x = backend.infer(x)
    _same(x, torch.full((1, _WIDTH), float(count)), f"{count} calls, each on the last one's result")
    backend.deactivate()
    return f"{count} replays"


def _refusals(device: torch.device) -> str:
    """Random numbers and waits in the forward: an error that names the operator, and a device that works afterwards."""
    for what, word in (
        (lambda x: nn.functional.dropout(x, 0.5, True), "random"),
        (lambda x: x / x.max().item(), "wait"),
    ):
        try:
            _graph(Fn(what), _rows(2).to(device), batch_sizes=[1, 2])
        except BuildError as error:
            if "aten" not in str(error) or word not in str(error):
                raise AssertionError(f"refused without naming the operator: {error}") from error
        else:
            raise AssertionError(f"a forward that should be refused ({word}) was recorded")
        torch.rand(2, device=device).cpu()  # the generator is not left in a capture
    return "random numbers, waiting for the device"


def _failing_capture(device: torch.device) -> str:
    """A forward that, only while it is recorded, raises at one size."""

    def fails() -> None:
        raise ValueError("not at batch size 2")

    rebuilt, why = _fails_at_two(device, lambda y: fails())
    if "not at batch size 2" not in why:
        raise AssertionError(f"size 2 should have been dropped with the reason: {why}")
    return f"{rebuilt}, built afterwards"


def _waiting(device: torch.device) -> str:
    """A forward that, only while it is recorded, waits for the device at one size."""
    rebuilt, why = _fails_at_two(device, lambda y: y.cpu())
    return f"{rebuilt}, built afterwards; what was raised: {why.splitlines()[0][:100]}"


def _fails_at_two(device: torch.device, fail: Callable[[torch.Tensor], object]) -> tuple[str, str]:
    """Size 2, at which `fail` is called, is dropped and named, and everything works afterwards."""
    streams = getattr(torch, device.type)
    before = streams.current_stream()

    def moody(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if streams.is_current_stream_capturing() and len(x) == 2:
            fail(y)
        return y + 1

    backend = _graph(Fn(moody), _rows(4).to(device), batch_sizes=[1, 2, 4])
    dropped = backend.dropped_batch_sizes
    if sorted(dropped) != [2]:
        raise AssertionError(f"size 2 should have been dropped and named: {dropped}")
    if streams.current_stream() != before or streams.is_current_stream_capturing():
        raise AssertionError("another stream is current than before the capture, or it still records")
    for batch in (1, 2, 3, 4):
        _same(backend.infer(_rows(batch).to(device)), _rows(batch) * 2 + 1, f"batch {batch} after the failures")
    (torch.rand(4, device=device) + 1).cpu()
    backend.deactivate()
    return _graph_is_right(_mlp(), _rows(4), device, [1, 4]), dropped[2]


def _two_threads(device: torch.device, calls: int) -> str:
    """Two threads call one backend, and each builds and calls one of its own meanwhile."""
    shared = _graph(_mlp().to(device), _rows(16).to(device), batch_sizes=[1, 4, 16])
    reference = _mlp()
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            own = _graph(Fn(lambda x: x * (number + 2)), _rows(8).to(device), batch_sizes=[1, 8])
            for call in range(calls):
                batch = 1 + (5 * call + number) % 16
                x = _rows(batch) + number
                _same(shared.infer(x.to(device)), reference(x), f"thread {number}, batch {batch}", _TOLERANCE_CPU)
                _same(own.infer(x.to(device)), x * (number + 2), f"thread {number}, batch {batch}, its own backend")
            own.deactivate()
        except BaseException as error:  # noqa: BLE001  the thread's; raised below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.deactivate()
    if failed:
        raise failed[0]
    return f"{2 * calls} calls each"


def _many_sizes(device: torch.device, largest: int) -> str:
    """The default grid, on which some drivers run out of something after a few sizes."""
    backend = _graph(_mlp().to(device), torch.cat([_rows(64)] * 4)[:largest].to(device))
    try:
        if dropped := backend.dropped_batch_sizes:
            size, why = next(iter(dropped.items()))
            served = backend.recorded_batch_sizes
            raise AssertionError(f"{len(dropped)} sizes were dropped, {served} serve; at {size}: {why}")
        reference = _mlp()
        for batch in (1, 3, largest // 2 + 1, largest, largest + 5):
            x = torch.cat([_rows(64)] * 5)[:batch]
            _same(backend.infer(x.to(device)), reference(x), f"batch {batch}", _TOLERANCE_CPU)
        return f"{len(backend.recorded_batch_sizes)} sizes in {backend.record_seconds:.2f} s"
    finally:
        backend.deactivate()


def _model(name: str, device: torch.device) -> str:
    try:
        module, shape = make_model(name)
    except MissingRuntimeError as error:
        raise Skipped(str(error)) from error
    sample = torch.randn(4, *shape, generator=torch.Generator().manual_seed(1))
    return _graph_is_right(module, sample, device, [1, 3, 5])


def _memory(device: torch.device) -> str:
    """What a backend takes goes with it. On xpu torch keeps the pool until it needs memory, as with its own."""
    streams = getattr(torch, device.type)
    stream_synchronizer(device)()

    def once() -> tuple[int, int]:
        backend = _graph(_mlp().to(device), _rows(64).to(device))
        pool = backend.pool_stats()["reserved"]
        backend.deactivate()
        del backend
        gc.collect()
        stream_synchronizer(device)()
        memory.release_cache(device)
        return pool, int(streams.memory_allocated())

    once()  # what the libraries take for good
    (pool, first), (_, last) = once(), [once() for _ in range(3)][-1]
    if last > first:
        raise AssertionError(f"{last - first:,} bytes more in tensors after three more builds and deletions")
    reserved = memory.reserved_bytes(device)
    return f"pool {pool:,} bytes, {last:,} bytes in tensors before and after, {reserved or 0:,} bytes with torch"


def _timing(device: torch.device, seconds: float) -> str:
    """Medians of synchronised calls: eager, a bare replay, a call that is one replay, a padded call."""
    module = _mlp().to(device)
    backend = _graph(module, _rows(4).to(device), batch_sizes=[1, 2, 4])
    one, three = _rows(1).to(device), _rows(3).to(device)
    calls: dict[str, Callable[[], object]] = {
        "eager": lambda: module(one),
        "replay": lambda: backend.replay(1),
        "call": lambda: backend.infer(one),
        "padded call": lambda: backend.infer(three),
    }
    with torch.no_grad():
        timings = time_interleaved(calls, stream_synchronizer(device), seconds)
    backend.deactivate()
    return ", ".join(f"{name} {1e3 * timing.median:.1f} us" for name, timing in timings.items())
