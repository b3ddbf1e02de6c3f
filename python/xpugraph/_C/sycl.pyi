# SPDX-License-Identifier: MIT
# Written by `make stubs`; do not edit.
"""
The sycl torch device and bare capture and replay on it.
"""

from __future__ import annotations

import typing

import torch

__all__: list[str] = [
    "Graph",
    "Kernel",
    "abort_capture",
    "begin_capture",
    "build",
    "captured_random_ops",
    "create_pool",
    "default_generator",
    "describe",
    "devices",
    "drain",
    "empty_cache",
    "enable",
    "end_capture",
    "is_capturing",
    "memory_stats",
    "missing",
    "pool_stats",
    "recorded",
    "release_pool",
    "reset_peak_memory",
    "set_gather",
    "set_memory_limit",
    "synchronize",
]

class Graph:
    """
    A recorded graph. Keep the tensors it reads and its pool until it is gone.
    """
    def replay(self, stream: typing.SupportsInt | typing.SupportsIndex | None = None) -> None: ...
    @property
    def nodes(self) -> int: ...

class Kernel:
    """
    A compiled function, launched on the calling thread's stream.
    """
    def __call__(self, *args) -> None: ...
    def __init__(
        self,
        name: str,
        function: typing.SupportsInt | typing.SupportsIndex,
        arguments: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    @property
    def name(self) -> str: ...

def abort_capture() -> None: ...
def begin_capture(arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
def build() -> str:
    """
    The SYCL that this extension was compiled against.
    """

def captured_random_ops() -> list[str]: ...
def create_pool() -> int: ...
def default_generator() -> torch.Generator: ...
def describe() -> str: ...
def devices() -> str:
    """
    All devices that SYCL sees, with the engine that records on each.
    """

def drain() -> None: ...
def empty_cache() -> None: ...
def enable(worker_threads: typing.SupportsInt | typing.SupportsIndex = 0) -> None: ...
def end_capture() -> Graph: ...
def is_capturing() -> bool: ...
def memory_stats() -> dict: ...
def missing() -> str | None:
    """
    Why there is no SYCL CPU device, or None when there is one.
    """

def pool_stats(arg0: typing.SupportsInt | typing.SupportsIndex) -> dict: ...
def recorded() -> dict:
    """
    Graphs recorded in this process by engine, and why native recording refused or failed last.
    """

def release_pool(arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
def reset_peak_memory() -> None: ...
def set_gather(arg0: bool) -> None: ...
def set_memory_limit(arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
def synchronize(stream: typing.SupportsInt | typing.SupportsIndex | None = None) -> None: ...
