# SPDX-License-Identifier: MIT
"""Every operator that torch's own OpInfo describes, in float32, on the sycl device against the CPU.

Three modes: ``capture`` records an operator that was never called with these shapes, and replays it; ``eager`` calls
it; ``replay`` records it again and replays it on new values. ``opinfo_known_failures.json`` names what fails and why;
it is strict, so an entry that starts to work fails here. ``python test_sycl_opinfo.py [name ...]`` prints what fails.
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal import common_methods_invocations
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

import xpugraph as xg
from xpugraph import _native

# OpInfo seeds the generators around every call of a random operator, which a capture refuses.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
op_db = common_methods_invocations.op_db
MODES = ("capture", "eager", "replay")
SAMPLES = 3
UNINITIALISED = ("empty", "new_empty", "resize_")
OPS = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db if torch.float32 in op.dtypes}
KNOWN: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("opinfo_known_failures.json").read_text())
DEVICE = xg.enable_sycl_device()
core = _native.load().sycl

Call = Callable[[], Any]


class Sample:
    """One call of an operator: its arguments on the CPU, and copies of them on the device."""

    def __init__(self, op: Any, args: Any) -> None:
        self.op = op
        self.values = args
        self.static = tree_map_only(torch.Tensor, lambda t: t.detach().clone().to(DEVICE), args)

    def expected(self) -> Any:
        return self._call(tree_map_only(torch.Tensor, lambda t: t.detach().clone(), self.values), torch.device("cpu"))

    def on_device(self) -> Any:
        return self._call(self.static, DEVICE)

    def load(self, values: Any) -> bool:
        """Puts other values of the same shapes in; False when they do not have them."""
        new, old = tree_flatten(values)[0], tree_flatten(self.static)[0]
        if [type(v) for v in new] != [type(v) for v in old]:
            return False
        tensors = [(a, b) for a, b in zip(old, new, strict=True) if isinstance(a, torch.Tensor)]
        rest = [(a, b) for a, b in zip(old, new, strict=True) if not isinstance(a, torch.Tensor)]
        if any(a.shape != b.shape or a.dtype != b.dtype for a, b in tensors):
            return False
        if any(isinstance(a, int | float | str) and a != b for a, b in rest):
            return False
        for a, b in tensors:
            a.copy_(b)
        self.values = values
        return True

    def _call(self, args: Any, device: torch.device) -> Any:
        first, rest, named = args
        named = {k: device if k == "device" else v for k, v in named.items()}
        return self.op.op(first, *rest, **named)


def samples_of(op: Any, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    found = []
    for sample in op.sample_inputs("cpu", torch.float32, requires_grad=False):
        found.append((sample.input, sample.args, sample.kwargs))
        if len(found) == SAMPLES:
            break
    return found


@contextmanager
def recording(graphs: list[Any], pool: int) -> Iterator[None]:
    core.begin_capture(pool)
    try:
        yield
        graphs.append(core.end_capture())
    finally:
        core.abort_capture()


def compare(got: Any, expected: Any, values: bool) -> None:
    got = tree_map(lambda v: v.detach().cpu() if isinstance(v, torch.Tensor) else v, got)
    expected = tree_map(lambda v: v.detach() if isinstance(v, torch.Tensor) else v, expected)
    if values:
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True, check_stride=False)
        return
    for a, b in zip(tree_flatten(got)[0], tree_flatten(expected)[0], strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert a.shape == b.shape and a.dtype == b.dtype


class Runner:
    """Runs one operator in all modes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.op = OPS[name]
        self.values = not name.startswith(UNINITIALISED)
        self.random = False
        self.samples = [Sample(self.op, args) for args in samples_of(self.op, 0)]
        self.fresh = samples_of(self.op, 1)
        self.differs = False

    def replayed(self, sample: Sample, new: Any) -> None:
        """Records the operator, changes its inputs if ``new`` is given, replays and compares."""
        before = sample.values
        graphs: list[Any] = []
        counter = torch.zeros(1, device=DEVICE)  # so that the graph of a mere view is not empty
        pool = core.create_pool()
        try:
            with recording(graphs, pool):
                counter.add_(1)
                got = sample.on_device()
            self.random = self.random or bool(core.captured_random_ops())
            assert sample.load(before if new is None or not sample.load(new) else new)
            graphs[0].replay()
            torch.sycl.synchronize()
            compare(got, sample.expected(), self.values and not self.random)
            if self.random and not self.differs:
                self.differs = self._changes(got, graphs[0])
        finally:
            del graphs
            core.release_pool(pool)

    def _changes(self, got: Any, graph: Any) -> bool:
        def snapshot() -> list[torch.Tensor]:
            return [t.cpu().clone() for t in tree_flatten(got)[0] if isinstance(t, torch.Tensor)]

        first = snapshot()
        for _ in range(5):
            graph.replay()
            if any(not torch.equal(a, b) for a, b in zip(first, snapshot(), strict=True)):
                return True
        return False

    def capture(self) -> None:
        for sample in self.samples:
            self.replayed(sample, None)

    def eager(self) -> None:
        for sample, args in zip(self.samples, samples_of(self.op, 0), strict=True):
            sample = Sample(self.op, args)
            compare(sample.on_device(), sample.expected(), self.values and not self.random)
            torch.sycl.synchronize()

    def replay(self) -> None:
        for index, args in enumerate(samples_of(self.op, 0)):
            self.replayed(Sample(self.op, args), self.fresh[index] if index < len(self.fresh) else None)
        assert self.differs or not self.random, "replays draw the same numbers"


@functools.lru_cache(maxsize=1)
def failures(name: str) -> dict[str, str]:
    """Per mode that fails: how. All modes of an operator run together, capture first, while its shapes are unknown."""
    found = {}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        runner = Runner(name)
        for mode in MODES:
            try:
                getattr(runner, mode)()
                torch.sycl.synchronize()
            except Exception as error:  # any failure is what this test is about
                found[mode] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
                with warnings.catch_warnings():
                    _settle()
    return found


def _settle() -> None:
    try:
        torch.sycl.synchronize()
    except RuntimeError:
        pass  # the failure of this operator must not fail the next one


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPS)
def test_opinfo(name: str, mode: str) -> None:
    failure = failures(name).get(mode)
    if mode in KNOWN.get(name, {}):
        assert failure is not None, f"works now: remove {name}/{mode} ({KNOWN[name][mode]}) from the known failures"
    else:
        assert failure is None, failure


def test_enough_operators() -> None:
    assert len(OPS) >= 400
    assert sum(len(modes) for modes in KNOWN.values()) < 0.1 * 3 * len(OPS)
    assert set(KNOWN) <= set(OPS)


if __name__ == "__main__":
    for op_name in sys.argv[1:] or OPS:
        print(json.dumps({op_name: failures(op_name)}), flush=True)
