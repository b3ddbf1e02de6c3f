# SPDX-License-Identifier: MIT
"""What ``xpugraph env`` tells: torch, SYCL's packages and libraries, runtimes, devices. No probe fails another."""

from __future__ import annotations

import ctypes.util
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from ._version import __version__

_TRITON = ("pytorch-triton-xpu", "triton-xpu")  # the older and the newer name of one package
SYCL_PACKAGES = (
    "intel-sycl-rt",
    "intel-opencl-rt",
    "intel-cmplr-lib-ur",
    "intel-cmplr-lib-rt",
    "umf",
    *_TRITON,
)
_DRI, _PCI = Path("/dev/dri"), Path("/sys/bus/pci/devices")
_VARIABLES = re.compile(r"(SYCL|UR|ONEAPI|ZE|XPUGRAPH)_|.*ALLOC_CONF|LD_(LIBRARY_PATH|PRELOAD)$")


def device_name(device: str) -> str:
    """Returns the device as given, ``xpu`` (the current one) or ``xpu:1``, and its name where that can be told."""
    import torch

    kind, _, index = device.partition(":")
    try:
        name = (
            _sycl()["name"] if kind == "sycl" else getattr(torch, kind).get_device_name(int(index) if index else None)
        )
    except Exception:  # as with the other probes
        return device
    return f"{device} ({name})"


def unseen_gpu() -> str | None:
    """Returns what to do when torch was built for XPU and sees no xpu device, else None."""
    import torch

    if getattr(torch.version, "xpu", None) is None or torch.xpu.is_available():
        return None
    return f"torch {torch.__version__} was built for XPU and sees no GPU. {_unseen(_cards())}; see docs/install.md"


def _unseen(cards: list[dict[str, Any]]) -> str:
    intel = [card for card in cards if card["vendor"] == "0x8086"]
    if not intel:
        return "No Intel GPU is on this machine's PCI bus, or this container is not shown it"
    for card in intel:
        if card["kernel_driver"] == "none":
            return (
                f"The kernel ({platform.release()}) has no driver for the card {card['device']}: Arc B cards want 6.12 "
                "or later, Data Center GPU Max and Flex Intel's own kernel modules"
            )
    given = [card for card in intel if card["node"] != "none"]
    if not given:
        return f"The card is there and not in {_DRI}: give it to this container (--device /dev/dri)"
    if not any(card["usable"] for card in given):
        return f"This user may not open {_DRI / given[0]['node']}: sudo gpasswd -a $USER render, then log in again"
    return (
        "The card is there: its Level Zero driver is missing (libze-intel-gpu1), or ONEAPI_DEVICE_SELECTOR or "
        "ZE_AFFINITY_MASK hides it"
    )


def versions() -> dict[str, str]:
    """Returns the versions that a measurement depends on, of what is installed."""
    import torch

    found = {"xpugraph": __version__, "python": sys.version.split()[0], "torch": torch.__version__}
    for package in ("torchvision", "intel-sycl-rt", "intel-opencl-rt", "intel-cmplr-lib-ur", *_TRITON):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def collect(topics: Collection[str] | None = None) -> dict[str, Any]:
    """Returns the findings by topic, in plain JSON types; a probe that fails leaves its reason as text.

    Args:
        topics: Those to return, all if not given. The others' probes do not run.
    """
    return {topic: _guarded(probe) for topic, probe in _probes().items() if topics is None or topic in topics}


def topics() -> list[str]:
    """Returns what `collect` tells of, what asks no device first."""
    return list(_probes())


def _probes() -> dict[str, Callable[[], Any]]:
    return {
        "xpugraph": lambda: __version__,
        "python": lambda: f"{sys.version.split()[0]} ({sys.executable})",
        "platform": platform.platform,
        "torch": _torch,
        "variables": _variables,
        "sycl_packages": _sycl_packages,
        "sycl_libraries": _sycl_libraries,
        "gpus": _gpus,
        "known_faults": _known_faults,
        "sycl_build": _sycl_build,
        "runtimes": _runtimes,
        "warnings": _warnings,  # of the libraries that the ones above have loaded
        "devices": _devices,
        "capture_engines": _capture_engines,
        "loaded_libraries": _loaded_libraries,  # after the probes above, which load them
    }


def _guarded(probe: Callable[[], Any]) -> Any:
    try:
        return probe()
    except Exception as error:  # a probe looks at what may be missing or broken in any way
        return f"not available: {type(error).__name__}: {error}"


def _torch() -> dict[str, Any]:
    import torch

    return {
        "version": torch.__version__,
        "xpu": getattr(torch.version, "xpu", None),
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
    }


def _variables() -> dict[str, str]:
    """Returns the environment variables that change what SYCL, the drivers, torch's allocator or xpugraph do."""
    return {name: value for name, value in sorted(os.environ.items()) if _VARIABLES.match(name)}


def _sycl_packages() -> dict[str, str]:
    found = {}
    for package in SYCL_PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _sycl_libraries() -> dict[str, Any]:
    found: dict[str, Any] = {
        "libsycl": _installed_files("intel-sycl-rt", "libsycl") or ctypes.util.find_library("sycl"),
        "adapters": _installed_files("intel-cmplr-lib-ur", r"libur_adapter_\w+"),
        "opencl_cpu": _installed_files("intel-opencl-rt", "libintelocl"),
    }
    return {name: value or "not found" for name, value in found.items()}


