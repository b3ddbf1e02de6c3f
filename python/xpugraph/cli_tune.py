# SPDX-License-Identifier: MIT
"""The commands ``xpugraph tune`` and ``xpugraph inspect``."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from .cli_options import (
    DEVICE_HELP,
    LOG_WIDTH,
    check_checkpoint,
    check_number,
    check_output,
    names,
    sizes,
    torch_device,
)

if TYPE_CHECKING:
    import torch

_DTYPES = ("float32", "float16", "bfloat16", "float64")


def tune(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="What makes the model: MODULE is importable or a .py file; FACTORY() returns the module, or the "
            "module and a dataset. Or the name of a model of `xpugraph bench`.",
        ),
    ],
    input_shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Shape of one item of an input, without the batch, and its dtype: 3,224,224 or 256:bfloat16. Once for "
            "each input of forward. Not needed when FACTORY returns a dataset."
        ),
    ] = None,
    batch_sizes: Annotated[
        str, typer.Option(help="The sizes that will be served, separated by commas.")
    ] = "1,2,4,8,16,32,64",
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    backends: Annotated[
        str | None, typer.Option(help="Backends to try, separated by commas; all if not given.")
    ] = None,
    objective: Annotated[str, typer.Option(help="throughput or latency.")] = "throughput",
    latency_budget_ms: Annotated[
        float | None, typer.Option(help="Only sizes within this latency count for the throughput.")
    ] = None,
    min_gain: Annotated[
        float, typer.Option(help="How much faster a backend must be to take a range of batch sizes.")
    ] = 0.10,
    max_recorded_batch_size: Annotated[int, typer.Option(help="The largest batch size to record a graph of.")] = 256,
    exact_batch_sizes: Annotated[
        bool, typer.Option("--exact-batch-sizes", help="Record exactly the --batch-sizes too, beside 1, 2, 4, 8, 16, …")
    ] = False,
    save_path: Annotated[Path | None, typer.Option("--save", help="Write a checkpoint: a zip, or a folder.")] = None,
    folder: Annotated[bool, typer.Option("--folder", help="Make the checkpoint a folder.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report to this file.")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw latency over batch size: .png, .svg or .pdf.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell sizes, expected bytes and time.")] = False,
) -> None:
    """Find the fastest backend for each batch size of a model, and keep the result."""
    size_list = sizes(batch_sizes, "--batch-sizes")
    check_output(json_file, "--json")
    check_output(plot_file, "--plot", (".png", ".svg", ".pdf"))
    check_checkpoint(save_path, folder)
    _check_numbers(min_gain, latency_budget_ms, max_recorded_batch_size)
    if objective not in ("throughput", "latency"):
        raise typer.BadParameter(f"{objective!r}: accepted are throughput and latency", param_hint="--objective")
    if objective == "latency" and latency_budget_ms is not None:
        raise typer.BadParameter("a budget is for --objective throughput", param_hint="--latency-budget-ms")
    where = torch_device(device)

    from . import tuning
    from .backends import named_backends
    from .checkpoint import save
    from .errors import XPUGraphError

    makers = named_backends(max_recorded_batch_size)
    chosen = list(makers) if backends is None else names(backends, "--backends", list(makers))
    module, dataset = _model(model, input_shape or [], size_list[-1])
    console = Console()
    try:
        strategy = tuning.HighestThroughputStrategy(
            [makers[name]() for name in chosen],
            min_gain=min_gain,
            objective=objective,
            latency_budget_ms=latency_budget_ms,
        )
        with _progress(console) as progress:
            tuned = tuning.tune(
                module.eval().to(where),
                dataset,
                size_list,
                strategy,
                exact_batch_sizes=exact_batch_sizes,
                dry_run=dry_run,
                progress=progress,
            )
        if isinstance(tuned, tuning.Estimate):
            typer.echo(str(tuned))
            return
        (console if console.is_terminal else Console(width=LOG_WIDTH)).print(tuned.report)
        if save_path is not None:
            typer.echo(f"saved {save(tuned, save_path, folder or None)}")
        if json_file is not None:
            tuned.report.write_json(json_file)
        if plot_file is not None:
            tuned.report.plot(plot_file)
    except (XPUGraphError, OSError) as error:
        typer.echo(f"xpugraph tune: {error}", err=True)
        raise typer.Exit(1) from error


def inspect(
    checkpoint: Annotated[Path, typer.Argument(help="A zip or folder that `xpugraph tune --save` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what a checkpoint holds: module, routes, measurements, versions. Needs no device."""
    from .checkpoint import inspect_checkpoint
    from .errors import XPUGraphError

    try:
        info = inspect_checkpoint(checkpoint)
    except XPUGraphError as error:
        typer.echo(f"xpugraph inspect: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(json.dumps(info.to_dict(), indent=1) if as_json else str(info))


def _check_numbers(min_gain: float, latency_budget_ms: float | None, max_recorded_batch_size: int) -> None:
    budget = latency_budget_ms or 0.0
    check_number(min_gain, "--min-gain", 0 <= min_gain < 1, "a ratio from 0 to less than 1")
    check_number(latency_budget_ms, "--latency-budget-ms", 0 < budget < float("inf"), "a number above 0")
    largest = max_recorded_batch_size
    check_number(largest, "--max-recorded-batch-size", largest >= 1, "a whole number from 1")


def _progress(console: Console) -> Any:
    from contextlib import nullcontext

    from .tuning.progress import line_progress, show_progress

    if sys.stderr.isatty():
        return show_progress()
    return nullcontext(line_progress(lambda line: print(line, file=sys.stderr, flush=True)))


def _model(name: str, input_shapes: list[str], largest: int) -> tuple[torch.nn.Module, Any]:
    """The module and a dataset for it."""
    import torch

    made, shapes = _made(name)
    module, dataset = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise typer.BadParameter(
            f"{name!r} returned a {type(made).__name__}: accepted are an nn.Module, and a tuple of one and a dataset",
            param_hint="MODULE:FACTORY",
        )
    shapes = [_shape(text) for text in input_shapes] or shapes
    if dataset is None and not shapes:
        raise typer.BadParameter(
            f"give the shape of each input, or let {name} return a dataset beside the module",
            param_hint="--input-shape",
        )
    if shapes and (dataset is None or input_shapes):
        generator = torch.Generator().manual_seed(0)
        try:
            dataset = tuple(torch.randn(largest, *shape, generator=generator).to(dtype) for shape, dtype in shapes)
        except RuntimeError as error:
            raise typer.BadParameter(f"no batch of {largest} items can be made: {error}") from error
    return module, dataset


def _made(name: str) -> tuple[Any, list[tuple[tuple[int, ...], torch.dtype]]]:
    """What the factory returned, and the shapes of inputs that are known."""
    import torch

    from .models import make_model, model_names

    if name in model_names():
        module, shape = make_model(name)
        return module, [(shape, torch.float32)]
    target, colon, factory = name.rpartition(":")
    if not colon or not target or not factory:
        listed = ", ".join(model_names())
        raise typer.BadParameter(
            f"{name!r}: accepted are MODULE:FACTORY, FILE.py:FACTORY, and {listed}", param_hint="MODULE:FACTORY"
        )
    found = getattr(_import(target), factory, None)
    if not callable(found):
        what = "has no" if found is None else f"has a {type(found).__name__}, which is no function, as"
        raise typer.BadParameter(f"{target} {what} {factory!r}", param_hint="MODULE:FACTORY")
    if isinstance(found, torch.nn.Module):
        return found, []
    try:
        return found(), []
    except Exception as error:  # noqa: BLE001  it is the user's code
        raise typer.BadParameter(
            f"{name} raised {type(error).__name__}: {error}", param_hint="MODULE:FACTORY"
        ) from error


def _import(target: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # to stay: the factory may import too
    try:
        if not target.endswith(".py"):
            if target.startswith("."):
                raise ImportError("relative names have no meaning here")
            return importlib.import_module(target)
        spec = importlib.util.spec_from_file_location(Path(target).stem, target)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(spec.name, module)
        spec.loader.exec_module(module)
        return module
    except (ImportError, OSError) as error:
        raise typer.BadParameter(f"{target!r} cannot be imported: {error}", param_hint="MODULE:FACTORY") from error


def _shape(text: str) -> tuple[tuple[int, ...], torch.dtype]:
    import torch

    lengths, _, dtype = text.partition(":")
    parts = [part.strip() for part in lengths.split(",")] if lengths.strip() else []
    if not all(part.isdecimal() and int(part) > 0 for part in parts) or (dtype or "float32") not in _DTYPES:
        raise typer.BadParameter(
            f"{text!r}: accepted are whole numbers from 1, separated by commas, then optionally a colon and one of "
            f"{', '.join(_DTYPES)}; for other inputs let FACTORY return a dataset",
            param_hint="--input-shape",
        )
    return tuple(map(int, parts)), getattr(torch, dtype or "float32")
