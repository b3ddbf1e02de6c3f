# SPDX-License-Identifier: MIT
"""Which libsycl the extension needs, and what is said when another one is here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement

import xpugraph
from xpugraph import _native, devices, libsycl
from xpugraph.errors import MissingRuntimeError


@pytest.fixture
def world(monkeypatch):
    """Sets what the extension needs, what is installed, what is loaded, and torch.version.xpu."""

    def make(needed, installed=(), loaded=(), xpu=None):
        monkeypatch.setattr(libsycl, "needed", lambda: needed)
        monkeypatch.setattr(libsycl, "installed", lambda: {major: Path(f"libsycl.so.{major}") for major in installed})
        monkeypatch.setattr(libsycl, "loaded", lambda: set(loaded))
        monkeypatch.setattr(torch.version, "xpu", xpu, raising=False)

    return make


def test_the_extension_says_what_it_needs_and_finds_it_here(device):
    major = libsycl.needed()
    assert major in libsycl.installed() and libsycl.loaded() == {major} and libsycl.conflict() is None
    assert f"libsycl major: {major}" in _native.load().sycl.build()


@pytest.mark.parametrize(
    ("needed", "installed", "loaded"),
    [(None, (), ()), (9, (9,), ()), (9, (8, 9), ()), (9, (), ()), (9, (9,), (9,)), (8, (8,), (8,))],
)
def test_no_conflict(world, needed, installed, loaded):
    world(needed, installed, loaded)
    assert libsycl.conflict() is None


def test_a_wheel_for_another_release_without_a_torch_for_xpu(world):
    world(9, installed=(8,))
    conflict = libsycl.conflict()
    assert "built for libsycl.so.9 (intel-sycl-rt 2026.x), and libsycl.so.8 is installed" in conflict
    assert "pip install 'intel-sycl-rt==2026.1.2' 'intel-opencl-rt==2026.1.2'" in conflict
    world(8, installed=(9,))
    assert "'intel-sycl-rt==2025.3.*'" in libsycl.conflict()


def test_a_torch_for_xpu_decides_and_is_never_to_be_broken(world):
    world(9, installed=(8,), loaded=(8,), xpu="20250302")
    conflict = libsycl.conflict()
    assert "this process uses libsycl.so.8, which torch" in conflict and "cannot be mixed" in conflict
    assert "--no-build-isolation" in conflict and "intel-sycl-rt==" not in conflict
    world(9, installed=(8,), xpu="20250302")
    assert "intel-sycl-rt==" not in libsycl.conflict() and "--no-build-isolation" in libsycl.conflict()


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A libsycl outside this environment that the process has mapped, beside one of the environment."""
    toolkit, own = tmp_path / "oneapi" / "lib" / "libsycl.so.9", tmp_path / "venv" / "lib" / "libsycl.so.9"
    for path in (toolkit, own):
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.setattr(libsycl, "installed", lambda: {9: own})
    monkeypatch.setattr(libsycl, "_mapped", lambda stem="": [toolkit])
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return toolkit, own


@pytest.mark.parametrize(("variable", "fix"), [
    ("LD_LIBRARY_PATH", "as after setvars.sh of a oneAPI toolkit: unset LD_LIBRARY_PATH"),
    ("LD_PRELOAD", "unset LD_PRELOAD"),
    ("PATH", "Build xpugraph again in this environment"),
])  # fmt: skip
def test_a_libsycl_outside_of_the_environment_is_a_warning_with_the_fix(variable, fix, elsewhere, monkeypatch):
    toolkit, own = elsewhere
    monkeypatch.setenv(variable, f"/nowhere:{toolkit if variable == 'LD_PRELOAD' else toolkit.parent}")
    (warning,) = libsycl.warnings()
    assert (
        f"another libsycl than this environment's: {toolkit}, not that in {own.parent}. " in warning and fix in warning
    )


def test_the_environments_own_libsycl_or_a_torch_without_one_is_none(elsewhere, monkeypatch):
    toolkit, own = elsewhere
    monkeypatch.setattr(libsycl, "_mapped", lambda stem="": [own])
    assert libsycl.warnings() == []
    monkeypatch.setattr(libsycl, "_mapped", lambda stem="": [toolkit])
    monkeypatch.setattr(libsycl, "installed", dict)
    assert libsycl.warnings() == []


def test_this_process_uses_the_libsycl_of_this_environment(device):
    assert libsycl._mapped() and libsycl.warnings() == []


@pytest.mark.parametrize("requirement", [
    "intel-sycl-rt (==2026.0.0)", 'intel_sycl_rt==2026.0.0; platform_system == "Linux"', "intel-sycl-rt==2026.0.0",
])  # fmt: skip
def test_another_intel_sycl_rt_than_torch_requires_is_a_warning(requirement, elsewhere, monkeypatch):
    monkeypatch.setattr(libsycl, "_mapped", lambda stem="": [])
    monkeypatch.setattr(libsycl.importlib.metadata, "requires", lambda name: {"torch": ["filelock", requirement]}[name])
    _packages(monkeypatch, intel_sycl_rt="2026.0.0")
    assert libsycl.required() == "2026.0.0" and libsycl.warnings() == []
    for other in ("2026.1.2", None):
        _packages(monkeypatch, **({"intel_sycl_rt": other} if other else {}))
        (warning,) = libsycl.warnings()
        assert "torch requires intel-sycl-rt 2026.0.0" in warning and f"{other or 'none'} is installed" in warning
        assert "pip install 'intel-sycl-rt==2026.0.0', then build xpugraph again" in warning
        monkeypatch.setattr(torch.version, "xpu", "20260000", raising=False)
        assert "'intel-opencl-rt==2026.0.0'" in libsycl.install() and "2026.1" not in libsycl.install()


