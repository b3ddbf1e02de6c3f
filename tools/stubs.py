# SPDX-License-Identifier: MIT
"""Writes the stubs of ``xpugraph._C``, or checks that the committed ones are what the installed module gives."""

import argparse
import difflib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "xpugraph"
HEADER = "# SPDX-License-Identifier: MIT\n# Written by `make stubs`; do not edit.\n"


def stub_files(root: Path) -> dict[str, str]:
    """Returns the text of every stub of ``_C`` below ``root`` (``_C.pyi``, or ``_C/*.pyi`` with submodules)."""
    paths = [root / "_C.pyi", *sorted((root / "_C").rglob("*.pyi"))]
    return {str(path.relative_to(root)): path.read_text() for path in paths if path.is_file()}


def generate(root: Path) -> None:
    """Generates the stubs below ``root``, formatted as the repository is."""
    # Away from the repository, so that the installed package is what is imported.
    command = [sys.executable, "-m", "pybind11_stubgen", "xpugraph._C", "--output-dir", str(root)]
    command += ["--numpy-array-use-type-var", "--enum-class-locations", ".*:xpugraph._C", "--exit-code"]
    result = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True
    )
    if result.returncode != 0:
        sys.exit(f"pybind11-stubgen failed:\n{result.stdout}{result.stderr}")
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--config", str(PACKAGE.parent.parent / "pyproject.toml")]
    subprocess.run([*ruff, "check", "--quiet", "--fix-only", "--select", "I,F401", *config, str(root)], check=True)
    for path in root.rglob("*.pyi"):
        path.write_text(HEADER + path.read_text())
    subprocess.run([*ruff, "format", "--quiet", *config, str(root)], check=True)


def check(new: dict[str, str], committed: dict[str, str]) -> int:
    """Prints how the committed stubs differ from the new ones; returns 0 when they do not."""
    for name in sorted(new.keys() | committed.keys()):
        before, after = committed.get(name, ""), new.get(name, "")
        sys.stdout.writelines(
            difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"committed/{name}", f"built/{name}")
        )
    if new != committed:
        print("the stubs of xpugraph._C are not those of the built module: run `make stubs`")
        return 1
    return 0


def write(new: dict[str, str]) -> None:
    """Puts the new stubs in place of the committed ones."""
    (PACKAGE / "_C.pyi").unlink(missing_ok=True)
    shutil.rmtree(PACKAGE / "_C", ignore_errors=True)
    for name, text in new.items():
        path = PACKAGE / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(f"wrote {path}")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; fails when they differ")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        new = stub_files(Path(folder) / "xpugraph")
    if not new:
        sys.exit("pybind11-stubgen wrote no stub of xpugraph._C")
    if arguments.check:
        return check(new, stub_files(PACKAGE))
    write(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
