# SPDX-License-Identifier: MIT
"""Progress of a tuning: backend, batch size and free memory; a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..units import mebibytes
from .profiler import OnStep, TuningStep


def step_text(step: TuningStep) -> str:
    """One step in words."""
    what = f"building {step.backend}" if step.batch_size is None else f"batch {step.batch_size}, {step.backend}"
    return f"{what} ({mebibytes(step.free_bytes)} free)"


def line_progress(write: Callable[[str], object]) -> OnStep:
    """Writes a line for every build and every batch size."""
    last: object = None

    def on_step(step: TuningStep) -> None:
        nonlocal last
        if step.batch_size is None or step.batch_size != last:
            write(f"[{step.done + 1}/{step.total}] {step_text(step)}")
        last = step.batch_size

    return on_step


@contextmanager
def show_progress() -> Iterator[OnStep]:
    """Yields what shows a step: a bar where stderr is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # No thread that refreshes, beside what is timed.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("tuning")

        def on_step(step: TuningStep) -> None:
            bar.start()
            bar.update(task, completed=step.done, total=step.total, description=step_text(step))
            bar.refresh()
            if step.batch_size is None:
                bar.stop()  # a build shows a bar of its own

        yield on_step
