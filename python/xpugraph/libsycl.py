# SPDX-License-Identifier: MIT
"""Which libsycl the extension was built for, which one is here, and what to do when they differ.

The library's major version is part of its name, and the majors do not mix: 2025.x of intel-sycl-rt is ``libsycl.so.8``
(torch 2.11 and 2.12 for XPU), 2026.x is ``libsycl.so.9`` (2.13 and 2.14). The extension itself says which one its
linker recorded, so that no second note of it can be wrong.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

_NAME = re.compile(rb"libsycl\.so\.(\d+)\0")
_YEARS = {8: "2025.x", 9: "2026.x"}  # of intel-sycl-rt, by the major version of libsycl that they have
_RELEASES = {8: "2025.3.*", 9: "2026.1.2"}  # what to install of them, where torch does not say
_PACKAGES = ("intel-sycl-rt", "intel-opencl-rt", "intel-cmplr-lib-ur")
_REBUILD = "pip install --no-build-isolation --no-deps --force-reinstall ."


@functools.cache
def needed() -> int | None:
    """Returns the major version of libsycl that the extension links; None without extension, or without SYCL in it."""
    spec = importlib.util.find_spec("xpugraph._C")
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    match = _NAME.search(Path(spec.origin).read_bytes())
    return int(match[1]) if match else None


def installed() -> dict[int, Path]:
    """Returns the libsycl of this environment's intel-sycl-rt, by major version."""
    paths = list((Path(sys.prefix) / "lib").glob("libsycl.so.*"))
    try:
        files = importlib.metadata.files("intel-sycl-rt") or []
        paths = [Path(str(file.locate())) for file in files if file.name.startswith("libsycl.so.")] + paths
    except importlib.metadata.PackageNotFoundError:
        pass
    found: dict[int, Path] = {}
    for path in paths:
        if (match := re.fullmatch(r"libsycl\.so\.(\d+)", path.name)) and path.exists():
            found.setdefault(int(match[1]), path.resolve())
    return found


def loaded() -> set[int]:
    """Returns the major versions of libsycl that this process has mapped; a torch for XPU brings its own."""
    return {int(major) for path in _mapped() for major in re.findall(r"libsycl\.so\.(\d+)", path.name)}


def _mapped(stem: str = r"libsycl\.so\.") -> list[Path]:
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line and ".so" in line}
    return sorted(path for path in paths if re.match(stem, path.name))


def required() -> str | None:
    """Returns the version of intel-sycl-rt that the installed torch requires; None of a torch that is not for XPU."""
    try:
        requirements = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (re.match(r"intel[-_]sycl[-_]rt *\(?== *([\w.]+)", requirement) for requirement in requirements)
    return next((match[1] for match in found if match), None)


def warnings() -> list[str]:
    """Returns what goes wrong sooner or later though it may seem to work, each with the command that mends it."""
    found = []
    if (foreign := _foreign()) is not None:
        found.append(foreign)
    wanted, here = required(), _version("intel-sycl-rt")
    if wanted is not None and here != wanted:
        found.append(
            f"torch requires intel-sycl-rt {wanted}, and {here or 'none'} is installed: "
            f"{_pip(['intel-sycl-rt'], wanted)}, then build xpugraph again: {_REBUILD}"
        )
    return found


def _foreign() -> str | None:
    """What is wrong when libsycl, or what it loads, is not the one beside this torch, even of the same major version.

    The loader asks LD_PRELOAD and LD_LIBRARY_PATH, which setvars.sh sets, before it looks where torch says. torch names
    the place of its libsycl, which does not name that of libur_loader (pytorch/pytorch#149953).
    """
    own = list(installed().values())
    home = {path.parent for path in own}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.files("intel-cmplr-lib-ur") or []
        home |= {Path(str(file.locate())).resolve().parent for file in files if file.name.startswith("libur_")}
    used = _mapped(r"libsycl\.so\.|libur_")
    foreign = next((path for path in used if own and path.resolve().parent not in home), None)
    if foreign is None:
        return None
    stem = foreign.name.split(".")[0]
    found = f"this process uses another {stem} than this environment's: {foreign}, not that in {own[0].parent}"
    folders = [Path(part).resolve() for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    if foreign.parent in folders:
        return (
            f"{found}. LD_LIBRARY_PATH names its folder, as after setvars.sh of a oneAPI toolkit: unset LD_LIBRARY_PATH"
        )
    if stem in os.environ.get("LD_PRELOAD", ""):
        return f"{found}. LD_PRELOAD names it: unset LD_PRELOAD"
    return f"{found}. Build xpugraph again in this environment, in its source folder: {_REBUILD}"


def conflict() -> str | None:
    """Returns what is wrong and the command that mends it, or None when the extension's libsycl can be had.

    Asked before the extension is loaded: with two majors in one process, queues of one would reach the other.
    """
    wanted, mapped, here = needed(), loaded(), installed()
    if wanted is None or wanted in mapped or (not mapped and wanted in here):
        return None
    built = f"xpugraph was built for libsycl.so.{wanted} (intel-sycl-rt {_YEARS.get(wanted, 'of another release')})"
    if mapped:
        majors = " and ".join(f"libsycl.so.{major}" for major in sorted(mapped))
        return (
            f"{built}, and this process uses {majors}{_torchs()}; the two cannot be mixed. Build xpugraph again in "
            f"this environment, in its source folder: {_REBUILD}"
        )
    if here:
        majors = " and ".join(f"libsycl.so.{major}" for major in sorted(here))
        return f"{built}, and {majors} is installed. {_remedy(wanted)}"
    return None  # none in this environment: the loader may know one, of oneAPI for example, and says so if not


def missing() -> str:
    """Returns what to do when the extension's libsycl cannot be found."""
    wanted = needed()
    return _remedy(wanted) if wanted is not None else f"Install the SYCL runtime: {install() or _REBUILD}"


def _remedy(wanted: int) -> str:
    if _xpu_torch():
        return (
            f"This torch pins the intel-sycl-rt it needs, so build xpugraph again in this environment, in its source "
            f"folder: {_REBUILD}"
        )
    if wanted not in _RELEASES:
        return f"Build xpugraph again in this environment, in its source folder: {_REBUILD}"
    return f"Install that one: {_pip(_PACKAGES, _RELEASES[wanted])}"


def install() -> str | None:
    """Returns the command that installs SYCL's packages.

    A torch for XPU pins its intel-sycl-rt, so beside one only what is missing is named, in that one's version; None
    when nothing is missing.
    """
    if not _xpu_torch():
        return _pip(_PACKAGES, _RELEASES.get(needed() or 9, _RELEASES[9]))
    release = required() or _version("intel-sycl-rt")
    if release is None:
        return "install this torch again, with the packages that it requires"
    lacking = [name for name in _PACKAGES if _version(name) is None]
    return _pip(lacking, release) if lacking else None


def _pip(names: Iterable[str], release: str) -> str:
    return "pip install " + " ".join(f"'{name}=={release}'" for name in names)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _xpu_torch() -> str | None:
    import torch

    return getattr(torch.version, "xpu", None)


def _torchs() -> str:
    import torch

    return f", which torch {torch.__version__} brought" if _xpu_torch() else ""
