# SPDX-License-Identifier: MIT
"""Bytes of a device: what is free, and what this process has reserved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a device, in bytes; the machine's for the CPU and the SYCL CPU device. None: it does not tell."""
    if device.type in ("cpu", "sycl"):
        return _available()
    try:
        return int(getattr(torch, device.type).mem_get_info(device)[0])
    except (AttributeError, RuntimeError):  # some Intel GPUs do not tell
        return None


def reserved_bytes(device: torch.device) -> int | None:
    """Bytes that torch's allocator has taken from the device in this process; None where there is no such count."""
    module = _module(device)
    return int(module.memory_reserved(device)) if hasattr(module, "memory_reserved") else None


def peak_allocated_bytes(device: torch.device, start: bool = False) -> int | None:
    """Most bytes in tensors at once since it was called with `start`, which begins anew; None: no such count."""
    module = _module(device)
    if not hasattr(module, "max_memory_allocated"):
        return None
    if start:
        module.reset_peak_memory_stats(device)
    return int(module.max_memory_allocated(device))


def release_cache(device: torch.device) -> None:
    """Gives back what the allocator keeps and no tensor uses. Not while a graph is captured.

    On xpu it does nothing: torch.xpu.empty_cache waits for every queue of the device, which fails in whoever captures
    meanwhile and has crashed after replays (pytorch/pytorch#187277). There the memory stays with torch.
    """
    if device.type == "xpu":
        return
    module = _module(device)
    if hasattr(module, "empty_cache"):
        module.empty_cache()


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type, None)


def _available() -> int | None:
    """MemAvailable of /proc/meminfo, which counts what the page cache would give back."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    value = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if value is None else int(value) * 1024