def _cards() -> list[dict[str, Any]]:
    """Returns the display devices of the PCI bus, those without a kernel driver among them."""

    def told(path: Path) -> str:
        return path.read_text(encoding="utf-8").strip() if path.exists() else "unknown"

    cards = []
    for device in sorted(_PCI.glob("*")):
        if not told(device / "class").startswith("0x03"):
            continue
        names = [node.name for node in (device / "drm").glob("renderD*") if (_DRI / node.name).exists()]
        card: dict[str, Any] = {name: told(device / name) for name in ("vendor", "device")}
        card["kernel_driver"] = (device / "driver").resolve().name if (device / "driver").exists() else "none"
        card["node"] = names[0] if names else "none"
        card["usable"] = bool(names) and os.access(_DRI / names[0], os.R_OK | os.W_OK)
        cards.append(card)
    return cards


def _gpus() -> dict[str, Any]:
    """Returns what the kernel and the system's libraries tell of GPUs; no driver is asked, so that none can crash."""
    folders = [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib"), Path("/usr/local/lib")]
    names = ("libze_loader.so.1", "libze_intel_gpu.so.1")
    libraries = {folder / name for folder in folders for name in names if (folder / name).exists()}
    return {
        "cards": _cards() or "none",
        "level_zero": sorted({library.resolve().name for library in libraries}) or "not found",
    }


def _installed_files(package: str, stem: str) -> list[str]:
    """Returns where a package has put the shared libraries whose name matches, each under its shortest name."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return []
    shortest: dict[str, Path] = {}
    for file in sorted(files, key=lambda file: -len(file.name)):
        match = re.fullmatch(rf"({stem})\.so[.\d]*", file.name)
        path = Path(str(file.locate()))
        if match and path.exists():
            shortest[match[1]] = path
    return sorted(str(path.resolve()) for path in shortest.values())


def _extension() -> Any:
    """Returns the extension, loaded the way `enable_sycl_device` does it but without making a torch device."""
    from . import _native, devices

    devices.point_to_runtime()
    return _native.load()


def _runtimes() -> list[str]:
    return list(_extension().runtimes())


def _sycl_core() -> Any:
    core = getattr(_extension(), "sycl", None)
    if core is None:
        raise RuntimeError("xpugraph was built without SYCL")
    return core


def _pairs(text: str, separator: str) -> dict[str, str]:
    pairs = (part.partition(": ") for part in text.split(separator))
    return {name: value for name, _, value in pairs if name}


def _sycl_build() -> dict[str, Any]:
    """Returns what the extension was compiled against, and whether that is here."""
    from . import libsycl

    found: dict[str, Any] = {"needs": f"libsycl.so.{libsycl.needed()}" if libsycl.needed() else "no libsycl"}
    found["installed"] = [f"libsycl.so.{major}" for major in sorted(libsycl.installed())]
    found["conflict"] = libsycl.conflict()
    found["headers"] = _guarded(lambda: _pairs(_sycl_core().build(), "\n"))
    return found


def _capture_engines() -> list[Any]:
    """Returns every device that SYCL sees, with what records graphs on it."""
    return [_pairs(line, "; ") if ": " in line else line for line in _sycl_core().devices().splitlines()]


def _known_faults() -> list[str]:
    import torch

    from . import known_faults

    return known_faults.concerning(torch.__version__, getattr(torch.version, "xpu", None))


def _devices() -> dict[str, Any]:
    return {kind: _guarded(probe) for kind, probe in (("xpu", _xpu), ("cuda", _cuda), ("sycl", _sycl))}


def _xpu() -> Any:
    import torch

    if not torch.xpu.is_available():
        return "none"
    return [_attributes(torch.xpu.get_device_properties(index)) for index in range(torch.xpu.device_count())]


def _cuda() -> Any:
    import torch

    if not torch.cuda.is_available():
        return "none"
    return [_attributes(torch.cuda.get_device_properties(index)) for index in range(torch.cuda.device_count())]


def _attributes(properties: Any) -> dict[str, Any]:
    what = "name platform_name device_id driver_version version total_memory max_compute_units has_fp64 major minor"
    return {name: getattr(properties, name) for name in what.split() if hasattr(properties, name)}


def _sycl() -> dict[str, str]:
    """Returns what the SYCL runtime tells of its CPU device, aspects of graphs among it."""
    core = _extension().sycl
    missing = core.missing()
    if missing is not None:
        raise RuntimeError(missing)
    return _pairs(core.describe(), "\n")


def _warnings() -> list[str]:
    from . import libsycl

    return libsycl.warnings()


def _loaded_libraries() -> list[str]:
    """Returns the SYCL libraries this process has mapped, which may be others than those installed beside it."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    wanted = ("libsycl", "libur_", "libze_", "libintelocl", "libOpenCL", "libcudart")
    return sorted(path for path in paths if Path(path).name.startswith(wanted))


def lines(findings: Any, indent: int = 0) -> Iterator[str]:
    """Yields the findings as indented ``name: value`` lines."""
    pad = "  " * indent
    if isinstance(findings, dict):
        for name, value in findings.items():
            if isinstance(value, (dict, list)) and value:
                yield f"{pad}{name}:"
                yield from lines(value, indent + 1)
            else:
                yield f"{pad}{name}: {_word(value)}"
    elif isinstance(findings, list):
        for value in findings:
            if isinstance(value, dict):
                yield f"{pad}- " + ", ".join(f"{name} {_word(item)}" for name, item in value.items())
            else:
                yield f"{pad}- {_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None or value == [] or value == {} else str(value)
