# SPDX-License-Identifier: MIT
"""The plot of a tuning: latency over batch size, the chosen route shaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..files import atomic_path
from ..plotting import COLORS, MARKERS, batch_axis, latency_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .report import TuningReport


def draw(report: TuningReport, path: Path) -> None:
    """Writes the plot to `path` (.png, .svg or .pdf), which appears whole or not at all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    colors = {b.label: COLORS.get(b.label, f"C{i}") for i, b in enumerate(report.backends)}
    _shade_routes(axes, report, colors)
    for i, backend in enumerate(report.backends):
        measurements = sorted(backend.measurements.values(), key=lambda m: m.batch_size)
        if not measurements:
            continue
        sizes = [m.batch_size for m in measurements]
        low, high = [m.p25_ms for m in measurements], [m.p75_ms for m in measurements]
        padded = bool(backend.facts.get("recorded_batch_sizes"))  # a batch costs what the next recorded size costs
        step: Literal["pre"] | None = "pre" if padded else None
        axes.fill_between(sizes, low, high, color=colors[backend.label], alpha=0.2, linewidth=0, step=step)
        axes.plot(
            sizes,
            [m.latency_ms for m in measurements],
            color=colors[backend.label],
            marker=MARKERS[i % len(MARKERS)],
            markersize=4.5,
            linewidth=1.6,
            drawstyle="steps-pre" if padded else "default",
            label=backend.label if backend.status != "wrong" else f"{backend.label} (wrong values)",
        )
    batch_axis(axes, report.batch_sizes)
    latency_axis(axes)
    if report.latency_budget_ms is not None:
        axes.axhline(report.latency_budget_ms, color="#111827", linewidth=1, linestyle="--", label="latency budget")
    axes.legend(frameon=False, fontsize=9)
    shown = ("xpugraph", "torch", "intel-sycl-rt")
    versions = ", ".join(f"{name} {report.versions[name]}" for name in shown if name in report.versions)
    figure.suptitle(f"Latency of one call on {report.device}; shaded: the backend that serves\n{versions}", fontsize=10)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix.lstrip(".") or "png")


def _shade_routes(axes: Axes, report: TuningReport, colors: dict[str, str]) -> None:
    """One band a range, from half-way to the range before to half-way to the next."""
    least, most = min(report.batch_sizes), max(report.batch_sizes)
    left, right = least / 1.15, most * 1.15
    axes.set_xlim(left, right)
    for route in report.routes:
        start = max(left, (route.first - 0.5) if route.first > 1 else left)
        end = right if route.last is None else min(right, route.last + 0.5)
        if start < end:
            axes.axvspan(start, end, color=colors.get(route.backend, "#9ca3af"), alpha=0.13, linewidth=0)
            if end / start > 1.25:  # room for a word
                axes.text(
                    (start * end) ** 0.5,
                    0.98,
                    route.backend,
                    transform=axes.get_xaxis_transform(),
                    ha="center",
                    va="top",
                    fontsize=8,
                    color=colors.get(route.backend, "#111827"),
                    rotation=0 if end / start > 2.5 else 90,
                )
