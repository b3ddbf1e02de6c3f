# SPDX-License-Identifier: MIT
"""What all plots of latency over batch size have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {
    "eager": "#6b7280",
    "inductor": "#d97706",
    "graph": "#2563eb",
    "graph+inductor": "#059669",
    "auto": "#db2777",
    "auto-exact": "#a21caf",
    "reduce-overhead": "#dc2626",
    "python-graph": "#93c5fd",
    "python-graph+inductor": "#86efac",
    "exact-replay": "#111827",
}
MARKERS = "osD^vPX"


def batch_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """A logarithmic x-axis with a tick at every batch size."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, labels=_tick_labels(sizes))
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.set_xlabel("batch size", fontsize=9)


def latency_axis(axes: Axes) -> None:
    """A logarithmic y-axis in ms, a light grid, and no frame."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 3.0, 5.0), numticks=12))
    number: Callable[[float, float], str] = lambda value, _: f"{value:g}"  # noqa: E731
    axes.yaxis.set_major_formatter(FuncFormatter(number))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("ms", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(True, which="major", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _tick_labels(sizes: Sequence[int]) -> list[str]:
    """Labels a log axis, the largest size first; a size too near to a labelled one gets an empty label."""
    near = 0.06 * log2(max(sizes) / min(sizes))
    labelled: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not labelled or log2(labelled[-1] / size) >= near:
            labelled.append(size)
    return [str(size) if size in labelled else "" for size in sizes]
