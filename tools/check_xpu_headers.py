# SPDX-License-Identifier: MIT
"""Compiles what uses SYCL or torch.xpu against the headers of other torch versions. Run by ``make xpu-headers``.

Arguments are versions, whose wheels are downloaded (half a gigabyte each), or ``include`` folders of unpacked ones.
SYCL's headers are downloaded too: those of the intel-sycl-rt that this torch for XPU requires. Nothing is linked: what
is asked is whether every call exists with the arguments that it is given.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc" / "runtime").glob("sycl_*.cpp")),
    "csrc/torch/xpu_hooks.cpp",
    "tests/cpp/xpu_double.cpp",
    "tests/cpp/xpu_double_graph.cpp",
)
SYCL = {(2, 11): "2025.3.2", (2, 12): "2025.3.2", (2, 13): "2026.0.0", (2, 14): "2026.1.2"}  # by torch: docs/install.md


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stand_in = folder / "stand_in" / "c10" / "xpu" / "impl"
        stand_in.mkdir(parents=True)
        (stand_in / "xpu_cmake_macros.h").write_text("#pragma once\n#define C10_XPU_BUILD_SHARED_LIBS\n")
        for argument in arguments:
            torch = Path(argument)
            if not torch.is_dir():
                torch = download(f"torch=={argument}", folder) / "torch" / "include"
            release = SYCL[torch_version(torch)]
            sycl = download(f"intel-sycl-rt=={release}", folder) / f"intel_sycl_rt-{release}.data" / "data" / "include"
            for source in SOURCES:
                failed += not compiles(source, torch, release, [torch, folder / "stand_in", sycl])
    return 1 if failed else 0


def download(requirement: str, folder: Path) -> Path:
    """Returns a folder with the headers of a wheel."""
    target = folder / requirement
    if not target.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(target), requirement]
        subprocess.run(command, check=True)
        wheel = next(target.glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target, [name for name in archive.namelist() if "/include/" in name])
        wheel.unlink()
    return target


def torch_version(include: Path) -> tuple[int, int]:
    """Returns major and minor version of the torch that has this include folder."""
    text = (include / "torch" / "headeronly" / "version.h").read_text()
    major, minor = (re.search(rf"define TORCH_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR"))
    assert major and minor, f"{include} has no version"
    return int(major[1]), int(minor[1])


def compiles(source: str, torch: Path, release: str, includes: list[Path]) -> bool:
    """Whether one source compiles; prints the outcome."""
    version = torch_version(torch)
    command = ["g++", f"-std=c++{20 if version >= (2, 14) else 17}", "-fsyntax-only", "-Wall", "-Werror"]
    command += ["-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests' / 'cpp'}"]
    for include in includes:
        command += ["-isystem", str(include)]
    done = subprocess.run([*command, str(ROOT / source)], stderr=subprocess.PIPE, text=True)
    outcome = "ok" if done.returncode == 0 else done.stderr
    print(f"torch {version[0]}.{version[1]}, intel-sycl-rt {release}: {source}: {outcome}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
