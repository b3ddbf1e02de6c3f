# SPDX-License-Identifier: MIT
"""What must not be in the sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {
    "C++": sorted(path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp")),
    "Python": sorted((ROOT / "python" / "xpugraph").rglob("*.py")),
}


def found(kind: str, pattern: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in SOURCES[kind]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line.partition("//")[0] if kind == "C++" else line.partition("#")[0])
    ]


def test_the_sources_are_there():
    assert len(SOURCES["C++"]) > 40
    assert len(SOURCES["Python"]) > 40


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("C++", r"[io]?stringstream"),  # see CONTRIBUTING.md
        ("C++", r"cudaDeviceSynchronize|syncStreamsOnDevice|device_synchronize|(::|->|[.])emptyCache[(]"),
        ("C++", r"cuda_runtime_api|<cuda"),
        ("Python", r"torch[.](xpu|cuda)[.](synchronize|empty_cache)[(][)]$"),
    ],
)
def test_nothing_of_this(kind, pattern):
    hits = [hit for hit in found(kind, pattern) if "csrc/runtime/cuda_runtime.cpp" not in hit or "<cuda" not in pattern]
    assert hits == []
