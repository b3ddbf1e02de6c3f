# SPDX-License-Identifier: MIT
"""tune: from a module and a dataset to a module that serves every batch size by its fastest backend."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, overload

import torch

from ..backends import BatchSizeRouterBackend
from ..batching import BatchDims
from ..environment import device_name, versions
from ..errors import ConfigError
from ..routing import Route
from ..watch import Snapshot, check_module
from ..weights import same_bits
from .estimate import Estimate, estimate
from .profiler import OnStep
from .profiling import sorted_sizes
from .progress import show_progress
from .report import BackendReport, TuningReport
from .strategy import HighestThroughputStrategy, Outcome, TuneStrategy
from .workload import Workload

logger = logging.getLogger("xpugraph")


class TunedModule:
    """A module that serves every batch size by the backend that is fastest there.

    Threads: may be called from any thread and on any stream, as its backends.

    Attributes:
        module: The module that was tuned; it is as it was.
        backend: The router over the chosen backends.
        report: What was tried, measured and chosen.
    """

    def __init__(self, module: torch.nn.Module, backend: BatchSizeRouterBackend, report: TuningReport) -> None:
        self.module, self.backend, self.report = module, backend, report
        self._infer = backend.infer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one batch; see ``BatchSizeRouterBackend.infer``."""
        return self._infer(*args, **kwargs)

    infer = __call__

    @property
    def routes(self) -> list[Route]:
        """Ranges of batch sizes and the labels of their backends."""
        return list(self.backend.routes)

    def describe(self) -> str:
        """The routes, and every routed backend."""
        return self.backend.describe()

    def __reduce_ex__(self, protocol: object) -> Any:
        raise ConfigError(
            "a TunedModule cannot be copied or pickled, since its graphs cannot; xpugraph.save() keeps it"
        )

    def __repr__(self) -> str:
        return f"TunedModule({type(self.module).__name__}: {'; '.join(map(str, self.routes))})"


@overload
def tune(
    module: torch.nn.Module,
    dataset: Any,
    batch_sizes: Sequence[int] | None = None,
    strategy: TuneStrategy | None = None,
    *,
    batch_dims: BatchDims | None = None,
    exact_batch_sizes: bool = False,
    dry_run: Literal[False] = False,
    progress: bool | OnStep = True,
) -> TunedModule: ...


@overload
def tune(
    module: torch.nn.Module,
    dataset: Any,
    batch_sizes: Sequence[int] | None = None,
    strategy: TuneStrategy | None = None,
    *,
    batch_dims: BatchDims | None = None,
    exact_batch_sizes: bool = False,
    dry_run: bool,
    progress: bool | OnStep = True,
) -> TunedModule | Estimate: ...


def tune(
    module: torch.nn.Module,
    dataset: Any,
    batch_sizes: Sequence[int] | None = None,
    strategy: TuneStrategy | None = None,
    *,
    batch_dims: BatchDims | None = None,
    exact_batch_sizes: bool = False,
    dry_run: bool = False,
    progress: bool | OnStep = True,
) -> TunedModule | Estimate:
    """Builds, checks and profiles backends, and routes every batch size to the fastest.

    Args:
        module: In evaluation mode, on its device. It is not changed; attributes and buffers that its forward changes
            are put back.
        dataset: A tensor (one batch), a tuple of arguments, a dict of keyword arguments, a list of those, or a
            DataLoader, of which at most 8 batches are taken. Its tensors are brought to the module's device.
        batch_sizes: The sizes that will be served: they are always profiled, and graphs are recorded up to the largest.
            None: 1 and the largest batch of the dataset.
        strategy: Default: ``HighestThroughputStrategy()``.
        batch_dims: Which dimension of each tensor follows the batch, as in ``XPUGraphBackend.build``.
        exact_batch_sizes: Graphs are recorded of exactly `batch_sizes` too, beside the grid.
        dry_run: Build nothing; run the module a few times and return an estimate of sizes, bytes and time.
        progress: True: a bar on terminals. A function: told of every step. False: nothing.

    Returns:
        The tuned module; of a dry run an `Estimate`, which prints.

    Raises:
        ConfigError: An argument does not fit; names it.
        BuildError: No backend is left; says why of each.
    """
    check_module(module)
    chosen = HighestThroughputStrategy() if strategy is None else strategy
    if not isinstance(chosen, TuneStrategy):
        raise ConfigError(f"strategy={strategy!r}; a strategy such as HighestThroughputStrategy() is needed")
    if not isinstance(exact_batch_sizes, bool):
        raise ConfigError(f"exact_batch_sizes={exact_batch_sizes!r}; accepted are True and False")
    sizes = None if batch_sizes is None else sorted_sizes("batch_sizes", batch_sizes)
    start = time.perf_counter()
    # Not in inference mode, whichever mode the caller is in: its tensors cannot be written to outside of it.
    with torch.inference_mode(False), torch.no_grad():
        workload = Workload(module, dataset, sizes, batch_dims, exact_batch_sizes)
        if dry_run:
            return estimate(module, workload, chosen)
        _log_start(module, workload, chosen)
        with _progress(progress) as on_step, _restored(module):
            outcome = chosen.run(module, workload, on_step)
    report = _report(outcome, workload, chosen, time.perf_counter() - start)
    logger.info("selected %s", "; ".join(map(str, report.routes)))
    return TunedModule(module, outcome.router, report)


@contextmanager
def _restored(module: torch.nn.Module) -> Iterator[None]:
    """Puts back what the forwards of a tuning changed: attributes, and values of buffers."""
    snapshot = Snapshot(module)
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        snapshot.changes()
        for buffer, before in buffers:
            if not same_bits(buffer, before):
                buffer.copy_(before)


def _progress(progress: bool | OnStep) -> AbstractContextManager[OnStep]:
    if callable(progress):
        return nullcontext(progress)
    return show_progress() if progress else nullcontext(_silent)


def _silent(step: object) -> None:
    pass


def _log_start(module: torch.nn.Module, workload: Workload, strategy: TuneStrategy) -> None:
    logger.info("tuning module %s", type(module).__name__)
    logger.info("  parameters: %d", sum(parameter.numel() for parameter in module.parameters()))
    logger.info("  device: %s", workload.device)
    logger.info("  batch sizes: %s", ", ".join(map(str, workload.recipe.batch_sizes)))
    logger.info("  strategy: %s", strategy.describe())


def _report(outcome: Outcome, workload: Workload, strategy: TuneStrategy, seconds: float) -> TuningReport:
    fields = BackendReport.__dataclass_fields__
    return TuningReport(
        device=device_name(workload.device.type),
        versions=versions(),
        strategy=strategy.describe(),
        batch_sizes=outcome.batch_sizes,
        backends=[BackendReport(**{name: getattr(c, name) for name in fields}) for c in outcome.candidates],
        routes=outcome.router.routes,
        default=outcome.default,
        batch=workload.batch_text(),
        latency_budget_ms=getattr(strategy, "latency_budget_ms", None),
        reserved_while_profiling=outcome.reserved_while_profiling,
        reserved_for_serving=outcome.reserved_for_serving,
        seconds=seconds,
    )
