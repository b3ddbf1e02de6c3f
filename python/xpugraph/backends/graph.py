# SPDX-License-Identifier: MIT
"""XPUGraphBackend: one recorded graph per batch size, replayed with padded input."""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _native
from ..batching import BatchDims, tensor_arguments
from ..call import Call, as_call, check_same_structure, take_apart
from ..compiling import InductorError
from ..errors import BuildError, ConfigError, InputError, XPUGraphError
from ..plan import describe_plan
from ..recipe import Recipe, recipe_from_dict, recipe_to_dict
from ..recording import Recording
from ..size_adder import SizeAdder
from ..watch import check_module
from .base import Backend, BackendState, wants_gradients
from .graph_config import XPUGraphBackendConfig

_DEVICES = ("xpu", "cuda", "sycl")
_MOST_REASONS = 32
_MOST_ROWS = 1 << 40  # that a plan is asked for
_MOST_MS = 1e12


class XPUGraphBackend(Backend):
    """Records a module for a grid of batch sizes and serves any batch by padding it to the next recorded size.

    Results of graphs are as eager's in value and dtype; they never require a gradient, and a result that eager would
    return as the argument itself is a copy. Strides are those of the recorded results. A dict argument matches by keys,
    in any order.

    A call that was not recorded (another dtype, device, feature shape or non-tensor value; an empty batch; autocast
    switched on or off since; an argument that requires a gradient while gradients are on) is served by eager and
    counted in ``describe()`` and ``counters()``, or refused with InputError when ``strict=True``. When eager refuses it
    too, InputError names the argument.

    Threads: ``infer`` may be called from any thread and on any stream; calls of one backend run one after another on
    the device, each on its caller's current stream.
    """

    def __init__(self, config: XPUGraphBackendConfig | None = None) -> None:
        super().__init__()
        self.config = config or XPUGraphBackendConfig()
        self._module: torch.nn.Module | None = None
        self._recipe: Recipe | None = None
        self._recording: Recording | None = None
        self._eager_calls: Counter[str] = Counter()
        self._expected: list[int] = []
        self._costs: dict[int, float] = {}
        self._adder: SizeAdder | None = None
        self._rows: list[torch.Tensor] | None = None  # of the samples, for recording again

    # ---- life ------------------------------------------------------------------------------------------------------

    def _build(self, module: torch.nn.Module, samples: Sequence[Any], **options: Any) -> None:
        batch_dims: BatchDims | None = options.pop("batch_dims", None)
        if options:
            raise ConfigError(f"build: unknown option {next(iter(options))!r}; accepted is batch_dims")
        check_module(module)
        calls = self._take_samples(module, samples)
        arguments, batch_sizes = tensor_arguments(calls, batch_dims)
        largest = max(range(len(calls)), key=batch_sizes.__getitem__)
        device = _common_device(calls[largest], module)
        exact = self._expected if self.config.exact_batch_sizes else []
        sizes = self.grid_sizes(batch_sizes[largest], exact)
        recipe = Recipe(calls[largest].arguments, arguments, sizes, device)
        try:
            recording = self._make_recording(module, recipe, calls[largest].leaves.tensors)
        except BuildError as error:
            if batch_dims is not None or len(set(batch_sizes)) > 1 or isinstance(error, InductorError):
                raise
            guessed = ", ".join(f"dimension {t.batch_dim} of {t.name}" for t in arguments if t.batch_dim is not None)
            raise BuildError(
                f"{error}\n(The samples have one batch size, so the batch was taken to be {guessed}. If it is not, "
                "give samples of two batch sizes, or batch_dims.)"
            ) from error
        self._module, self._recipe = module, recipe
        self._start(recording)

    def _make_recording(
        self, module: torch.nn.Module, recipe: Recipe, samples: Sequence[torch.Tensor] | None
    ) -> Recording:
        costs = self._costs if self.config.plan == "measured" else {}
        return Recording(module, recipe, self.config, samples, self._reject(), costs)

    def _start(self, recording: Recording) -> None:
        self._recording, self._costs = recording, recording.costs
        self._rows = recording.rows
        if self.config.exact_after is not None:
            self._adder = SizeAdder(recording, self.config.exact_after)
            weakref.finalize(self, self._adder.stop)

    def expect(self, batch_sizes: Sequence[int], exact: bool = False) -> None:
        """With ``exact``, or ``exact_batch_sizes=True``, these are recorded too."""
        if exact:
            self.config = dataclasses.replace(self.config, exact_batch_sizes=True)
        self._expected = list(batch_sizes)

    def _take_samples(self, module: torch.nn.Module, samples: Sequence[Any]) -> list[Call]:
        if isinstance(samples, (torch.Tensor, dict)) or not isinstance(samples, Sequence) or not len(samples):
            raise ConfigError(
                f"samples: a list with at least one sample is needed, such as samples=[x]; a {type(samples).__name__} "
                "was given or the list is empty"
            )
        calls = [take_apart(module, *as_call(sample)) for sample in samples]
        check_same_structure(calls)
        return calls

    def grid_sizes(self, largest_seen: int, exact: Sequence[int] = ()) -> list[int]:
        """The batch sizes that are recorded when the largest sample has `largest_seen` items.

        Args:
            largest_seen: Items of the largest sample.
            exact: Sizes to record beside the grid.
        """
        config, native = self.config, _native.load()
        named = list(config.batch_sizes or [])
        beside = config.exact_batch_sizes or not named
        sizes = native.BatchGrid.regular(largest_seen, config.max_recorded_batch_size).sizes if beside else []
        most = config.max_recorded_batch_size if beside else max(named)
        return sorted({*sizes, *(size for size in (*named, *exact) if size <= most)})

    def _activate(self) -> None:
        assert self._module is not None and self._recipe is not None
        check_module(self._module)
        self._start(self._make_recording(self._module, self._recipe, self._rows))

    def _deactivate(self) -> None:
        assert self._recording is not None
        if self._adder is not None:
            self._adder.close()
            self._adder = None
        self._recording.close()
        self._recording = None

    def _deploy(self, device: torch.device | None) -> None:
        assert self._recipe is not None
        if device is not None and device.type != self._recipe.device.type:
            raise ConfigError(f"device={device}; the module and its recipe are on {self._recipe.device}")
        if self._recording is None:
            self._activate()

    # ---- calls -----------------------------------------------------------------------------------------------------

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        """Serves one call; see the class. Asynchronous on the calling thread's current stream.

        Raises:
            InputError: The call fits neither the graphs nor eager, or not the graphs and ``strict=True``.
            StateError: Not built or not active; or the module was changed after recording.
        """
        recording = self._recording
        if recording is None:
            self._need("infer", BackendState.ACTIVE, BackendState.DEPLOYED)
        return recording.call(*args, **kwargs)  # type: ignore[union-attr]

    __call__ = infer

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        return self.infer(*args, **kwargs)

    def _reject(self) -> Callable[[str, tuple[Any, ...], dict[str, Any]], Any]:
        """_serve_by_eager, without a reference to this backend: the graphs would keep it, and it keeps the graphs."""
        serve = weakref.WeakMethod(self._serve_by_eager)

        def reject(reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            method = serve()
            assert method is not None, "the backend is alive while one of its calls runs"
            return method(reason, args, kwargs)

        return reject

    def _serve_by_eager(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.config.strict and reason != "the batch is empty":
            raise InputError(f"{reason} (strict=True: calls that were not recorded are refused)")
        assert self._module is not None
        try:
            with torch.set_grad_enabled(wants_gradients(args, kwargs)):
                result = self._module(*args, **kwargs)
        except (XPUGraphError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise InputError(f"{reason}; eager refuses the call too: {error}") from error
        known = reason in self._eager_calls or len(self._eager_calls) < _MOST_REASONS
        self._eager_calls[reason if known else "other reasons"] += 1
        return result

    def record_batch_size(self, batch_size: int) -> None:
        """Records one more size while the others serve calls, of other threads too. Does nothing when it is recorded.

        No call is served by it before it was checked. It is recorded again when the backend is activated again, or
        loaded from a checkpoint saved after this. With ``copy_outputs=False`` it counts as a call: what was lent is
        overwritten.

        Args:
            batch_size: At most the largest size that the backend was built for.

        Raises:
            ConfigError: It is not such a number.
            CaptureError: Recording failed, or its results differ from eager's; ``dropped_batch_sizes`` has the reason,
                and everything else is as before. What the forward itself raises comes as it is.
            OutOfMemoryError: The pool would grow above its limit.
            StateError: Not built or not active, or the module was changed after recording.
        """
        self._active("record_batch_size").add(batch_size)

    def plan(self, batch_size: int) -> list[int]:
        """The recorded sizes that serve a batch, in order: [24], or [16, 1], of 17 rows.

        Raises:
            InputError: `batch_size` is no whole number of 0 or more.
            StateError: Not built or not active.
        """
        if type(batch_size) is not int or not 0 <= batch_size <= _MOST_ROWS:
            raise InputError(f"batch_size={batch_size!r}; a whole number of 0 or more is needed")
        return [chunk.size for chunk in self._active("plan").call.plan(batch_size)]

    def replay(self, batch_size: int) -> None:
        """Replays the graph of one recorded size on whatever its buffers hold, for measuring."""
        self._active("replay").call.replay(batch_size)

    # ---- what it is ------------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """A short name for tables and routes."""
        return "graph+inductor" if self.config.compile_with_inductor else "graph"

    def eager_calls(self) -> int:
        """How many calls eager has served because the graphs could not."""
        return sum(self._eager_calls.values())

    def facts(self) -> dict[str, Any]:
        """Recorded and dropped sizes, seconds of recording, bytes of the pool, compilations by Inductor."""
        return {
            "inductor_compiles": self.inductor_compiles,
            "recorded_batch_sizes": self.recorded_batch_sizes,
            "dropped_batch_sizes": {str(size): reason for size, reason in self.dropped_batch_sizes.items()},
            "record_seconds": self.record_seconds,
            "plan": self._plan_text(),
            "pool_bytes": self.pool_stats()["reserved"],
        }

    def cover(self, batch_size: int) -> list[int]:
        """As `plan`."""
        return self.plan(batch_size)

    def _plan_text(self) -> str:
        recording = self._active("describe")
        if recording.costs:
            return f"measured: {describe_plan(recording.call)}"
        dropped = f" (measured, but {recording.plan_dropped})" if recording.plan_dropped else ""
        return f"pad: every batch → next recorded size{dropped}"

    def _active(self, method: str) -> Recording:
        if self._recording is None:
            self._need(method, BackendState.ACTIVE, BackendState.DEPLOYED)
        assert self._recording is not None
        return self._recording

    @property
    def recorded_batch_sizes(self) -> list[int]:
        """Ascending; empty while nothing is recorded."""
        return list(self._recording.call.sizes) if self._recording else []

    @property
    def dropped_batch_sizes(self) -> dict[int, str]:
        """Sizes that could not be recorded or were wrong, and why. Larger sizes serve their batches."""
        return dict(self._recording.dropped) if self._recording else {}

    @property
    def record_seconds(self) -> float:
        """Time spent warming up and capturing, compilation and check left out."""
        return self._active("record_seconds").record_seconds

    @property
    def capture_seconds(self) -> float:
        """Time spent capturing, warm-up left out."""
        return self._active("capture_seconds").capture_seconds

    @property
    def compile_seconds(self) -> float:
        """Time Inductor took; 0 without it."""
        return self._active("compile_seconds").compile_seconds

    @property
    def inductor_compiles(self) -> int:
        """Compilations that all recorded sizes took, by torch's own counter; 0 without Inductor."""
        return self._recording.inductor_compiles if self._recording else 0

    def nodes(self) -> dict[int, int]:
        """Number of nodes of every graph."""
        call = self._active("nodes").call
        return {size: call.nodes(size) for size in call.sizes}

    def pool_stats(self) -> dict[str, Any]:
        """Bytes of the shared pool (reserved, used, peak), bytes_per_size it grew by, and of the padded inputs."""
        call = self._active("pool_stats").call
        stats = call.pool_stats
        return {
            "reserved": stats.reserved,
            "used": stats.used,
            "peak": stats.peak_used,
            "bytes_per_size": {size: call.pool_bytes_of(size) for size in call.sizes},
            "inputs": call.input_bytes,
        }

    def counters(self) -> dict[str, Any]:
        """graph_calls and eager_calls served, recordings made, replays submitted, and eager_reasons."""
        call = self._recording.call if self._recording else None
        return {
            "graph_calls": call.calls if call else 0,
            "eager_calls": self.eager_calls(),
            "recordings": call.recordings if call else 0,
            "replays": call.replays if call else 0,
            "eager_reasons": dict(self._eager_calls),
        }

    def describe(self) -> str:
        """State, recorded and dropped sizes, bytes, and which calls ran where."""
        changed = ", ".join(f"{k}={v!r}" for k, v in self.config.changed().items())
        lines = [f"XPUGraphBackend({changed}) ({self.state.value})"]
        if self._recording is not None and self._recipe is not None:
            pool, counters, sizes = self.pool_stats(), self.counters(), self.recorded_batch_sizes
            lines += [
                f"  device: {self._recipe.device}",
                f"  recorded batch sizes ({len(sizes)}): {', '.join(map(str, sizes))}",
                f"  plan: {self._plan_text()}",
                f"  pool: {pool['reserved']:,} bytes reserved, {pool['inputs']:,} bytes of padded input",
                f"  calls: {counters['graph_calls']} by graphs, {counters['eager_calls']} by eager",
            ]
            if self.config.compile_with_inductor:
                lines.append(f"  inductor: {self.inductor_compiles} compilations, {self.compile_seconds:.1f} s")
            lines += [f"    eager {count}x: {reason}" for reason, count in self._eager_calls.items()]
            lines += [f"  dropped {size}: {why}" for size, why in sorted(self.dropped_batch_sizes.items())]
        return "\n".join(lines)

    def _config_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self.config)

    def to_dict(self) -> dict[str, Any]:
        """Configuration, recipe, and the costs that the plan follows from, as plain JSON values; no weights.

        Raises:
            StateError: Not built yet.
            ConfigError: The call holds something that has no JSON form; names the argument.
        """
        if self._recipe is None:
            self._need("to_dict", BackendState.ACTIVE)
        assert self._recipe is not None
        return {
            "backend": type(self).__name__,
            "config": self._config_dict(),
            "recipe": recipe_to_dict(self._recipe),
            "costs": {str(size): cost for size, cost in sorted(self._costs.items())},
        }

    @classmethod
    def from_dict(cls, module: torch.nn.Module, state: dict[str, Any]) -> XPUGraphBackend:
        """The backend that was saved, for `module`; ``deploy()`` records it.

        Raises:
            ConfigError: `state` is not what ``to_dict`` makes, or the module is on a device without graphs.
        """
        try:
            backend = cls(XPUGraphBackendConfig(**state["config"]))
            backend._recipe = recipe_from_dict(state["recipe"])
            backend._costs = _costs_from_dict(state.get("costs", {}))
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"state: not what XPUGraphBackend.to_dict() makes ({error!r})") from error
        check_module(module)
        device = next((t.device for t in module.parameters()), backend._recipe.device)
        if device.type not in _DEVICES:
            raise ConfigError(f"module: it is on {device}; graphs exist on {', '.join(_DEVICES)}")
        backend._recipe.device = device
        backend._module = module
        backend._state = BackendState.CHECKPOINT_LOADED
        return backend


def _costs_from_dict(state: dict[str, float]) -> dict[int, float]:
    for size, cost in state.items():
        known = len(size) <= 7 and size.isascii() and size.isdecimal() and int(size) > 0
        if not (known and type(cost) in (int, float) and 0 < cost < _MOST_MS):
            raise ConfigError(f"state: {size!r}: {cost!r} is no batch size with its cost")
    return {int(size): float(cost) for size, cost in state.items()}


def _common_device(call: Call, module: torch.nn.Module) -> torch.device:
    device = call.leaves.tensors[0].device
    for name, tensor in zip(call.leaves.names, call.leaves.tensors, strict=True):
        if tensor.device != device:
            raise ConfigError(f"samples: {name} is on {tensor.device}, and {call.leaves.names[0]} on {device}")
        if tensor.layout is not torch.strided:
            raise ConfigError(f"samples: {name} has layout {tensor.layout}; only strided tensors can be recorded")
    if device.type not in _DEVICES:
        raise ConfigError(
            f"samples: {call.leaves.names[0]} is on {device}; graphs exist on {', '.join(_DEVICES)} "
            "(for a machine without a GPU: xpugraph.enable_sycl_device())"
        )
    for name, parameter in module.named_parameters():
        if parameter.device != device:
            raise ConfigError(f"module: parameter {name} is on {parameter.device}, and the samples on {device}")
    return device
