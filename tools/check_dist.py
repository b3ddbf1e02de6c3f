# SPDX-License-Identifier: MIT
"""Builds the source archive and, from it, a wheel in a temporary folder, and checks both. Run by ``make dist``.

The archive must hold every file of the repository. The wheel must hold the extension and no library of torch, SYCL or a
driver, and must find those libraries relative to where it is installed. Building takes as long as the first install.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOREIGN = re.compile(r"\.so(\.|$)|\.dll$|\.dylib$")


def main() -> int:
    """Returns the exit status; prints what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        archive = build_sdist(Path(folder))
        problems = check_sdist(archive)
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        wheel = build_wheel(next(path for path in Path(folder).iterdir() if path.is_dir()), Path(folder) / "wheel")
        problems += check_wheel(wheel)
        size = wheel.stat().st_size / 2**20
        print(f"{archive.name}: complete; {wheel.name}: {size:.1f} MiB" if not problems else "\n".join(problems))
    return 1 if problems else 0


def build_sdist(folder: Path) -> Path:
    """Returns the source archive, built into `folder`."""
    code = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return folder / done.stdout.splitlines()[-1]


def check_sdist(archive: Path) -> list[str]:
    """Returns what the archive lacks of the files that git knows."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    with tarfile.open(archive) as tar:
        inside = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    return [f"{archive.name} lacks {name}" for name in listed if name not in inside and (ROOT / name).exists()]


def build_wheel(source: Path, folder: Path) -> Path:
    """Returns the wheel of an unpacked source archive, built into `folder` with what is installed here."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q", "-w", str(folder), "."]
    subprocess.run(command, cwd=source, check=True)
    return next(folder.glob("*.whl"))


def check_wheel(wheel: Path) -> list[str]:
    """Returns what is wrong with a wheel: libraries of others inside, files missing, absolute paths to libraries."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        extensions = [name for name in names if re.fullmatch(r"xpugraph/_C\.[^/]*\.so", name)]
        data = archive.read(extensions[0]) if extensions else b""
    problems = [] if len(extensions) == 1 else [f"{wheel.name} has {len(extensions)} extensions, not one"]
    problems += [f"{wheel.name} holds {name}" for name in names if FOREIGN.search(name) and name not in extensions]
    python = {f"xpugraph/{path.relative_to(ROOT / 'python' / 'xpugraph')}" for path in (ROOT / "python").rglob("*.py*")}
    python = {name for name in python if "__pycache__" not in name}
    problems += [f"{wheel.name} lacks {name}" for name in sorted(python - set(names))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "extension.so"
        path.write_bytes(data)
        dynamic = subprocess.run(["readelf", "-d", str(path)], check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in dynamic.splitlines():
        if match := re.search(r"R(?:UN)?PATH.*\[(.*)\]", line):
            absolute = [part for part in match[1].split(":") if part and not part.startswith("$ORIGIN")]
            problems += [f"{wheel.name}: the extension looks for libraries in {part}" for part in absolute]
    if not re.search(r"NEEDED.*libtorch_python", dynamic):
        problems.append(f"{wheel.name}: the extension does not link torch")
    return problems


if __name__ == "__main__":
    os.environ.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    sys.exit(main())
