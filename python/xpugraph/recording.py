# SPDX-License-Identifier: MIT
"""Recording: a module turned into graphs. Probe, allocate, capture the largest size first, check, plan, watch."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import _native
from .batching import fresh_inputs, take_rows
from .call import TensorArgument, rebuild_call
from .check import Checker, Tolerance
from .compiling import Compiled, InductorError
from .errors import BuildError, CaptureError, ConfigError, OutOfMemoryError, StateError, XPUGraphError
from .known_faults import explain
from .observe import EagerRaisesError, observe
from .plan import EXACT_GAIN, MIN_GAIN, by_plain_rule, covers, measure_cost
from .probe import Keeper
from .progress import track
from .recipe import Recipe
from .structure import Leaves, describe, flatten_node, unflatten_node
from .timing import gc_allowed, gc_disabled, stream_synchronizer
from .watch import Snapshot

if TYPE_CHECKING:
    from .backends.graph import XPUGraphBackendConfig

_ROWS_KEPT = 64  # items of the samples
_TIMINGS = 2  # of each size, one pass after the other: what slows a machine for a while is seen in one of them only
_SEED = 20260401  # of the check's own generator; the global ones are never touched


class Recording:
    """The graphs of one module, active from construction to close().

    Attributes:
        call: The native GraphedCall: ``call(*args, **kwargs)`` serves a batch.
        dropped: Batch sizes that are not recorded although the recipe has them, with the reason.
        record_seconds: Time spent warming up and capturing.
        capture_seconds: Of that, the time spent capturing.
        compile_seconds: Time spent compiling; 0 without Inductor.
        rows: A few items of the samples, on the host, for recording again or more; None when there were no samples.
        costs: What a replay of each recorded size costs in ms, for ``plan="measured"``; empty when the plain rule
            serves.
        plan_dropped: Why the plain rule serves although ``plan="measured"``; empty when it does not.

    Raises (from the constructor, with the module as it was before):
        BuildError: No batch size can be recorded, or the module cannot be served with padding.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        recipe: Recipe,
        config: XPUGraphBackendConfig,
        samples: Sequence[torch.Tensor] | None,
        reject: Callable[[str, tuple[Any, ...], dict[str, Any]], Any],
        costs: dict[int, float] | None = None,
    ) -> None:
        self._module = module
        self._recipe = recipe
        self._config = config
        self._tolerance = Tolerance(config.rtol, config.atol)
        self._native = _native.load()
        self._noise: list[float] | None = None
        self.rows = None if samples is None else _few_rows(recipe.tensors, samples)
        kind = recipe.device.type
        self._autocast = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        self._lock = threading.Lock()  # one size is added at a time
        self._closed = False
        self.costs = dict(costs or {})
        self.plan_dropped = ""
        self.dropped: dict[int, str] = {}
        self.record_seconds = self.capture_seconds = 0.0
        self.compile_seconds = 0.0
        self._compiled: Compiled | None = None
        self._kept: dict[int, torch.Tensor] = {}  # what the graphs read, whoever else holds it
        self._snapshot = Snapshot(module)
        try:
            # Not in inference mode, whichever mode the caller is in: its tensors cannot be written to outside of it.
            with torch.inference_mode(False), torch.no_grad(), gc_disabled():
                self._record(samples, reject)
        except BaseException:
            self._snapshot.changes()
            raise
        changed = self._snapshot.changes()
        self.call.serve(self._snapshot.watch(self._native, changed))
        del self._snapshot

    def close(self) -> None:
        """Destroys the graphs and gives their memory back; waits for a size that is being added."""
        with self._lock:
            self._closed = True
            del self.call
            self._kept.clear()
            self._compiled = None

    @property
    def largest(self) -> int:
        """The batch size that the graphs' input buffers hold."""
        return self._recipe.batch_sizes[-1]

    @property
    def inductor_compiles(self) -> int:
        """Compilations that the graphs took, by torch's own counter; 0 without Inductor."""
        return self._compiled.compiles if self._compiled else 0

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _record(
        self, samples: Sequence[torch.Tensor] | None, reject: Callable[[str, tuple[Any, ...], dict[str, Any]], Any]
    ) -> None:
        recipe, config = self._recipe, self._config
        generator = torch.Generator().manual_seed(_SEED)
        # Above the largest recorded size, where chunks begin; a forward with a largest batch of its own may refuse it.
        largest = recipe.batch_sizes[-1]
        candidates = [max(largest + 1, 3)] + [largest] * (largest >= 3)
        for rows in candidates:
            inputs = fresh_inputs(recipe.tensors, samples, rows, recipe.device, generator)
            try:
                seen = observe(self._module, recipe, self._snapshot.tensors(), inputs, rows)
                break
            except EagerRaisesError:
                if rows == candidates[-1]:
                    raise
        self._outputs, self._casts_to_integers = seen.outputs, seen.casts_to_integers
        self.call = self._native.GraphedCall(
            device=recipe.device,
            grid=self._native.BatchGrid.from_sizes(recipe.batch_sizes),
            parameters=[self._native.Parameter(a.name, a.positional, a.omittable, a.spec) for a in recipe.arguments],
            inputs=[self._spec(t) for t in recipe.tensors],
            result=seen.result,
            outputs=[self._spec(t) for t in self._outputs],
            copy_outputs=config.copy_outputs,
            pool_limit_bytes=config.pool_limit_bytes or 0,
            flatten_node=flatten_node,
            unflatten_node=unflatten_node,
            reject=reject,
        )
        if config.compile_with_inductor:
            self._compile(inputs)
        self._capture_all(inputs)
        fresh = fresh_inputs(recipe.tensors, samples, rows, recipe.device, generator)
        checker = self._checker(fresh, rows)
        self._check_all(checker)
        if config.plan == "measured":
            self._make_plan(checker)

    def _forward(self, tensors: Sequence[torch.Tensor]) -> Any:
        args, kwargs = rebuild_call(self._recipe.arguments, tensors)
        return self._module(*args, **kwargs)

    def _forward_flat(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return _flat(self._forward(tensors))

    def _spec(self, t: TensorArgument) -> Any:
        dim = -1 if t.batch_dim is None else t.batch_dim
        return self._native.TensorSpec(t.name, t.dtype, list(t.shape), list(t.strides), dim, t.rows_per_item, t.written)

    def _compile(self, inputs: list[torch.Tensor]) -> None:
        """Compiles for the largest size, which serves the others too, and for 1. Garbage is collected meanwhile."""
        start = time.perf_counter()
        recipe = self._recipe
        self._compiled = Compiled(self._module, recipe.arguments, recipe.tensors, recipe.device)
        with gc_allowed():
            for size in {recipe.batch_sizes[-1]: None, recipe.batch_sizes[0]: None}:
                static = self.call.static_inputs(size)
                self._fill(static, inputs, size)
                try:
                    self._compiled.warm_up(static)
                except InductorError:
                    if size == recipe.batch_sizes[-1] and self._compiled.compiles == 0:
                        raise
                except Exception:  # noqa: BLE001, S110  the forward's own; that size is dropped and named later
                    pass
        self.compile_seconds = time.perf_counter() - start

    def _warm_up(self, static: list[torch.Tensor]) -> None:
        """On the very path of the capture, where nothing may be compiled or initialised."""
        if self._compiled is not None:
            self._compiled.warm_up(static)
            return
        with Keeper(static):
            self._forward(static)

    def _capture(self, size: int, static: list[torch.Tensor], publish: bool = True) -> None:
        compiled = self._compiled
        if compiled is None:
            with Keeper(static) as keeper:
                self.call.record(size, self._forward_flat, publish)
            self._kept.update(keeper.kept)
            return
        # Dynamo runs nothing under a dispatch mode; what compiled code reads it is given, and Compiled keeps that.
        self.call.record(size, lambda tensors: _flat(compiled.capture(tensors)), publish)
        if self.call.nodes(size) == 0:
            self.call.drop(size)
            raise CaptureError("the graph has no node: nothing that Inductor generated was recorded")

    def _capture_all(self, inputs: list[torch.Tensor]) -> None:
        """Warms up and captures every size, the largest first, so that the smaller ones fit into its memory."""
        start = time.perf_counter()
        for size in track(self._recipe.batch_sizes[::-1], "recording"):
            try:
                static = self.call.static_inputs(size)
                self._fill(static, inputs, size)
                self._warm_up(static)
                self._fill(static, inputs, size)
                _synchronize(self._recipe.device)
                begin = time.perf_counter()
                self._capture(size, static)
                self.capture_seconds += time.perf_counter() - begin
            except Exception as error:  # noqa: BLE001  a model may raise anything; that size is dropped and named
                self.dropped[size] = explain(error)
        self.record_seconds = time.perf_counter() - start
        self._need_sizes()

    def _fill(self, static: list[torch.Tensor], inputs: list[torch.Tensor], size: int) -> None:
        for slot, x, t in zip(static, inputs, self._recipe.tensors, strict=True):
            slot.copy_(take_rows(x, t, 0, size))

    def _checker(self, inputs: list[torch.Tensor], rows: int, size: int = 0) -> Checker:
        """Compares the graphs with eager on `inputs`, which have that many rows; eager runs now.

        With a `size` only its graph is used, which need not be published.
        """
        written = [i for i, t in enumerate(self._recipe.tensors) if t.written]
        checked = self._outputs + [self._recipe.tensors[i] for i in written]

        def eager(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return self._forward_flat(tensors) + [tensors[i] for i in written]

        def graph(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            args, kwargs = rebuild_call(self._recipe.arguments, tensors)
            leaves = Leaves()
            describe(self.call.trial(size, *args, **kwargs), "output", leaves)
            return leaves.tensors + [tensors[i] for i in written]

        recipe, tolerance, device = self._recipe, self._tolerance, self._recipe.device
        tensors, casts, noise = recipe.tensors, self._casts_to_integers, self._noise
        with _named_check():
            checker = Checker(tensors, checked, inputs, eager, graph, tolerance, rows, device, casts, noise)
        self._noise = checker.noise  # measuring it switches TF32 off, which is for a build and not for serving
        return checker

    def _check_all(self, checker: Checker) -> None:
        with _named_check():
            checker.isolation()
            for size in self.dropped:
                checker.dropped(size)
            previous = 0
            for size in track(list(self.call.sizes), "checking"):
                if (reason := checker.size(size, previous)) is None:
                    previous = size
                else:
                    self.dropped[size] = reason
                    self.call.drop(size)
        self._need_sizes()

    # ---- plan ------------------------------------------------------------------------------------------------------

    def _make_plan(self, checker: Checker) -> None:
        """Times the recorded sizes that have no cost yet, sets the plan, and checks what it serves otherwise."""
        recorded = list(self.call.sizes)
        untimed = [size for size in recorded if size not in self.costs]
        for size in track(untimed * _TIMINGS, "timing"):
            self.costs[size] = min(self._cost(checker.inputs, size), self.costs.get(size, float("inf")))
        self._set_plan()
        others = set()
        for first, last, sizes in covers(self.call, recorded[-1]):
            if not by_plain_rule(sizes, recorded, first):
                others |= {first, last}
        with _named_check():
            for size in sorted(others):
                if (reason := checker.plan(size)) is not None:
                    self.plan_dropped = reason
                    self.costs.clear()
                    self._set_plan()
                    return

    def _cost(self, inputs: Sequence[torch.Tensor], size: int) -> float:
        tensors, fresh = self._rows_of(inputs, size), self._rows_of(inputs, size)
        written = [(tensors[i], fresh[i]) for i, t in enumerate(self._recipe.tensors) if t.written]
        args, kwargs = rebuild_call(self._recipe.arguments, tensors)

        def call() -> None:
            for tensor, before in written:  # counted up by every call, positions would become bad ones
                tensor.copy_(before)
            self.call.trial(size, *args, **kwargs)

        return measure_cost(call, stream_synchronizer(self._recipe.device))

    def _rows_of(self, inputs: Sequence[torch.Tensor], size: int) -> list[torch.Tensor]:
        return [take_rows(x, t, 0, size).clone() for x, t in zip(inputs, self._recipe.tensors, strict=True)]

    def _set_plan(self) -> None:
        self.costs = {size: cost for size, cost in self.costs.items() if size in self.call.sizes}
        self.call.set_costs(self.costs, MIN_GAIN, EXACT_GAIN)

    # ---- later -----------------------------------------------------------------------------------------------------

    def add(self, size: int) -> None:
        """Records one more size beside the others, which serve calls meanwhile; checked and timed like those.

        Raises:
            ConfigError: `size` is not in 1 … the largest size, whose buffers all graphs read.
            StateError: The module was changed after recording, or the backend was deactivated.
            Exception: What the forward raises; CaptureError, BuildError or OutOfMemoryError. The size is dropped then,
                with the reason, and everything else is as before.
        """
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= self.largest:
            raise ConfigError(
                f"batch_size={size!r}; a whole number in 1…{self.largest} is needed: the buffers that all graphs read "
                "are that large"
            )
        with self._lock, torch.inference_mode(False), torch.no_grad(), self._same_autocast(), gc_disabled():
            if self._closed:
                raise StateError("the backend was deactivated meanwhile; call activate() first")
            if size in self.call.sizes:
                return
            self.call.need_unchanged()
            try:
                self._add(size)
            except Exception as error:
                self.dropped[size] = explain(error)
                raise
            self.dropped.pop(size, None)
            self._recipe.batch_sizes = sorted({*self._recipe.batch_sizes, size})

    def _add(self, size: int) -> None:
        """Records, checks and times a size that no call is served by meanwhile, then publishes it."""
        limit, largest = self._config.pool_limit_bytes, max(self.call.sizes)
        if limit is not None and size > largest:
            raise OutOfMemoryError(
                f"batch size {size}: the limit of the pool, {limit} bytes, let no size above {largest} be recorded"
            )
        weights = self._versions()
        rows = max(size + 1, 3)
        generator = torch.Generator().manual_seed(_SEED + size)
        inputs = fresh_inputs(self._recipe.tensors, self.rows, rows, self._recipe.device, generator)
        # Not into the buffers of the graphs: those serve other calls.
        self._warm_up(self._rows_of(inputs, size))
        _synchronize(self._recipe.device)
        self._capture(size, self.call.static_inputs(size), publish=False)
        try:
            checker = self._checker(inputs, rows, size)
            with _named_check():
                reason = checker.size(size, max((s for s in self.call.sizes if s < size), default=0))
            if reason is not None:
                raise CaptureError(f"batch size {size}: {reason}")
            if self.costs:
                self.costs[size] = self._cost(inputs, size)
            self.call.need_unchanged()  # what was captured may be what somebody put there for a moment
        except BaseException as error:
            self.call.drop(size)
            self.costs.pop(size, None)
            if isinstance(error, (BuildError, CaptureError)) and self._versions() != weights:
                raise CaptureError(f"batch size {size}: weights were changed during its check; try again") from error
            raise
        if self.costs:
            self.call.set_costs(self.costs, MIN_GAIN, EXACT_GAIN)
        self.call.publish(size)

    def _versions(self) -> list[int]:
        """How often each weight was written to."""
        tensors = [*self._module.parameters(), *self._module.buffers()]
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors]

    def _same_autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast as it was when the other sizes were recorded; it belongs to the thread, which may be another one."""
        kind, (enabled, dtype) = self._recipe.device.type, self._autocast
        if (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) == (enabled, dtype):
            return contextlib.nullcontext()
        return torch.autocast(kind, dtype=dtype, enabled=enabled)

    def _need_sizes(self) -> None:
        if not self.call.sizes:
            listed = "\n".join(f"  {size}: {reason}" for size, reason in sorted(self.dropped.items()))
            raise BuildError(f"no batch size could be recorded:\n{listed}")


@contextlib.contextmanager
def _named_check() -> Iterator[None]:
    """Says of what the forward raises meanwhile that it did so in the check."""
    try:
        yield
    except XPUGraphError:
        raise
    except Exception as error:
        raise BuildError(f"the check against eager failed (rows that pad are zero): {error}") from error


def _few_rows(arguments: Sequence[TensorArgument], samples: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """At most `_ROWS_KEPT` items of each tensor, from all over the sample; the whole of one that has no batch."""
    kept = []
    for argument, sample in zip(arguments, samples, strict=True):
        sample = sample.detach()
        if argument.batch_dim is not None:
            items = sample.shape[argument.batch_dim] // argument.rows_per_item
            some = torch.linspace(0, items - 1, min(items, _ROWS_KEPT)).round().long()
            some = (some[:, None] * argument.rows_per_item + torch.arange(argument.rows_per_item)).reshape(-1)
            sample = sample.index_select(argument.batch_dim, some.to(sample.device))
        kept.append(sample.cpu().clone())
    return kept


def _flat(result: Any) -> list[torch.Tensor]:
    leaves = Leaves()
    describe(result, "output", leaves)
    return [t.detach().resolve_conj().resolve_neg() for t in leaves.tensors]


def _synchronize(device: torch.device) -> None:
    """Waits for the current stream, never for the whole device."""
    getattr(torch, device.type).current_stream(device).synchronize()
