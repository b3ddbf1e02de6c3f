# SPDX-License-Identifier: MIT
"""Figures against their targets: a table and a JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from xpugraph.environment import device_name, versions
from xpugraph.files import write_json


@dataclass
class Measure:
    """One figure against its target."""

    name: str
    value: float
    unit: str
    target: str
    ok: bool
    note: str = ""


def report(measures: Sequence[Measure], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("measure", "value", "target", "", "note"):
        table.add_column(column, justify="right" if column == "value" else "left", overflow="fold")
    for item in measures:
        verdict = "[green]ok[/]" if item.ok else "[bold red]missed[/]"
        table.add_row(item.name, f"{item.value:.2f} {item.unit}".strip(), item.target, verdict, f"[dim]{item.note}[/]")
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def write(measures: Sequence[Measure], device: torch.device, path: Path) -> None:
    value: dict[str, Any] = {"schema": 1, "device": device_name(device.type), "versions": versions()}
    write_json(value | {"measures": [asdict(measure) for measure in measures]}, path)
