# SPDX-License-Identifier: MIT
"""Enables the sycl torch device: PyTorch's PrivateUse1 device over a SYCL queue of the CPU."""

from __future__ import annotations

import atexit
import ctypes
import importlib.metadata
import os
import sys
import threading
from pathlib import Path

import torch

from . import _native, libsycl
from .errors import MissingRuntimeError, StateError

_NAME = "sycl"
_lock = threading.Lock()
_worker_threads = 0


def enable_sycl_device(gather: bool = True, worker_threads: int | None = None) -> torch.device:
    """Makes ``torch.device("sycl")`` and ``torch.sycl`` exist in this process and returns the device.

    Importing xpugraph does not do this, because a process has one such device and it may belong to somebody else.
    Later calls change ``gather`` only.

    Args:
        gather: Consecutive operators of a capture become one node of the graph, which is fastest. False: one node each.
        worker_threads: Threads of the operators that run on the device. Default: ``torch.get_num_threads()``.

    Raises:
        MissingRuntimeError: No SYCL runtime, or no CPU device that can record graphs.
        StateError: The process's PrivateUse1 device has another owner.
    """
    with _lock:
        current = torch._C._get_privateuse1_backend_name()
        if current not in ("privateuseone", _NAME) or (current == _NAME and not hasattr(torch, _NAME)):
            raise StateError(f"this process's PrivateUse1 device is {current!r} already, and there can be one only")
        if current != _NAME:
            _register(worker_threads or 0)
        _native.load().sycl.set_gather(gather)
    return torch.device(_NAME, 0)


def _register(worker_threads: int) -> None:
    point_to_runtime()
    core = getattr(_native.load(), "sycl", None)
    if core is None:
        first = "" if (command := libsycl.install()) is None else f"{command}, then "
        raise MissingRuntimeError(f"xpugraph was built without SYCL: {first}build xpugraph again")
    missing = core.missing()
    if missing is not None:
        hint = libsycl.install() or "the packages are installed: look at OCL_ICD_FILENAMES and ONEAPI_DEVICE_SELECTOR"
        raise MissingRuntimeError(f"{missing}; {hint}")
    from . import _torch_sycl

    global _worker_threads
    _worker_threads = worker_threads or torch.get_num_threads()
    core.enable(_worker_threads)
    atexit.register(core.drain)  # an operator written in Python must not outlive the interpreter
    torch.utils.rename_privateuse1_backend(_NAME)
    torch._register_device_module(_NAME, _torch_sycl)
    torch.utils.generate_methods_for_privateuse1_backend()


def worker_threads() -> int:
    """Threads of what runs on the sycl device; 0 before it is enabled."""
    return _worker_threads


def point_to_runtime() -> None:
    """Lets SYCL find its OpenCL CPU driver, and this process its libsycl, without any setting of the user's."""
    driver = _find("intel-opencl-rt", "libintelocl.so")
    if driver is not None:
        os.environ.setdefault("OCL_ICD_FILENAMES", str(driver))
    if (wrong := libsycl.conflict()) is not None:
        raise MissingRuntimeError(wrong)
    major = libsycl.needed()
    library = None if major is None else libsycl.installed().get(major)
    if library is not None and major not in libsycl.loaded():
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise MissingRuntimeError(f"{library} does not load ({error}). {libsycl.missing()}") from error


def _find(distribution: str, name: str) -> Path | None:
    """A file of an installed wheel; the wheels put their libraries in the environment's lib folder."""
    candidates = [Path(sys.prefix) / "lib" / name]
    try:
        files = importlib.metadata.files(distribution) or []
        candidates = [Path(str(file.locate())) for file in files if file.name == name] + candidates
    except importlib.metadata.PackageNotFoundError:
        pass
    return next((path.resolve() for path in candidates if path.exists()), None)
