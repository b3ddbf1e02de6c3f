# SPDX-License-Identifier: MIT
"""The command ``xpugraph selftest``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .cli_options import DEVICE_HELP, LOG_WIDTH, check_device, check_output, names

if TYPE_CHECKING:
    import torch

    from .selftest import Check, SelftestResult

_ISSUES = "the issue tracker of the place you got xpugraph from"
_COLOURS = {"pass": "green", "fail": "red", "skip": "yellow"}


def selftest(
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    models: Annotated[
        str | None, typer.Option(help="Models to record, separated by commas; all if not given, none with --quick.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="No models, and fewer repetitions.")] = False,
    json_file: Annotated[Path, typer.Option("--json", help="Write the report to this file.")] = Path(
        "xpugraph-selftest.json"
    ),
) -> None:
    """Try everything on this machine's device; ends in PASS, or in a list of what failed and what to report."""
    from .files import write_json
    from .models import model_names
    from .selftest import SelftestConfig, begin, run_selftest

    if models is None:
        chosen = [] if quick else model_names()
    else:
        chosen = names(models, "--models", model_names())
    check_output(json_file, "--json")
    check_device(device)
    result = begin()
    result.running = "choosing the device"
    write_json(result.to_dict(), json_file)  # from here on a crash leaves a report

    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=LOG_WIDTH)
    where, problem = _chosen(device)
    config = SelftestConfig(where, chosen, quick, device == "auto", problem)
    run_selftest(
        config, lambda check: _print(console, check), lambda found: write_json(found.to_dict(), json_file), result
    )
    _summary(console, result, json_file)
    if not result.ok:
        raise typer.Exit(1)


def _chosen(device: str) -> tuple[torch.device, str | None]:
    """The device, and why it cannot be enabled.

    An xpu device is tested wherever torch sees one: that this build cannot record on it is the first finding.
    """
    import warnings

    import torch

    from .bench import resolve_device
    from .errors import ConfigError

    name = "xpu" if device == "auto" and torch.xpu.is_available() else device
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that no GPU is seen is a check's finding
            return resolve_device(name), None
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error
    except (ImportError, RuntimeError) as error:
        return torch.device("cpu"), f"the {name} device cannot be had: {error}"


def _print(console: Console, check: Check) -> None:
    colour = _COLOURS[check.status]
    line = f"[{colour}]{check.status}[/] {escape(check.name)} [dim]({check.seconds:.1f} s)[/] {escape(check.detail)}"
    _say(console, line)
    if check.advice:
        _say(console, f"     known: {escape(check.advice)}")


def _summary(console: Console, result: SelftestResult, json_file: Path) -> None:
    _say(console, f"\ndevice: {escape(result.device)}")
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    _say(console, f"versions: {escape(versions)}")
    _say(console, f"report: {escape(str(json_file))}")
    if result.ok:
        skipped = sum(check.status == "skip" for check in result.checks)
        more = f" ({skipped} skipped)" if skipped else ""
        _say(console, f"[green]PASS[/]: {len(result.checks) - skipped} checks{more}")
        return
    _say(console, f"[red]FAIL[/]: {len(result.failures)} of {len(result.checks)} checks")
    for check in result.failures:
        _say(console, f"  {escape(check.name)}: {escape(check.detail)}")
    _say(
        console,
        f"Please report this in {_ISSUES}: attach {escape(json_file.name)} (it holds versions, device names and "
        "results, and no paths or names), and say what you were about to run. docs/troubleshooting.md has known faults "
        "by message.",
    )


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)
