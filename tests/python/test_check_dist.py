# SPDX-License-Identifier: MIT
"""What ``make dist`` refuses, without building anything."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pytest

import xpugraph

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def check_dist():
    spec = importlib.util.spec_from_file_location("check_dist", ROOT / "tools" / "check_dist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wheel(tmp_path):
    """A wheel of the sources and of the installed extension."""
    path = tmp_path / "xpugraph-0.0.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in (ROOT / "python").rglob("*.py*"):
            if "__pycache__" not in file.parts:
                archive.write(file, file.relative_to(ROOT / "python"))
        extension = next(Path(xpugraph.__file__).parent.glob("_C.*.so"))
        archive.write(extension, f"xpugraph/{extension.name}")
    return path


def test_a_wheel_as_it_should_be(check_dist, wheel):
    assert check_dist.check_wheel(wheel) == []


@pytest.mark.parametrize("name", ["xpugraph/libsycl.so.9", "xpugraph.libs/libtorch_cpu.so", "xpugraph/_C.old.so"])
def test_a_library_inside(check_dist, wheel, name):
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(name, b"")
    assert check_dist.check_wheel(wheel)


def test_a_missing_file(check_dist, wheel, tmp_path):
    poorer = tmp_path / "poorer.whl"
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(poorer, "w") as copy:
        for name in archive.namelist():
            if name != "xpugraph/cli.py":
                copy.writestr(name, archive.read(name))
    assert check_dist.check_wheel(poorer) == ["poorer.whl lacks xpugraph/cli.py"]
