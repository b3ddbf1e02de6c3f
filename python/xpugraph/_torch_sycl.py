# SPDX-License-Identifier: MIT
"""What ``torch.sycl`` is after :func:`xpugraph.enable_sycl_device`: what torch and its users call of a device."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from . import _native

Event = torch.Event


def _core() -> Any:
    return _native.load().sycl


class Stream(torch.Stream):
    """A stream of the sycl device. Also a context manager that makes it current."""

    def __new__(cls, device: Any = "sycl", priority: int = 0, **kwargs: Any) -> Stream:
        """A new stream, or the one that ``stream_id`` and the like in ``kwargs`` name."""
        return super().__new__(cls, **kwargs) if kwargs else super().__new__(cls, device=device, priority=priority)


class device:  # noqa: N801  torch's name for it
    """A context in which ``device`` is current, which the only device always is."""

    def __init__(self, device: Any) -> None:
        set_device(device)

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, *exception: object) -> None:
        """Does nothing."""


def is_available() -> bool:
    """True: this module exists only once the device is enabled."""
    return True


def is_initialized() -> bool:
    """True, as :func:`is_available`."""
    return True


def device_count() -> int:
    """There is one."""
    return 1


def current_device() -> int:
    """Always 0."""
    return 0


def set_device(device: Any) -> None:
    """Does nothing but check that ``device`` is the one there is.

    Raises:
        ValueError: It is another one.
    """
    index = torch.device("sycl", device).index if isinstance(device, int) else torch.device(device).index
    if index not in (None, 0):
        raise ValueError(f"there is one sycl device, so no {device!r}")


def synchronize(device: Any = None) -> None:
    """Waits for all streams of the device; raises what failed on it."""
    torch.accelerator.synchronize()


def current_stream(device: Any = None) -> torch.Stream:
    """The calling thread's current stream."""
    return torch.accelerator.current_stream()


def set_stream(stream: torch.Stream) -> None:
    """Makes ``stream`` the calling thread's current stream."""
    torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """A context in which ``stream`` is current; None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream


def memory_allocated(device: Any = None) -> int:
    """Bytes in tensors now."""
    return int(_core().memory_stats()["allocated_bytes"])


def max_memory_allocated(device: Any = None) -> int:
    """Most bytes that were in tensors at once."""
    return int(_core().memory_stats()["peak_allocated_bytes"])


def memory_reserved(device: Any = None) -> int:
    """Bytes taken from the device, in tensors or kept for the next ones."""
    return int(_core().memory_stats()["reserved_bytes"])


def memory_stats(device: Any = None) -> dict[str, int]:
    """All counters of the allocator."""
    return dict(_core().memory_stats())


def reset_peak_memory_stats(device: Any = None) -> None:
    """Starts ``max_memory_allocated`` anew."""
    _core().reset_peak_memory()


def empty_cache() -> None:
    """Gives back memory that no tensor uses."""
    _core().empty_cache()


def manual_seed(seed: int) -> None:
    """Seeds the device's default generator for all work that is submitted from now on."""
    _core().default_generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """As :func:`manual_seed`; there is one device."""
    manual_seed(seed)


def initial_seed() -> int:
    """The seed of the default generator."""
    return int(_core().default_generator().initial_seed())


def get_rng_state(device: Any = "sycl") -> torch.Tensor:
    """State of the default generator, after the work submitted so far."""
    return _core().default_generator().get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "sycl") -> None:
    """Sets the state of the default generator, after the work submitted so far."""
    _core().default_generator().set_state(new_state)


def is_current_stream_capturing() -> bool:
    """True while the calling thread records a graph."""
    return bool(_core().is_capturing())


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What ``torch.autocast("sycl")`` accepts. It changes no operator: casting is not done on this device."""
    return [torch.float32, torch.bfloat16, torch.float16]


def _is_in_bad_fork() -> bool:
    return False
