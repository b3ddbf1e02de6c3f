# SPDX-License-Identifier: MIT
"""Measures backends against each other: the latency of a call at each batch size, and whether its values are right."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils import _pytree as pytree

from . import _native
from .environment import device_name, unseen_gpu, versions
from .errors import ConfigError
from .models import import_torchvision, make_model, model_names
from .precision import tf32_noise
from .timing import Timing, stream_synchronizer, time_interleaved

if TYPE_CHECKING:
    from .tuning import ProfilingConfig

TOLERANCE = 2e-3  # of the largest value, beside what TF32 does: kernels are chosen by batch size, and differ by less
_MIN_GAIN = 0.02
DEVICES = ("auto", "xpu", "cuda", "sycl")  # what ``--device`` accepts, all but auto also with an index: xpu:1


class Backend(Protocol):
    """The part of a backend that is measured."""

    def build(self, module: torch.nn.Module, samples: Sequence[Any]) -> Any:
        """Prepares the module for batches up to that of the largest sample."""

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one batch."""

    def deactivate(self) -> Any:
        """Gives back what `build` took."""


@dataclass(frozen=True)
class BenchConfig:
    """What to measure; `backends` and `models` are names, sizes are batch sizes."""

    models: Sequence[str]
    batch_sizes: Sequence[int]
    backends: Sequence[str]
    device: torch.device
    min_time: float = 0.5
    max_recorded_batch_size: int = 256