def test_the_extra_accepts_what_any_torch_for_xpu_pins():
    """pip would else exchange the torch that pins another version."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    (extra,) = re.findall(r"^sycl = \[(.*)\]$", project, re.MULTILINE)
    requirements = [Requirement(text) for text in re.findall(r'"([^"]+)"', extra)]
    assert {requirement.name for requirement in requirements} == set(libsycl._PACKAGES)
    for requirement in requirements:
        pins = ("2025.3.2", "2026.0.0", "2026.1.0", "2026.1.2")
        assert all(requirement.specifier.contains(pin) for pin in pins), requirement
        assert not requirement.specifier.contains("2026.2.0"), "it has no OpenCL adapter"


def _packages(monkeypatch, **versions):
    found = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(libsycl, "_version", found.get)


def test_without_a_torch_for_xpu_all_packages_are_named(world, monkeypatch):
    world(9)
    three = "pip install 'intel-sycl-rt==2026.1.2' 'intel-opencl-rt==2026.1.2' 'intel-cmplr-lib-ur==2026.1.2'"
    assert libsycl.install() == three
    world(None)
    assert libsycl.install() == three and libsycl.missing().endswith(three)
    world(8)
    assert "'intel-opencl-rt==2025.3.*'" in libsycl.install()


def test_beside_a_torch_for_xpu_only_what_is_missing_is_named_in_its_version(world, monkeypatch):
    world(9, xpu="20260000")
    _packages(monkeypatch, intel_sycl_rt="2026.0.0", intel_cmplr_lib_ur="2026.0.0")
    assert libsycl.install() == "pip install 'intel-opencl-rt==2026.0.0'"
    _packages(monkeypatch, intel_sycl_rt="2026.0.0", intel_cmplr_lib_ur="2026.0.0", intel_opencl_rt="2026.0.0")
    assert libsycl.install() is None
    _packages(monkeypatch)
    assert "install this torch again" in libsycl.install() and "pip install" not in libsycl.install()


@pytest.mark.parametrize(("xpu", "said"), [(None, "rt==2026.1.2'"), ("20260000", "look at OCL_ICD_FILENAMES")])
def test_enabling_the_sycl_device_gives_that_advice(xpu, said, world, monkeypatch):
    world(9, installed=(9,), loaded=(9,), xpu=xpu)
    _packages(monkeypatch, intel_sycl_rt="2026.0.0", intel_cmplr_lib_ur="2026.0.0", intel_opencl_rt="2026.0.0")
    core = SimpleNamespace(missing=lambda: "SYCL sees no OpenCL CPU device")
    monkeypatch.setattr(_native, "load", lambda: SimpleNamespace(sycl=core))
    with pytest.raises(MissingRuntimeError, match="SYCL sees no OpenCL CPU device; ") as raised:
        devices._register(1)
    assert said in str(raised.value) and "xpugraph[sycl]" not in str(raised.value)
    monkeypatch.setattr(_native, "load", lambda: SimpleNamespace())
    with pytest.raises(MissingRuntimeError, match=r"built without SYCL: .*build xpugraph again") as raised:
        devices._register(1)
    assert ("pip install" in str(raised.value)) == (xpu is None)


def test_the_conflict_is_raised_at_first_use(world, monkeypatch):
    world(9, installed=(8,))
    _native._import.cache_clear()
    with pytest.raises(MissingRuntimeError, match=r"libsycl.so.8 is installed. Install that one"):
        _native.load()
    with pytest.raises(MissingRuntimeError, match=r"libsycl.so.8 is installed"):
        devices.point_to_runtime()
    world(9, installed=(9,), loaded=(9,))
    _native._import.cache_clear()
    assert _native.load() is sys.modules["xpugraph._C"]


def test_a_real_wheel_for_another_libsycl_says_so_and_importing_xpugraph_works(tmp_path):
    """The installed package, with the name of the library that its extension needs changed."""
    package = tmp_path / "xpugraph"
    source = Path(xpugraph.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    extension = next(package.glob("_C.*.so"))
    data = extension.read_bytes()
    wrong = data.replace(f"libsycl.so.{libsycl.needed()}\0".encode(), b"libsycl.so.7\0")
    assert wrong != data
    extension.unlink()
    extension.write_bytes(wrong)
    code = "import xpugraph; print('imported'); xpugraph.enable_sycl_device()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert "imported" in done.stdout and done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "MissingRuntimeError" in last and "built for libsycl.so.7" in last and "pip install" in last
