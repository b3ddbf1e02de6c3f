# SPDX-License-Identifier: MIT
"""The command ``xpugraph``. Exit code 2 is a bad option, 1 a run in which something failed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from . import cli_selftest, cli_tune
from ._version import __version__
from .cli_options import DEVICE_HELP, LOG_WIDTH, check_output, names, sizes, torch_device

if TYPE_CHECKING:
    from .bench import BenchConfig, BenchResult, Progress

main = typer.Typer(
    name="xpugraph",
    help="Serves a dynamic batch of a PyTorch model from SYCL command graphs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
main.command()(cli_tune.tune)
main.command()(cli_tune.inspect)
main.command()(cli_selftest.selftest)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"xpugraph {__version__}")
        raise typer.Exit


@main.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@main.command()
def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Tell what is here: torch, SYCL runtime and adapters, devices, and the runtimes this build has."""
    from . import environment

    if as_json:
        typer.echo(json.dumps(environment.collect(), indent=1))
        return
    for topic in environment.topics():  # one by one: a driver that crashes takes only what comes after it
        typer.echo("\n".join(environment.lines(environment.collect([topic]))))


@main.command()
def bench(
    models: Annotated[str, typer.Option(help="Models, separated by commas.")] = "mlp,mobilenet_v3_small,resnet18",
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,3,8,17,64",
    backends: Annotated[str | None, typer.Option(help="Backends, separated by commas; all if not given.")] = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw latency over batch size: .png, .svg or .pdf.")
    ] = None,
    min_time: Annotated[float, typer.Option(help="Seconds to spend on each backend and batch size.")] = 0.5,
    max_recorded_batch_size: Annotated[int, typer.Option(help="The largest batch size to record a graph of.")] = 256,
) -> None:
    """Measure the latency of models at several batch sizes, backend by backend."""
    config = _bench_config(models, batch_sizes, backends, device, min_time, max_recorded_batch_size)
    check_output(json_file, "--json")
    check_output(plot_file, "--plot", (".png", ".svg", ".pdf"))

    from . import bench_report
    from .bench import run_bench
    from .files import write_json

    with _progress() as progress:
        result: BenchResult = run_bench(config, progress)
    console = Console()
    bench_report.print_tables(result, console if console.is_terminal else Console(width=LOG_WIDTH))
    if json_file is not None:
        write_json(result.to_dict(), json_file)
    if plot_file is not None:
        bench_report.plot(result, plot_file)
    if not result.ok:
        raise typer.Exit(1)


def _bench_config(
    models: str, batch_sizes: str, backends: str | None, device: str, min_time: float, max_recorded_batch_size: int
) -> BenchConfig:
    from .bench import BenchConfig, backend_factories
    from .models import model_names

    if not 0 < min_time < float("inf"):
        raise typer.BadParameter(f"{min_time} is not a positive number of seconds", param_hint="--min-time")
    if max_recorded_batch_size < 1:
        hint = "--max-recorded-batch-size"
        raise typer.BadParameter(f"{max_recorded_batch_size} is not a whole number from 1", param_hint=hint)
    model_list = names(models, "--models", model_names())
    size_list = sizes(batch_sizes, "--batch-sizes")
    known = list(backend_factories())
    backend_list = known if backends is None else names(backends, "--backends", known)
    where = torch_device(device)
    _check_torchvision(model_list)
    return BenchConfig(model_list, size_list, backend_list, where, min_time, max_recorded_batch_size)


def _check_torchvision(models: Sequence[str]) -> None:
    from .models import import_torchvision

    if set(models) - {"mlp"}:
        try:
            import_torchvision()
        except ImportError as error:
            raise typer.BadParameter(str(error), param_hint="--models") from error


@contextmanager
def _progress() -> Iterator[Progress]:
    """Yields a bar where stderr is a terminal, and else plain lines, one for each build and batch size."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_progress(lambda line: print(line, file=sys.stderr, flush=True))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:  # no thread beside what is timed
        task = bar.add_task("")

        def progress(done: int, total: int, model: str, backend: str, batch_size: int | None) -> None:
            bar.start()
            bar.update(task, completed=done, total=total, description=_step(model, backend, batch_size))
            bar.refresh()
            if batch_size is None:
                bar.stop()  # a build shows a bar of its own

        yield progress


def _step(model: str, backend: str, batch_size: int | None) -> str:
    return f"{model}: building {backend}" if batch_size is None else f"{model}: batch {batch_size}, {backend}"


def _line_progress(write: Callable[[str], None]) -> Progress:
    last: tuple[str, int | None] = ("", None)

    def progress(done: int, total: int, model: str, backend: str, batch_size: int | None) -> None:
        nonlocal last
        if batch_size is None or (model, batch_size) != last:
            step = _step(model, backend, None) if batch_size is None else f"{model}: batch {batch_size}"
            write(f"[{done + 1}/{total}] {step}")
        last = (model, batch_size)

    return progress


if __name__ == "__main__":
    main()