@dataclass
class ModelResult:
    """What one model's backends did. Every list in `timings` follows `batch_sizes`; None is what was not measured."""

    batch_sizes: list[int]
    timings: dict[str, list[Timing | None]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    mismatches: dict[str, dict[int, float]] = field(default_factory=dict)
    served_by_eager: dict[str, list[int]] = field(default_factory=dict)
    dropped_batch_sizes: dict[int, str] = field(default_factory=dict)
    recorded_batch_sizes: list[int] = field(default_factory=list)
    record_seconds: float | None = None
    pool_bytes: int | None = None
    inductor_compiles: int = 0
    routes: list[list[Any]] = field(default_factory=list)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> ModelResult:
        """Returns what `to_dict` wrote, as far as a table or a plot shows it."""
        columns = [state[key] for key in ("latency_ms", "latency_p25_ms", "latency_p75_ms", "repetitions")]
        timings = {
            name: [None if cell[0] is None else Timing(*cell) for cell in zip(*(c[name] for c in columns), strict=True)]
            for name in columns[0]
        }
        fields = ("recorded_batch_sizes", "record_seconds", "pool_bytes", "inductor_compiles", "routes", "failed")
        return cls(list(state["batch_sizes"]), timings, **{name: state[name] for name in fields})

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form. `routes` are those of the auto backend: first and last batch size, backend."""

        def column(attribute: str) -> dict[str, list[float | None]]:
            return {
                name: [None if timing is None else round(getattr(timing, attribute), 6) for timing in row]
                for name, row in self.timings.items()
            }

        return {
            "batch_sizes": self.batch_sizes,
            "latency_ms": column("median"),
            "latency_p25_ms": column("p25"),
            "latency_p75_ms": column("p75"),
            "repetitions": column("repetitions"),
            "routes": self.routes,
            "recorded_batch_sizes": self.recorded_batch_sizes,
            "record_seconds": self.record_seconds,
            "pool_bytes": self.pool_bytes,
            "inductor_compiles": self.inductor_compiles,
            "failed": self.failed,
            "served_by_eager": self.served_by_eager,
            "dropped_batch_sizes": {str(size): reason for size, reason in self.dropped_batch_sizes.items()},
            "mismatches": {
                name: {str(size): error for size, error in row.items()} for name, row in self.mismatches.items()
            },
        }


@dataclass
class BenchResult:
    """All models' results, and where they were measured."""

    device: str
    versions: dict[str, str]
    models: dict[str, ModelResult] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> BenchResult:
        """Returns what `to_dict` wrote, as far as a table or a plot shows it."""
        models = {name: ModelResult.from_dict(model) for name, model in state["models"].items()}
        return cls(state["device"], dict(state["versions"]), models)

    @property
    def ok(self) -> bool:
        """Whether every backend served every batch size with eager's values."""
        return not any(model.failed or model.mismatches for model in self.models.values())

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form, schema 1."""
        models = {name: model.to_dict() for name, model in self.models.items()}
        return {"schema": 1, "device": self.device, "versions": self.versions, "models": models}


class Auto:
    """What ``tune`` chooses, as a backend that is measured beside those it chose from.

    A backend takes a range of batch sizes when it is 2% faster there: a table shows how near routing comes to the best
    of each size. (``tune``'s own default of 10% asks for fewer changes of backend.)

    Args:
        config: What is measured.
        exact_batch_sizes: As in ``tune``.
        profiling_config: As in ``HighestThroughputStrategy``.
    """

    def __init__(
        self, config: BenchConfig, exact_batch_sizes: bool = False, profiling_config: ProfilingConfig | None = None
    ) -> None:
        self._config, self._exact, self._profiling = config, exact_batch_sizes, profiling_config
        self.routes: list[list[Any]] = []

    def build(self, module: torch.nn.Module, samples: Sequence[Any]) -> None:
        """Tunes the module on rows like the sample's."""
        from .backends import named_backends
        from .tuning import HighestThroughputStrategy, tune

        backends = [make() for make in named_backends(self._config.max_recorded_batch_size).values()]
        strategy = HighestThroughputStrategy(backends, self._profiling, min_gain=_MIN_GAIN)
        sizes = self._config.batch_sizes
        tuned = tune(module, samples[0], sizes, strategy, exact_batch_sizes=self._exact, progress=False)
        self._router = tuned.backend
        self.routes = [[route.first, route.last, route.backend] for route in tuned.routes]
        self.infer = self._router.infer
        self.deactivate = self._router.deactivate
        self.eager_calls = self._router.eager_calls


def backend_factories() -> dict[str, Callable[[BenchConfig], Backend]]:
    """Returns what makes each backend, by the name that ``--backends`` accepts."""
    from .backends import named_backends

    def named(name: str) -> Callable[[BenchConfig], Backend]:
        return lambda config: named_backends(config.max_recorded_batch_size)[name]()

    return {**{name: named(name) for name in named_backends()}, "auto": Auto}


def parse_device(name: str) -> tuple[str, int | None]:
    """Returns the kind of device, one of `DEVICES`, and the index that a name as of ``--device`` has.

    Raises:
        ConfigError: It is none.
    """
    kind, colon, index = name.partition(":")
    if kind not in DEVICES or (colon and (kind == "auto" or not index.isdecimal())):
        raise ConfigError(
            f"unknown device {name!r}: accepted are {', '.join(DEVICES)}, and with an index xpu:1, cuda:1"
        )
    return kind, int(index) if colon else None


def resolve_device(name: str = "auto") -> torch.device:
    """Returns the device that ``--device`` names.

    `auto` is the first of xpu and cuda that is here and that this build records graphs on, else the SYCL CPU device. It
    warns when that is so although torch was built for XPU. Only `auto` and `sycl` load the extension. A GPU that is
    named with its index becomes the current one, since streams are asked of that.

    Raises:
        ConfigError: The name is unknown, or torch sees no such device.
    """
    chosen, index = parse_device(name)
    gpus = [kind for kind in ("xpu", "cuda") if getattr(torch, kind).is_available()]
    if chosen == "auto":
        chosen = next((kind for kind in gpus if kind in _native.load().runtimes()), "sycl")
        if chosen == "sycl" and (unseen := unseen_gpu()) is not None:
            warnings.warn(f"the sycl CPU device is taken: {unseen}", UserWarning, stacklevel=2)
    if chosen == "sycl":
        from . import enable_sycl_device

        _check_index(chosen, index, 1)
        return enable_sycl_device()
    if chosen not in gpus:
        raise ConfigError(f"torch {torch.__version__} sees no {chosen} device: here are {', '.join([*gpus, 'sycl'])}")
    if index is None:
        return torch.device(chosen)
    module = getattr(torch, chosen)
    _check_index(chosen, index, module.device_count())
    module.set_device(index)
    return torch.device(chosen, index)


def _check_index(kind: str, index: int | None, count: int) -> None:
    if index is not None and index >= count:
        here = ", ".join(f"{kind}:{number}" for number in range(count))
        raise ConfigError(f"there is no {kind}:{index}: here are {here}")


def check_names(what: str, names: Iterable[str], accepted: Iterable[str]) -> None:
    """Raises ConfigError for the first of the names that is not an accepted one."""
    accepted = list(accepted)
    for name in names:
        if name not in accepted:
            raise ConfigError(f"unknown {what} {name!r}: accepted are {', '.join(accepted)}")


class Progress(Protocol):
    """What is told about the steps of a run."""

    def __call__(self, done: int, total: int, model: str, backend: str, batch_size: int | None) -> None:
        """Reports the step that begins; `batch_size` is None while a backend builds."""


def run_bench(
    config: BenchConfig,
    progress: Progress = lambda done, total, model, backend, batch_size: None,
    factories: Mapping[str, Callable[[BenchConfig], Backend]] | None = None,
) -> BenchResult:
    """Measures every model of the configuration.

    A backend that fails is named with its reason in the result, and the others go on.

    Args:
        config: What to measure.
        progress: Told of every step.
        factories: The backends to choose from instead of `backend_factories()`.

    Raises:
        ConfigError: A model or backend has an unknown name.
        MissingRuntimeError: A model needs torchvision, which is not there.
    """
    factories = backend_factories() if factories is None else factories
    check_names("backend", config.backends, factories)
    check_names("model", config.models, model_names())
    if set(config.models) - {"mlp"}:
        import_torchvision()
    result = BenchResult(device_name(config.device.type), versions())
    for index, name in enumerate(config.models):
        run = _ModelRun(name, config, factories, progress, index)
        with torch.no_grad():
            result.models[name] = run.measure()
    return result


class _ModelRun:
    """One model: builds every backend, then takes them in turns at each batch size."""

    def __init__(
        self,
        name: str,
        config: BenchConfig,
        factories: Mapping[str, Callable[[BenchConfig], Backend]],
        progress: Progress,
        index: int,
    ) -> None:
        self.name, self.config, self.factories, self.progress = name, config, factories, progress
        module, shape = make_model(name)
        self.module = module.to(config.device)
        noise = torch.randn(max(config.batch_sizes), *shape, generator=torch.Generator().manual_seed(1))
        self.sample = noise.to(config.device)
        self.synchronize = stream_synchronizer(config.device)
        self.result = ModelResult(list(config.batch_sizes))
        steps = len(config.batch_sizes) + 1  # of each backend; building it is one
        self.done, self.total = index * steps * len(config.backends), steps * len(config.backends) * len(config.models)

    def measure(self) -> ModelResult:
        """Returns the model's result; the backends are deactivated by then."""
        backends = self._build()
        try:
            for size in self.config.batch_sizes:
                self._measure_batch_size(backends, size)
        finally:
            for name, backend in backends.items():
                try:
                    backend.deactivate()
                except Exception as error:
                    self.result.failed.setdefault(name, f"at its end: {type(error).__name__}: {error}")
        return self.result

    def _build(self) -> dict[str, Backend]:
        backends = {}
        for name in self.config.backends:
            self.progress(self.done, self.total, self.name, name, None)
            self.result.timings[name] = []
            try:
                backend = self.factories[name](self.config)
                backend.build(self.module, samples=[self.sample])
                backends[name] = backend
                self._describe_graphs(backend)
                if compiles := getattr(backend, "inductor_compiles", 0):
                    self.result.inductor_compiles = compiles
            except Exception as error:  # whatever a backend trips over is a result here
                self._fail(name, error)
            self.done += 1
        return backends

    def _describe_graphs(self, backend: Any) -> None:
        self.result.routes = self.result.routes or getattr(backend, "routes", [])
        if self.result.recorded_batch_sizes or not hasattr(backend, "recorded_batch_sizes"):
            return
        self.result.recorded_batch_sizes = list(backend.recorded_batch_sizes)
        self.result.dropped_batch_sizes = dict(backend.dropped_batch_sizes)
        self.result.record_seconds = backend.record_seconds
        self.result.pool_bytes = backend.pool_stats()["reserved"]

    def _measure_batch_size(self, backends: Mapping[str, Backend], size: int) -> None:
        batch = self.sample[:size].clone()
        good = {name: backend for name, backend in backends.items() if name not in self.result.failed}
        for name, backend in list(good.items()):
            self.progress(self.done, self.total, self.name, name, size)
            try:
                before = _eager_calls(backend)
                expected = self.module(batch)
                error = relative_error(backend.infer(batch), expected)
                if _eager_calls(backend) > before:
                    self.result.served_by_eager.setdefault(name, []).append(size)
            except Exception as reason:
                self._fail(name, reason, size)
                del good[name]
                continue
            if not error <= TOLERANCE + self._noise(expected, batch):  # NaN is a mismatch too
                self.result.mismatches.setdefault(name, {})[size] = error
        timings = self._time(good, batch, size)
        self.done += len(self.config.backends)
        for name, row in self.result.timings.items():
            row.append(timings.get(name))

    def _noise(self, expected: Any, batch: torch.Tensor) -> float:
        """By how much right results may differ for TF32's sake, over the largest value."""
        leaves = [leaf for leaf in pytree.tree_leaves(expected) if isinstance(leaf, torch.Tensor)]
        noise = tf32_noise(self.config.device, leaves, lambda: pytree.tree_leaves(self.module(batch)))
        return max((n / max(float(x.abs().max()), 1e-30) for n, x in zip(noise, leaves, strict=True) if n), default=0.0)

    def _time(self, backends: dict[str, Backend], batch: torch.Tensor, size: int) -> dict[str, Timing]:
        turn = ""

        def on_turn(name: str) -> None:
            nonlocal turn
            turn = name
            self.progress(self.done, self.total, self.name, name, size)

        while backends:
            calls = {name: partial(backend.infer, batch) for name, backend in backends.items()}
            try:
                return time_interleaved(calls, self.synchronize, self.config.min_time, on_turn=on_turn)
            except Exception as reason:
                self._fail(turn, reason, size)
                del backends[turn]
        return {}

    def _fail(self, name: str, error: Exception, size: int | None = None) -> None:
        where = "" if size is None else f"at batch size {size}: "
        self.result.failed[name] = f"{where}{type(error).__name__}: {error}"


def _eager_calls(backend: Any) -> int:
    """Returns how many calls a backend of graphs has passed on to eager; 0 of any other."""
    return backend.eager_calls() if hasattr(backend, "eager_calls") else 0


def relative_error(actual: Any, expected: Any) -> float:
    """Returns the largest difference between two outputs over the largest expected value; inf where shapes differ."""
    actual_leaves, actual_spec = pytree.tree_flatten(actual)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    if actual_spec != expected_spec:
        return float("inf")
    return max(map(_leaf_error, actual_leaves, expected_leaves), default=0.0)


def _leaf_error(actual: Any, expected: Any) -> float:
    if not isinstance(expected, torch.Tensor):
        return 0.0 if actual == expected else float("inf")
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    if not expected.numel():
        return 0.0
    actual, expected = actual.cpu().double(), expected.cpu().double()
    error = (actual - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    return float(error)
