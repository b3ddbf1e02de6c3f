# SPDX-License-Identifier: MIT
"""Shows a `BenchResult`: tables on a console, a JSON file, a plot. Files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .bench import BenchResult, ModelResult
from .files import atomic_path
from .plotting import COLORS, MARKERS, batch_axis, latency_axis
from .routing import Route
from .timing import Timing
from .units import digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        if model.routes:
            routes = ", ".join(str(Route(*route)) for route in model.routes)
            console.print(Text(f"  auto: {routes}", style="green"))
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
        return Text(f"{digits(timing.median)} WRONG", style="bold red")
    cell = Text().append(digits(timing.median), style="bold" if timing.median == fastest else "")
    eager = model.timings.get("eager", [None] * len(model.batch_sizes))[column]
    if eager is not None and backend != "eager":
        cell.append(f" ({eager.median / timing.median:.1f}x)", style="dim")
    return cell


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
        figure.legend(handles=list(lines.values()), loc="outside lower center", ncols=min(len(lines), 6), frameon=False)
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
        color = COLORS.get(backend, f"C{index}")
        low, middle, high = (_column(points, attribute) for attribute in ("p25", "median", "p75"))
        panel.fill_between(sizes, low, high, color=color, alpha=0.15, linewidth=0)
        marker = MARKERS[index % len(MARKERS)]
        panel.plot(sizes, middle, color=color, marker=marker, markersize=4.5, linewidth=1.6, label=backend)
    batch_axis(panel, model.batch_sizes)
    latency_axis(panel)
    panel.set_title(name, fontsize=10, fontweight="bold", loc="left")


def _column(points: list[tuple[int, Timing]], attribute: str) -> list[float]:
    return [getattr(timing, attribute) for _, timing in points]
