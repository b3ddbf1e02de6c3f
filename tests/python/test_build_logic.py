# SPDX-License-Identifier: MIT
"""Which SYCL the build takes, what it refuses, and the flags; torch, SYCL and icpx are stand-ins made of text files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RELEASES = {"2025.3.2": (8, 20260112, 1), "2026.0.0": (9, 20260331, 1), "2026.1.2": (9, 20260724, 2)}


def make_sycl(prefix: Path, release: str) -> Path:
    """Headers and library of a release of intel-sycl-rt, as far as the build looks."""
    major, compiler, graph = RELEASES[release]
    headers = prefix / "include" / "sycl"
    headers.mkdir(parents=True)
    (headers / "sycl.hpp").write_text("#pragma once\n")
    (headers / "version.hpp").write_text(
        f"#define __SYCL_COMPILER_VERSION {compiler}\n#define __LIBSYCL_MAJOR_VERSION {major}\n"
    )
    (headers / "feature_test.hpp").write_text(f"#define SYCL_EXT_ONEAPI_GRAPH {graph}\n")
    (prefix / "lib").mkdir(exist_ok=True)
    (prefix / "lib" / f"libsycl.so.{major}").write_text("")
    return prefix


def make_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def path_without_icpx() -> str:
    return os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if not (Path(part) / "icpx").exists())


@dataclass
class World:
    """A user's base of Python packages beside a bare Python, and what the build is started with."""

    folder: Path
    python: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def user_base(self) -> Path:
        return self.folder / "user"

    @property
    def site(self) -> Path:
        return self.user_base / "lib" / "python" / "site-packages"

    def torch(self, major: int | None) -> None:
        """A torch; for XPU where `major` is given, linked with that libsycl."""
        root = self.site / "torch"
        (root / "include" / "c10" / "xpu").mkdir(parents=True)
        (root / "include" / "c10" / "xpu" / "XPUStream.h").write_text("")
        (root / "lib").mkdir()
        (root / "__init__.py").write_text(
            "import types\n__version__ = '2.13.0'\nversion = types.SimpleNamespace(cuda=None)\n"
        )
        if major is not None:
            (root / "lib" / "libc10_xpu.so").write_text(f"\0libsycl.so.{major}\0\n")

    def sycl_rt(self, release: str) -> Path:
        """intel-sycl-rt as `pip install --user` leaves it: not below the Python's own prefix."""
        make_sycl(self.user_base, release)
        info = self.site / f"intel_sycl_rt-{release}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: intel-sycl-rt\nVersion: {release}\n")
        (info / "RECORD").write_text("../../../include/sycl/sycl.hpp,,\n../../../lib/libsycl.so,,\n")
        return self.user_base

    def toolkit(self, release: str) -> Path:
        """A oneAPI compiler on PATH: g++ under the name and with the macro by which CMake knows icpx."""
        prefix = make_sycl(self.folder / "oneapi", release)
        words = 'for a do shift; [ "$a" = -fp-model=precise ] || set -- "$@" "$a"; done'
        make_program(prefix / "bin" / "icpx", f'{words}\nexec g++ -D__INTEL_LLVM_COMPILER=20260100 "$@"')
        self.environment["PATH"] = f"{prefix / 'bin'}:{path_without_icpx()}"
        return prefix

    def configure(self, *options: str) -> tuple[int, str]:
        """The exit status and all output, with line breaks as spaces, since CMake wraps what it says."""
        command = [sys.executable, "-m", "cmake", "-S", str(ROOT), "-B", str(self.folder / "build"), "-G", "Ninja"]
        command += [f"-DCMAKE_MAKE_PROGRAM={Path(sysconfig.get_path('scripts')) / 'ninja'}"]
        command += [f"-DPython_EXECUTABLE={self.python}", *options]
        inherited = {name: value for name, value in os.environ.items() if name not in ("CMPLR_ROOT", "CXX", "CPATH")}
        given = {**inherited, "PATH": path_without_icpx(), "XPUGRAPH_TEST_SITE": str(self.site), **self.environment}
        done = subprocess.run(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, " ".join(done.stdout.split())

    def commands(self) -> list[str]:
        """How the sources would be compiled."""
        return [entry["command"] for entry in json.loads((self.folder / "build" / "compile_commands.json").read_text())]


@pytest.fixture
def world(tmp_path):
    """Without any package: a virtual environment, whose Python sees the packages of the world's user alone."""
    bare = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    python = make_program(
        tmp_path / "python", f'PYTHONPATH="$XPUGRAPH_TEST_SITE" LD_LIBRARY_PATH= exec {bare}/bin/python "$@"'
    )
    found = World(tmp_path, python)
    found.site.mkdir(parents=True)
    return found


def test_beside_a_torch_for_xpu_its_own_sycl_is_taken_and_not_the_toolkits(world):
    world.torch(9)
    own = world.sycl_rt("2026.0.0")
    world.toolkit("2026.1.2")
    status, said = world.configure()
    assert status == 0, said
    assert f"SYCL: {own}/lib/libsycl.so.9 (__LIBSYCL_MAJOR_VERSION 9, __SYCL_COMPILER_VERSION 20260331, " in said
    assert "libc10_xpu.so" in said and "oneapi" not in said
    compiled = [command for command in world.commands() if "xpu_hooks.cpp" in command or "sycl_runtime.cpp" in command]
    assert len(compiled) == 2
    assert all(f"-isystem {own}/include" in command and "oneapi" not in command for command in compiled)


def test_icpx_compiles_against_torchs_sycl_without_fast_math_and_without_a_libsycl_of_its_own(world):
    world.torch(9)
    own = world.sycl_rt("2026.0.0")
    toolkit = world.toolkit("2026.1.2")
    status, said = world.configure("-DCMAKE_CXX_COMPILER=icpx")
    assert status == 0 and "IntelLLVM" in said, said
    for command in world.commands():
        assert f"{toolkit}/bin/icpx" in command and "-fp-model=precise" in command and "-fsycl" not in command.split()
    ninja = (world.folder / "build" / "build.ninja").read_text()
    assert f"{own}/lib/libsycl.so.9" in ninja and "-fsycl" not in ninja and f"{toolkit}/lib" not in ninja


def test_gcc_is_given_no_flag_of_icpx(world):
    world.torch(None)
    assert world.configure()[0] == 0
    assert world.commands() and not any("fp-model" in command for command in world.commands())


@pytest.mark.parametrize("other", ["2025.3.2", "2026.1.2"])
def test_headers_that_setvars_puts_before_torchs_are_refused(other, world):
    world.torch(9)
    world.sycl_rt("2026.0.0")
    world.environment["CPATH"] = str(world.toolkit(other) / "include")
    status, said = world.configure()
    assert status != 0 and "The compiler includes other SYCL headers" in said and "unset CPATH" in said, said
    assert f"__SYCL_COMPILER_VERSION {RELEASES[other][1]}" in said
    world.environment["CPATH"] = str(world.user_base / "include")  # the same headers by another way
    assert world.configure()[0] == 0


def test_a_torch_for_xpu_without_sycl_is_an_error_unless_asked_for(world):
    world.torch(9)
    world.toolkit("2026.1.2")
    status, said = world.configure()
    assert status != 0 and "This torch is a build for Intel GPUs" in said and "Install torch again" in said, said
    assert "-DXPUGRAPH_SYCL=OFF" in said and "-DXPUGRAPH_SYCL_ROOT=" in said
    status, said = world.configure("-DXPUGRAPH_SYCL=OFF")
    assert status == 0 and "building without torch.xpu, although this torch is for Intel GPUs" in said, said


def test_headers_without_their_library_are_no_sycl(world):
    world.torch(9)
    (world.sycl_rt("2026.0.0") / "lib" / "libsycl.so.9").rename(world.user_base / "lib" / "libsycl.so.8")
    assert world.configure()[0] != 0


def test_another_major_version_than_torchs_is_an_error(world):
    world.torch(9)
    world.sycl_rt("2025.3.2")
    status, said = world.configure()
    assert status != 0 and "This torch uses libsycl.so.9, and the SYCL that was found is libsycl.so.8" in said, said
    assert "intel-sycl-rt that it requires" in said


def test_a_torch_for_xpu_without_its_headers_is_an_error(world):
    world.torch(9)
    world.sycl_rt("2026.0.0")
    (world.site / "torch" / "include" / "c10" / "xpu" / "XPUStream.h").unlink()
    status, said = world.configure()
    assert status != 0 and "no headers of c10/xpu" in said, said


def test_a_sycl_that_the_user_names_is_taken_even_beside_a_torch_for_xpu(world):
    world.torch(9)
    world.sycl_rt("2026.0.0")
    toolkit = world.toolkit("2026.1.2")
    status, said = world.configure(f"-DXPUGRAPH_SYCL_ROOT={toolkit}")
    assert status == 0 and f"SYCL: {toolkit}/lib/libsycl.so.9" in said, said
    status, said = world.configure(f"-DXPUGRAPH_SYCL_ROOT={world.folder}")
    assert status != 0 and "has no include/sycl/sycl.hpp" in said, said


def test_beside_another_torch_a_toolkit_serves_where_there_is_no_intel_sycl_rt(world):
    world.torch(None)
    toolkit = world.toolkit("2026.1.2")
    status, said = world.configure()
    assert status == 0 and f"SYCL: {toolkit}/lib/libsycl.so.9" in said, said
    own = world.sycl_rt("2025.3.2")
    status, said = world.configure()
    assert status == 0 and f"SYCL: {own}/lib/libsycl.so.8" in said, said


def test_without_any_sycl_another_torch_builds_without_it(world):
    world.torch(None)
    status, said = world.configure()
    assert status == 0 and "SYCL: not found" in said, said
    assert not any("sycl_runtime" in command for command in world.commands())
