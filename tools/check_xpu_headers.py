# SPDX-License-Identifier: MIT
"""Compiles the xpu glue and its double against the headers of other torch versions. Run by ``make xpu-headers``.

Arguments are versions, whose wheels are downloaded (they are large), or ``include`` folders of unpacked ones. SYCL's
headers are those of this environment. Nothing is linked: what is asked is whether every call exists with the arguments
that it is given.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("csrc/torch/xpu_hooks.cpp", "tests/cpp/xpu_double.cpp", "tests/cpp/xpu_double_graph.cpp")


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        stand_in = Path(folder) / "stand_in" / "c10" / "xpu" / "impl"
        stand_in.mkdir(parents=True)
        (stand_in / "xpu_cmake_macros.h").write_text("#pragma once\n#define C10_XPU_BUILD_SHARED_LIBS\n")
        for argument in arguments:
            include = Path(argument) if Path(argument).is_dir() else download(argument, Path(folder) / argument)
            for source in SOURCES:
                failed += not compiles(source, include, Path(folder) / "stand_in")
    return 1 if failed else 0


def download(version: str, folder: Path) -> Path:
    """Returns the include folder of a torch version."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), f"torch=={version}"]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("torch/include/")])
    return folder / "torch" / "include"


def torch_version(include: Path) -> tuple[int, int]:
    """Returns major and minor version of the torch that has this include folder."""
    text = (include / "torch" / "headeronly" / "version.h").read_text()
    major, minor = (re.search(rf"define TORCH_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR"))
    assert major and minor, f"{include} has no version"
    return int(major[1]), int(minor[1])


def compiles(source: str, include: Path, stand_in: Path) -> bool:
    """Whether one source compiles; prints the outcome."""
    version = torch_version(include)
    command = ["g++", f"-std=c++{20 if version >= (2, 14) else 17}", "-fsyntax-only", "-Wall", "-Werror"]
    command += ["-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests' / 'cpp'}"]
    for system in (include, stand_in, Path(sys.prefix) / "include"):
        command += ["-isystem", str(system)]
    done = subprocess.run([*command, str(ROOT / source)], stderr=subprocess.PIPE, text=True)
    print(f"torch {version[0]}.{version[1]}: {source}: {'ok' if done.returncode == 0 else done.stderr}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
