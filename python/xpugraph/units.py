# SPDX-License-Identifier: MIT
"""Numbers for people."""

from __future__ import annotations


def digits(value: float) -> str:
    """Formats a latency with three digits, and with all those before the point."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def mebibytes(count: int | None) -> str:
    """Formats bytes as "12.3 MiB" or "4.5 GiB"; "?" for None."""
    if count is None:
        return "?"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
