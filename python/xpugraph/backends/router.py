# SPDX-License-Identifier: MIT
"""BatchSizeRouterBackend: every batch size to the backend that is fastest there."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..batching import tensor_arguments
from ..call import as_call, check_same_structure, take_apart
from ..errors import ConfigError, InputError, StateError, XPUGraphError
from ..recipe import Recipe, recipe_from_dict, recipe_to_dict
from ..routing import Route, check_routes
from ..structure import Spec, flatten_node
from .base import Backend, BackendState, backend_class

_NOWHERE = 1 << 30  # the position of a keyword-only argument


class BatchSizeRouterBackend(Backend):
    """Holds backends of one module and sends each call to the one that its batch size is routed to.

    The batch size of a call is read from its first tensor that follows the batch; a call of another structure, of which
    it cannot be read, goes to the backend of the largest sizes, which serves or refuses it by its own rules.

    A deactivation that raises has still given back every backend that could be, and leaves the router inactive.

    Threads: as the routed backends; ``infer`` may be called from any thread.

    Args:
        routes: Ranges of batch sizes that follow each other from 1, the last without end; each names a backend.
        backends: The routed backends by name, in their initial state; ``build`` builds them. One that no route names is
            a ConfigError.
    """

    def __init__(self, routes: Sequence[Route], backends: Mapping[str, Backend]) -> None:
        super().__init__()
        check_routes(routes, list(backends))
        unused = [label for label in backends if not any(route.backend == label for route in routes)]
        if unused:
            raise ConfigError(f"backends: no route leads to {unused[0]!r}")
        self.routes = list(routes)
        self.backends = dict(backends)
        self._module: torch.nn.Module | None = None
        self._recipe: Recipe | None = None
        self._read: Callable[[tuple[Any, ...], dict[str, Any]], int] = _unreadable
        self._table: tuple[Callable[..., Any], ...] = ()

    @classmethod
    def of_active(
        cls, routes: Sequence[Route], backends: Mapping[str, Backend], recipe: Recipe, module: torch.nn.Module
    ) -> BatchSizeRouterBackend:
        """A router over backends of `module` that were built already, for calls like `recipe`."""
        router = cls(routes, backends)
        router._module = module
        router._recipe = recipe
        router._state = BackendState.ACTIVE
        router._open()
        return router

    # ---- life ------------------------------------------------------------------------------------------------------

    def _build(self, module: torch.nn.Module, samples: Sequence[Any], **options: Any) -> None:
        calls = [take_apart(module, *as_call(sample)) for sample in samples]
        check_same_structure(calls)
        tensors, sizes = tensor_arguments(calls, options.get("batch_dims"))
        fresh = {label: copy.deepcopy(backend) for label, backend in self.backends.items()}
        _start_all(fresh.values(), lambda backend: backend.build(module, samples, **options))
        self.backends, self._module = fresh, module
        device = calls[0].leaves.tensors[0].device
        self._recipe = Recipe(calls[0].arguments, tensors, sorted(set(sizes)), device)
        self._open()

    def _activate(self) -> None:
        _start_all(self.backends.values(), lambda backend: backend.activate())
        self._open()

    def _deploy(self, device: torch.device | None) -> None:
        _start_all(self.backends.values(), lambda backend: backend.deploy(device))
        self._open()

    def _deactivate(self) -> None:
        errors = []
        for backend in self.backends.values():
            try:
                backend.deactivate()
            except Exception as error:  # noqa: BLE001  the others are given back all the same
                errors.append(error)
        self._table = ()
        if errors:
            self._state = BackendState.INACTIVE
            raise errors[0]

    def _open(self) -> None:
        """Builds the table that a call looks its backend up in: one entry a size, the last one for all above."""
        assert self._recipe is not None
        self._read = batch_reader(self._recipe)
        table = [self.backends[self.routes[0].backend].infer]  # an empty batch
        for route in self.routes:
            table += [self.backends[route.backend].infer] * ((route.last or route.first) - route.first + 1)
        self._table = tuple(table)

    # ---- calls -----------------------------------------------------------------------------------------------------

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        """Serves one call by the backend that its batch size is routed to.

        Raises:
            StateError: Not built or not active, or the module is in training mode.
            InputError: The backend or the module refuses the call, whichever range it is in.
        """
        table = self._table
        try:
            size = self._read(args, kwargs)
        except (AttributeError, IndexError, KeyError, TypeError):
            size = -1
        if not table:
            self._need("infer", BackendState.ACTIVE, BackendState.DEPLOYED)
        if self._module.training:  # type: ignore[union-attr]
            raise StateError("the module was put into training mode; call eval() first")
        try:
            return table[size if size < len(table) else -1](*args, **kwargs)
        except (XPUGraphError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise InputError(f"the module refuses the call: {error}") from error

    __call__ = infer

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        return self.infer(*args, **kwargs)

    def route_of(self, batch_size: int) -> Route:
        """The range that `batch_size` is in; an empty batch is in the first."""
        return next(route for route in self.routes if max(batch_size, 1) in route)

    def backend_for(self, batch_size: int) -> Backend:
        """The backend that serves `batch_size`."""
        return self.backends[self.route_of(batch_size).backend]

    # ---- what it is ------------------------------------------------------------------------------------------------

    def eager_calls(self) -> int:
        """Calls that graphs passed on to eager, summed over the routed backends."""
        return sum(backend.eager_calls() for backend in self.backends.values())

    def describe(self) -> str:
        """The routes, then every routed backend."""
        lines = [f"BatchSizeRouterBackend ({self.state.value})", "  routes by batch size:"]
        lines += [f"    {route}" for route in self.routes]
        for label, backend in self.backends.items():
            lines += [f"  {label}:"] + [f"    {line}" for line in backend.describe().splitlines()]
        return "\n".join(lines)

    def _config_dict(self) -> dict[str, Any]:
        return {
            "routes": [[route.first, route.last, route.backend] for route in self.routes],
            "backends": {label: backend.key() for label, backend in self.backends.items()},
        }

    def to_dict(self) -> dict[str, Any]:
        """Routes, the call, and the routed backends as plain JSON values; no weights.

        Raises:
            StateError: Not built yet.
            ConfigError: The call or a backend has no JSON form.
        """
        if self._recipe is None:
            self._need("to_dict", BackendState.ACTIVE)
        assert self._recipe is not None
        return {
            "backend": "BatchSizeRouterBackend",
            "routes": [[route.first, route.last, route.backend] for route in self.routes],
            "call": recipe_to_dict(self._recipe),
            "backends": {label: backend.to_dict() for label, backend in self.backends.items()},
        }

    @classmethod
    def from_dict(cls, module: torch.nn.Module, state: dict[str, Any]) -> BatchSizeRouterBackend:
        """The router that was saved, for `module`; ``deploy()`` brings its backends to life.

        Raises:
            ConfigError: `state` is not what ``to_dict`` makes, or names a class of backend that is not there.
        """
        try:
            routes = [Route(first, last, label) for first, last, label in state["routes"]]
            backends = {
                label: backend_class(entry["backend"]).from_dict(module, entry)
                for label, entry in state["backends"].items()
            }
            recipe = recipe_from_dict(state["call"])
            recipe.device = next((t.device for t in module.parameters()), recipe.device)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"state: not what BatchSizeRouterBackend.to_dict() makes ({error!r})") from error
        router = cls(routes, backends)
        router._module, router._recipe = module, recipe
        router._state = BackendState.CHECKPOINT_LOADED
        return router


def _start_all(backends: Iterable[Backend], start: Callable[[Backend], object]) -> None:
    """Starts every backend, or none: those that it started are deactivated again, those that ran before go on."""
    started: list[Backend] = []
    try:
        for backend in backends:
            running = backend.state in (BackendState.ACTIVE, BackendState.DEPLOYED)
            start(backend)
            if not running:
                started.append(backend)
    except BaseException:
        for backend in started:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                backend.deactivate()
        raise


def _unreadable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    raise TypeError


def batch_reader(recipe: Recipe) -> Callable[[tuple[Any, ...], dict[str, Any]], int]:
    """A function that reads the batch size of a call, from its first tensor that follows the batch.

    It raises AttributeError, IndexError, KeyError or TypeError for a call of another structure.
    """
    index = next(i for i, t in enumerate(recipe.tensors) if t.batch_dim is not None)
    tensor = recipe.tensors[index]
    dim, rows = tensor.batch_dim, tensor.rows_per_item
    paths = [_path_to(argument.spec, index) for argument in recipe.arguments]
    position = next(i for i, path in enumerate(paths) if path is not None)
    path, argument = paths[position] or [], recipe.arguments[position]
    name, place = argument.name, position if argument.positional else _NOWHERE

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        return (args[place] if place < len(args) else kwargs[name]).size(dim)

    def read_nested(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        value = args[place] if place < len(args) else kwargs[name]
        for step in path:
            value = step(value)
        return value.size(dim) // rows

    return read if not path and rows == 1 else read_nested


def _path_to(spec: Spec, index: int) -> list[Callable[[Any], Any]] | None:
    """How to get from an argument to its tensor `index`; None when it is not in there."""
    if spec[0] == "tensor":
        return [] if spec[1] == index else None
    if spec[0] == "const":
        return None
    for i, child in enumerate(spec[-1]):
        path = _path_to(child, index)
        if path is not None:
            return [_step(spec, i), *path]
    return None


def _step(spec: Spec, i: int) -> Callable[[Any], Any]:
    if spec[0] == "dict":
        key = spec[1][i]
        return lambda value: value[key]
    if spec[0] == "node":
        return lambda value: flatten_node(value)[0][i]
    return lambda value: value[i]
