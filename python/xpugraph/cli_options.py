# SPDX-License-Identifier: MIT
"""Options that several commands have: their values, checked. Whatever is wrong is a typer.BadParameter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import torch

LOG_WIDTH = 160  # of tables where no terminal limits it
DEVICE_HELP = "auto (xpu, else cuda, else sycl), xpu, cuda or sycl; of several GPUs xpu:1 and the like."


def _items(text: str, option: str, accepted: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise typer.BadParameter(f"{text!r} has an empty entry: accepted are {accepted}", param_hint=option)
    if len(set(items)) < len(items):
        raise typer.BadParameter(f"{text!r} names an entry twice: accepted are {accepted}", param_hint=option)
    return items


def names(text: str, option: str, accepted: Sequence[str]) -> list[str]:
    """The entries of a list, each one of the accepted."""
    items = _items(text, option, ", ".join(accepted))
    for item in items:
        if item not in accepted:
            raise typer.BadParameter(f"unknown {item!r}: accepted are {', '.join(accepted)}", param_hint=option)
    return items


def sizes(text: str, option: str) -> list[int]:
    """The batch sizes of a list, ascending."""
    accepted = "whole numbers from 1, separated by commas"
    items = _items(text, option, accepted)
    for item in items:
        if not item.isdecimal() or int(item) < 1:
            raise typer.BadParameter(f"{item!r} is no batch size: accepted are {accepted}", param_hint=option)
    return sorted(map(int, items))


def check_device(name: str) -> None:
    """Refuses what ``--device`` cannot mean on any machine."""
    from .bench import parse_device

    try:
        parse_device(name)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error


def torch_device(name: str) -> torch.device:
    """The device that ``--device`` names."""
    from .bench import resolve_device

    try:
        return resolve_device(name)
    except (ValueError, RuntimeError, ImportError) as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error


def check_output(path: Path | None, option: str, endings: Sequence[str] = ()) -> None:
    """Refuses before a long run what could not be written after it."""
    from .files import atomic_path

    if path is None:
        return
    if path.is_dir():
        raise typer.BadParameter(f"'{path}' is a folder: accepted is a file's path", param_hint=option)
    if endings and path.suffix.lower() not in endings:
        raise typer.BadParameter(f"'{path}' has another ending: accepted are {', '.join(endings)}", param_hint=option)
    try:
        with atomic_path(path, keep=False):
            pass
    except OSError as error:
        raise typer.BadParameter(f"'{path}' cannot be written: {error}", param_hint=option) from error


def check_checkpoint(path: Path | None, folder: bool) -> None:
    """The same for a checkpoint."""
    from .archive import check_target
    from .errors import CheckpointError
    from .files import atomic_path

    if path is None:
        if folder:
            raise typer.BadParameter("is for the checkpoint of --save, which is not given", param_hint="--folder")
        return
    try:
        check_target(path, folder or path.is_dir())
        with atomic_path(path, keep=False):
            pass
    except (CheckpointError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="--save") from error


def check_number(value: float | None, option: str, right: bool, accepted: str) -> None:
    """Refuses a number that is given and not right."""
    if value is not None and not right:
        raise typer.BadParameter(f"{value:g}: accepted is {accepted}", param_hint=option)
