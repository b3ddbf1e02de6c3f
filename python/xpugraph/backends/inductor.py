# SPDX-License-Identifier: MIT
"""TorchInductorBackend: the module compiled by Torch Inductor, launched kernel by kernel."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .. import inductor_hooks
from ..batching import BatchDims, fresh_inputs, tensor_arguments
from ..call import CallForm, as_call, check_same_structure, rebuild_call, take_apart
from ..compiling import InductorCompiler, InductorError, fresh_entry, mark_batch
from ..errors import ConfigError
from ..recipe import Recipe, recipe_from_dict, recipe_to_dict
from .base import Backend, BackendState, wants_gradients

_SEED = 20260402
_MODES = (None, "default", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead")
_AUTOCAST = ("bfloat16", "float16")
_MOST_REASONS = 32


@dataclasses.dataclass
class TorchInductorBackendConfig:
    """How a module is compiled; the fields are those of ``torch.compile``.

    Attributes:
        fullgraph: True: a graph break is a BuildError. False: it is named in ``describe()`` and ``counters()``.
        dynamic: None: the batch dimension is variable and everything else fixed. True: every dimension is variable.
            False: every batch size is compiled on its own; past Dynamo's recompile limit calls are eager, and counted.
        mode: Of Inductor: "default", "max-autotune-no-cudagraphs", and on cuda also "max-autotune" and
            "reduce-overhead", which record graphs of their own there and do nothing elsewhere.
        options: Of Inductor, instead of a mode.
        autocast: "bfloat16" or "float16": the module runs under torch.autocast with it. Not on the sycl device, where
            autocast does not cast.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    mode: str | None = None
    options: dict[str, Any] | None = None
    autocast: str | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError for a value that is out of range; names the field."""
        if isinstance(self.autocast, torch.dtype):
            self.autocast = str(self.autocast).removeprefix("torch.")
        if not isinstance(self.fullgraph, bool):
            raise ConfigError(f"fullgraph={self.fullgraph!r}; accepted are True and False")
        if self.dynamic is not None and not isinstance(self.dynamic, bool):
            raise ConfigError(f"dynamic={self.dynamic!r}; accepted are None, True and False")
        if self.mode not in _MODES:
            raise ConfigError(f"mode={self.mode!r}; accepted are {', '.join(map(repr, _MODES))}")
        if self.options is not None and not isinstance(self.options, dict):
            raise ConfigError(f"options={self.options!r}; a dict of Inductor's options is needed")
        if self.options is not None and self.mode is not None:
            raise ConfigError(f"mode={self.mode!r} and options={self.options!r}; only one of the two can be given")
        if self.autocast is not None and self.autocast not in _AUTOCAST:
            raise ConfigError(f"autocast={self.autocast!r}; accepted are None, {', '.join(map(repr, _AUTOCAST))}")

    def check_device(self, device: torch.device) -> None:
        """Raises ConfigError for what would silently do nothing on `device`."""
        if device.type != "cuda" and self.mode in ("reduce-overhead", "max-autotune"):
            raise ConfigError(
                f"mode={self.mode!r}: torch.compile records graphs on cuda only and silently does not on "
                f"{device.type}. Use XPUGraphBackendConfig(compile_with_inductor=True), or "
                "mode='max-autotune-no-cudagraphs'"
            )
        if device.type == "sycl" and self.autocast is not None:
            raise ConfigError(f"autocast={self.autocast!r}: autocast does not cast on the sycl device")


class TorchInductorBackend(Backend):
    """Runs the module through ``torch.compile``, without gradients; a call that needs one is eager's, and counted.

    ``build`` compiles for batch size 1 and for any other, so that calls like the samples compile nothing. A call with
    other dtypes or shapes compiles when it comes, as with ``torch.compile``; past Dynamo's recompile limit it is served
    by eager. Both are counted.
    """

    def __init__(self, config: TorchInductorBackendConfig | None = None) -> None:
        super().__init__()
        self.config = config or TorchInductorBackendConfig()
        self._module: torch.nn.Module | None = None
        self._recipe: Recipe | None = None
        self._runs: dict[int, Callable[..., Any]] | None = None  # by batch size
        self._compiler: InductorCompiler | None = None  # not before it is built: strategies copy backends
        self._form: CallForm | None = None
        self._writes = False  # whether the forward writes to its arguments
        self._breaks: list[str] = []
        self._uncompiled: dict[int, str] = {}
        self._eager_calls: Counter[str] = Counter()
        self.compile_seconds = 0.0

    # ---- life ------------------------------------------------------------------------------------------------------

    def _build(self, module: torch.nn.Module, samples: Sequence[Any], **options: Any) -> None:
        batch_dims: BatchDims | None = options.pop("batch_dims", None)
        if options:
            raise ConfigError(f"build: unknown option {next(iter(options))!r}; accepted is batch_dims")
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(f"module: a torch.nn.Module is needed, not a {type(module).__name__}")
        if isinstance(samples, (torch.Tensor, dict)) or not isinstance(samples, Sequence) or not len(samples):
            raise ConfigError("samples: a list with at least one sample is needed, such as samples=[x]")
        calls = [take_apart(module, *as_call(sample)) for sample in samples]
        check_same_structure(calls)
        arguments, batch_sizes = tensor_arguments(calls, batch_dims)
        largest = max(range(len(calls)), key=batch_sizes.__getitem__)
        device = calls[largest].leaves.tensors[0].device
        sizes = sorted(set(batch_sizes) if self.config.dynamic is False else {batch_sizes[largest], 1})
        recipe = Recipe(calls[largest].arguments, arguments, sizes, device)
        self._compile(module, recipe, calls[largest].leaves.tensors)
        self._module, self._recipe = module, recipe

    def _compile(self, module: torch.nn.Module, recipe: Recipe, samples: Sequence[torch.Tensor] | None) -> None:
        config, device = self.config, recipe.device
        config.check_device(device)
        inductor_hooks.register(device.type)
        if inductor_hooks.is_disabled():
            raise InductorError("torch.compile is disabled in this process (TORCHDYNAMO_DISABLE or its config)")
        chosen = inductor_hooks.mode_options(config.mode, config.dynamic) if config.mode else dict(config.options or {})
        compiler = InductorCompiler(inductor_hooks.compile_options(device.type) | chosen)
        runs = {
            size: torch.compile(
                fresh_entry(module), backend=compiler, fullgraph=config.fullgraph, dynamic=config.dynamic
            )
            for size in recipe.batch_sizes
        }
        self._uncompiled = {}
        start = time.perf_counter()
        with torch.inference_mode(False), torch.no_grad(), inductor_hooks.compiling():
            self._writes = _writes_arguments(module, recipe, samples)
            before = inductor_hooks.graph_breaks()
            try:
                self._run_all(runs, compiler, recipe, samples)
            finally:
                self._breaks = _reasons(before)
        self.compile_seconds = time.perf_counter() - start
        self._runs, self._compiler, self._form = runs, compiler, CallForm(module.forward)

    def _run_all(
        self,
        runs: dict[int, Callable[..., Any]],
        compiler: InductorCompiler,
        recipe: Recipe,
        samples: Sequence[torch.Tensor] | None,
    ) -> None:
        generator = torch.Generator().manual_seed(_SEED)
        for size in recipe.batch_sizes[::-1]:
            inputs = fresh_inputs(recipe.tensors, samples, size, recipe.device, generator)
            if self.config.dynamic is None:
                mark_batch(inputs, recipe.tensors)
            args, kwargs = rebuild_call(recipe.arguments, inputs)
            before = inductor_hooks.graph_breaks()
            compiler.start()
            try:
                with self._autocast(recipe.device):
                    runs[size](*args, **kwargs)
            except Exception as error:
                if size == recipe.batch_sizes[-1] or not inductor_hooks.is_of_compiler(error):
                    raise InductorError(f"at batch size {size}: {inductor_hooks.short_reason(error)}") from error
                self._uncompiled[size] = inductor_hooks.short_reason(error)
                continue
            if not compiler.ran():
                why = "; ".join(_reasons(before))
                raise InductorError(
                    f"at batch size {size}: torch.compile ran the forward without compiling any of it"
                    + f" (graph breaks: {why})" * bool(why)
                )

    def _activate(self) -> None:
        assert self._module is not None and self._recipe is not None
        self._compile(self._module, self._recipe, None)

    def _deactivate(self) -> None:
        self._runs, self._compiler = None, None

    def _deploy(self, device: torch.device | None) -> None:
        assert self._recipe is not None
        if device is not None and device.type != self._recipe.device.type:
            raise ConfigError(f"device={device}; the module and its recipe are on {self._recipe.device}")
        if self._runs is None:
            self._activate()

    # ---- calls -----------------------------------------------------------------------------------------------------

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        """Serves one call.

        Raises:
            StateError: Not built or not active.
        """
        runs, compiler = self._runs, self._compiler
        if runs is None:
            self._need("infer", BackendState.ACTIVE, BackendState.DEPLOYED)
        assert runs is not None and compiler is not None and self._form is not None and self._recipe is not None
        if wants_gradients(args, kwargs):
            self._note("an argument requires a gradient")
            with self._autocast(self._recipe.device):
                return self._module(*args, **kwargs)  # type: ignore[misc]
        compiler.start()
        with torch.no_grad(), self._autocast(self._recipe.device):
            try:
                args, kwargs = self._form(args, kwargs)
            except TypeError as error:  # Dynamo would take f(x, x=x)
                return self._serve_uncompiled(error, args, kwargs)
            plain = not kwargs and all(type(value) is torch.Tensor for value in args)
            leaves = args if plain else pytree.tree_leaves((args, kwargs))
            if any(map(inductor_hooks.is_marked, leaves)):
                args, kwargs = _without_marks(args, kwargs)
            if self._writes and _share_memory((args, kwargs)):
                self._note("arguments share memory, and forward writes to arguments")
                return self._module(*args, **kwargs)  # type: ignore[misc]
            try:
                result = self._run_of(runs, leaves)(*args, **kwargs)
            except Exception as error:
                if not inductor_hooks.is_of_compiler(error):
                    raise
                return self._serve_uncompiled(error, args, kwargs)
        if not compiler.ran():
            self._note("nothing that was compiled ran: Dynamo's recompile limit, or torch.compile is disabled")
        return result

    __call__ = infer

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        return self.infer(*args, **kwargs)

    def _run_of(self, runs: dict[int, Callable[..., Any]], leaves: Sequence[Any]) -> Callable[..., Any]:
        """What was compiled for the batch size of a call with these values, or for the largest, which serves all.

        Each size has a function of its own: while one thread looks through what Dynamo compiled for a function, another
        may reorder that, and a call would be compiled once more (seen with torch 2.13).
        """
        assert self._recipe is not None
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        size = 0
        for tensor, argument in zip(tensors, self._recipe.tensors, strict=False):
            if argument.batch_dim is not None and argument.batch_dim < tensor.dim():
                size = tensor.shape[argument.batch_dim] // argument.rows_per_item
                break
        return runs.get(size) or runs[self._recipe.batch_sizes[-1]]

    def _serve_uncompiled(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that could not be compiled is served by eager, and counted."""
        self._note(f"it could not be compiled: {inductor_hooks.short_reason(error)}")
        assert self._module is not None
        return self._module(*args, **kwargs)

    def _note(self, reason: str) -> None:
        known = reason in self._eager_calls or len(self._eager_calls) < _MOST_REASONS
        self._eager_calls[reason if known else "other reasons"] += 1

    def _autocast(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if self.config.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=getattr(torch, self.config.autocast))

    # ---- what it is ------------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """A short name for tables and routes."""
        return "inductor"

    def eager_calls(self) -> int:
        """How many calls were served without anything compiled."""
        return sum(self._eager_calls.values())

    def facts(self) -> dict[str, Any]:
        """Compilations, and why the forward is more than one graph."""
        return {"inductor_compiles": self.inductor_compiles, "graph_breaks": self.graph_breaks}

    @property
    def inductor_compiles(self) -> int:
        """Graphs compiled since ``build`` or ``activate``, those of served calls included."""
        return self._compiler.graphs if self._compiler else 0

    @property
    def graph_breaks(self) -> list[str]:
        """Why the forward is more than one graph; empty when it is one."""
        return list(self._breaks)

    def counters(self) -> dict[str, Any]:
        """eager_calls that nothing compiled served, with eager_reasons; inductor_compiles; graph_breaks."""
        return {
            "eager_calls": self.eager_calls(),
            "eager_reasons": dict(self._eager_calls),
            "inductor_compiles": self.inductor_compiles,
            "graph_breaks": self.graph_breaks,
        }

    def describe(self) -> str:
        """State, compilations, and what is not compiled."""
        defaults = TorchInductorBackendConfig()
        changed = [f"{k}={v!r}" for k, v in vars(self.config).items() if v != getattr(defaults, k)]
        lines = [f"TorchInductorBackend({', '.join(changed)}) ({self.state.value})"]
        if self._runs is not None and self._recipe is not None:
            lines.append(f"  device: {self._recipe.device}")
            lines.append(f"  inductor: {self.inductor_compiles} compilations, {self.compile_seconds:.1f} s at build")
            lines += [f"  graph break: {reason}" for reason in self._breaks]
            lines += [f"  not compiled for batch size {size}: {why}" for size, why in self._uncompiled.items()]
            lines += [f"  eager {count}x: {reason}" for reason, count in self._eager_calls.items()]
        return "\n".join(lines)

    def _config_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self.config)

    def to_dict(self) -> dict[str, Any]:
        """Configuration and recipe as plain JSON values; no weights.

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
        }

    @classmethod
    def from_dict(cls, module: torch.nn.Module, state: dict[str, Any]) -> TorchInductorBackend:
        """The backend that was saved, for `module`; ``deploy()`` compiles it.

        Raises:
            ConfigError: `state` is not what ``to_dict`` makes.
        """
        try:
            backend = cls(TorchInductorBackendConfig(**state["config"]))
            backend._recipe = recipe_from_dict(state["recipe"])
        except (KeyError, TypeError) as error:
            raise ConfigError(f"state: not what TorchInductorBackend.to_dict() makes ({error!r})") from error
        backend._recipe.device = next((t.device for t in module.parameters()), backend._recipe.device)
        backend._module = module
        backend._state = BackendState.CHECKPOINT_LOADED
        return backend


def _reasons(before: Counter[str]) -> list[str]:
    """Why graphs were broken since `before`, each reason once."""
    return [inductor_hooks.one_line(text) for text in inductor_hooks.graph_breaks() - before]


def _writes_arguments(module: torch.nn.Module, recipe: Recipe, samples: Sequence[torch.Tensor] | None) -> bool:
    """Whether eager writes in place to an argument; a forward that raises is left to the compilation to name."""
    generator = torch.Generator().manual_seed(_SEED)
    inputs = fresh_inputs(recipe.tensors, samples, recipe.batch_sizes[-1], recipe.device, generator)
    args, kwargs = rebuild_call(recipe.arguments, inputs)
    before = [tensor._version for tensor in inputs]
    with contextlib.suppress(Exception):
        module(*args, **kwargs)
    return before != [tensor._version for tensor in inputs]


def _share_memory(call: Any) -> bool:
    """Whether two tensors of a call overlap, which torch.compile does not see where those it compiled for did not."""
    ends = 0
    tensors = [value for value in pytree.tree_leaves(call) if isinstance(value, torch.Tensor) and value.numel()]
    for tensor in sorted(tensors, key=torch.Tensor.data_ptr):
        if tensor.data_ptr() < ends:
            return True
        steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        ends = max(ends, tensor.data_ptr() + (steps + 1) * tensor.element_size())
    return False


def _without_marks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call without the caller's marks of dynamic and static dimensions, for which Dynamo would compile once more.

    On a dimension that the forward fixes, such a mark would even be an error.
    """

    def unmarked(value: Any) -> Any:
        return value.detach() if inductor_hooks.is_marked(value) else value

    args, kwargs = pytree.tree_map(unmarked, (args, kwargs))
    return args, kwargs
