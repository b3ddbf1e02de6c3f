# SPDX-License-Identifier: MIT
"""Shows a `BenchResult`: tables on a console, a JSON file, a plot. Files appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .bench import BenchResult, ModelResult
from .timing import Timing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {
    "eager": "#6b7280",
    "inductor": "#d97706",
    "graph": "#2563eb",
    "graph+inductor": "#059669",
    "auto": "#db2777",
}
_MARKERS = "osD^vPX"


@contextmanager
def atomic_path(path: Path, keep: bool = True) -> Iterator[Path]:
    """Yields a path beside `path`, moved onto it when the block ends well and removed when not, or when not to keep."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        if not keep:
            return
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp's files are the owner's alone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(value: Any, path: Path) -> None:
    """Writes a value as JSON, NaN and infinity as null."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(_finite(value), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def print_tables(result: BenchResult, console: Console) -> None:
    """Prints one table a model; what failed or differs from eager follows its table."""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    console.print(f"\n[bold]{escape(result.device)}[/]  [dim]{escape(versions)}[/]", highlight=False)
    for name, model in result.models.items():
        title = f"\n[bold]{escape(name)}[/]: latency in ms by batch size (times faster than eager)"
        console.print(title, highlight=False)
        console.print(_table(model))
        if model.recorded_batch_sizes:
            console.print(Text(f"  {_graphs_line(model)}", style="dim"))
        for size, reason in model.dropped_batch_sizes.items():
            console.print(Text(f"  no graph of batch size {size}: {reason}", style="yellow"))
        for backend, sizes in model.served_by_eager.items():
            listed = ", ".join(map(str, sizes))
            console.print(Text(f"  {backend} passed batch sizes {listed} on to eager", style="yellow"))
        for backend, reason in model.failed.items():
            console.print(Text(f"  FAILED {backend}: {reason}", style="bold red"))
        for backend, errors in model.mismatches.items():
            listed = ", ".join(f"{size} (error {error:.1e})" for size, error in errors.items())
            console.print(Text(f"  WRONG VALUES {backend} at batch sizes {listed}", style="bold white on red"))


def _table(model: ModelResult) -> Table:
    table = Table()
    table.add_column("backend", no_wrap=True)
    for size in model.batch_sizes:
        table.add_column(str(size), justify="right", overflow="fold")
    fastest = [_fastest(model, column) for column in range(len(model.batch_sizes))]
    for backend in model.timings:
        table.add_row(backend, *(_cell(model, backend, column, fastest[column]) for column in range(len(fastest))))
    return table


def _fastest(model: ModelResult, column: int) -> float:
    """Returns the least latency of a column among the backends whose values are right there."""
    size = model.batch_sizes[column]
    rows = [row for backend, row in model.timings.items() if size not in model.mismatches.get(backend, {})]
    return min((timing.median for row in rows if (timing := row[column]) is not None), default=0.0)


def _cell(model: ModelResult, backend: str, column: int, fastest: float) -> Text:
    timing = model.timings[backend][column]
    if timing is None:
        return Text("failed", style="red")
    if model.batch_sizes[column] in model.mismatches.get(backend, {}):
        return Text(f"{_digits(timing.median)} WRONG", style="bold red")
    cell = Text().append(_digits(timing.median), style="bold" if timing.median == fastest else "")
    eager = model.timings.get("eager", [None] * len(model.batch_sizes))[column]
    if eager is not None and backend != "eager":
        cell.append(f" ({eager.median / timing.median:.1f}x)", style="dim")
    return cell


def _digits(value: float) -> str:
    """Formats a latency with three digits, and with all those before the point."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _graphs_line(model: ModelResult) -> str:
    sizes = ", ".join(map(str, model.recorded_batch_sizes))
    seconds = "?" if model.record_seconds is None else f"{model.record_seconds:.2f}"
    pool = "?" if model.pool_bytes is None else f"{model.pool_bytes / 2**20:.1f}"
    return f"graphs of batch sizes {sizes}: recorded in {seconds} s, pool {pool} MiB"


def plot(result: BenchResult, path: Path) -> None:
    """Draws latency over batch size, one panel a model and one line a backend, its quartiles as a light band."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, max(1, len(result.models)))
    rows = max(1, -(-len(result.models) // columns))
    figure = Figure(figsize=(max(6.0, 4.2 * columns + 0.8), 3.5 * rows + 1.1), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, (name, model) in zip(panels, result.models.items(), strict=False):
        _draw(panel, name, model)
    for panel in panels[len(result.models) :]:
        panel.set_visible(False)
    lines = {line.get_label(): line for panel in panels for line in panel.get_lines()}
    if lines:
        figure.legend(handles=list(lines.values()), loc="outside lower center", ncols=len(lines), frameon=False)
    shown = ("xpugraph", "torch", "intel-sycl-rt")
    versions = ", ".join(f"{name} {result.versions[name]}" for name in shown if name in result.versions)
    figure.suptitle(f"Latency of one call on {result.device}\n{versions}", fontsize=11)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix.lstrip(".") or "png")


def _draw(panel: Axes, name: str, model: ModelResult) -> None:
    for index, (backend, row) in enumerate(model.timings.items()):
        points = [(size, timing) for size, timing in zip(model.batch_sizes, row, strict=True) if timing is not None]
        if not points:
            continue
        sizes = [size for size, _ in points]
        color = _COLORS.get(backend, f"C{index}")
        low, middle, high = (_column(points, attribute) for attribute in ("p25", "median", "p75"))
        panel.fill_between(sizes, low, high, color=color, alpha=0.15, linewidth=0)
        marker = _MARKERS[index % len(_MARKERS)]
        panel.plot(sizes, middle, color=color, marker=marker, markersize=4.5, linewidth=1.6, label=backend)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(model.batch_sizes, labels=_tick_labels(model.batch_sizes))
    panel.tick_params(axis="x", which="minor", bottom=False)
    _label_latencies(panel)
    panel.set_title(name, fontsize=10, fontweight="bold", loc="left")
    panel.set_xlabel("batch size", fontsize=9)
    panel.set_ylabel("ms", fontsize=9)
    panel.tick_params(labelsize=8)
    panel.grid(True, which="major", color="#e5e7eb", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _tick_labels(sizes: list[int]) -> list[str]:
    """Labels a log axis, the largest size first; a size too near to a labelled one gets an empty label."""
    near = 0.06 * log2(max(sizes) / min(sizes))
    labelled: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not labelled or log2(labelled[-1] / size) >= near:
            labelled.append(size)
    return [str(size) if size in labelled else "" for size in sizes]


def _column(points: list[tuple[int, Timing]], attribute: str) -> list[float]:
    return [getattr(timing, attribute) for _, timing in points]


def _label_latencies(panel: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 3.0, 5.0), numticks=12))
    number: Callable[[float, float], str] = lambda value, _: f"{value:g}"  # noqa: E731
    panel.yaxis.set_major_formatter(FuncFormatter(number))
    panel.yaxis.set_minor_formatter(NullFormatter())
