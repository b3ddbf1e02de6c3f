# SPDX-License-Identifier: MIT
# Written by `make stubs`; do not edit.
"""
The C++ core of xpugraph. Use it through the xpugraph package.
"""

from __future__ import annotations

import collections.abc
import typing

import torch

from . import sycl

__all__: list[str] = [
    "BatchGrid",
    "Chunk",
    "GraphedCall",
    "ModuleWatch",
    "Parameter",
    "PoolStats",
    "TensorSpec",
    "runtimes",
    "storage_id",
    "sycl",
]

class BatchGrid:
    @staticmethod
    def from_sizes(sizes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> BatchGrid: ...
    @staticmethod
    def regular(
        largest_seen: typing.SupportsInt | typing.SupportsIndex, cap: typing.SupportsInt | typing.SupportsIndex
    ) -> BatchGrid: ...
    def ceil(self, batch: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    @property
    def largest(self) -> int: ...
    @property
    def sizes(self) -> list[int]: ...

class Chunk:
    @property
    def offset(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...

class PoolStats:
    @property
    def peak_used(self) -> int: ...
    @property
    def reserved(self) -> int: ...
    @property
    def used(self) -> int: ...

class TensorSpec:
    def __init__(
        self,
        name: str,
        dtype: torch.dtype,
        shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        strides: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        batch_dim: typing.SupportsInt | typing.SupportsIndex = -1,
        rows_per_item: typing.SupportsInt | typing.SupportsIndex = 1,
        written: bool = False,
    ) -> None: ...

class Parameter:
    def __init__(self, name: str, positional: bool, omittable: bool, node: tuple) -> None: ...

class ModuleWatch:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def add(self, group: dict, key: str, value: typing.Any, name: str) -> None: ...
    def add_items(self, items: list, name: str) -> None: ...
    def add_size(self, group: dict, name: str) -> None: ...
    def changed(self) -> str: ...

class GraphedCall:
    def __call__(self, *args, **kwargs) -> typing.Any: ...
    def __init__(
        self,
        device: torch.device,
        grid: BatchGrid,
        parameters: collections.abc.Sequence[Parameter],
        inputs: collections.abc.Sequence[TensorSpec],
        result: tuple,
        outputs: collections.abc.Sequence[TensorSpec],
        copy_outputs: bool,
        pool_limit_bytes: typing.SupportsInt | typing.SupportsIndex,
        flatten_node: typing.Any,
        unflatten_node: typing.Any,
        reject: typing.Any,
    ) -> None: ...
    def drop(self, size: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def need_unchanged(self) -> None: ...
    def nodes(self, size: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def plan(self, batch_size: typing.SupportsInt | typing.SupportsIndex) -> list[Chunk]: ...
    def pool_bytes_of(self, size: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def publish(self, size: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def record(
        self, size: typing.SupportsInt | typing.SupportsIndex, forward: collections.abc.Callable, publish: bool = True
    ) -> None: ...
    def replay(self, size: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def report_seen(
        self,
        times: typing.SupportsInt | typing.SupportsIndex,
        largest: typing.SupportsInt | typing.SupportsIndex,
        on_seen: typing.Any,
    ) -> None: ...
    def serve(self, watch: ModuleWatch) -> None: ...
    def set_costs(
        self,
        costs: collections.abc.Mapping[
            typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex
        ],
        min_gain: typing.SupportsFloat | typing.SupportsIndex,
        exact_gain: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...
    def static_inputs(self, size: typing.SupportsInt | typing.SupportsIndex) -> list[torch.Tensor]: ...
    def trial(self, size: typing.SupportsInt | typing.SupportsIndex, *args, **kwargs) -> typing.Any: ...
    @property
    def calls(self) -> int: ...
    @property
    def input_bytes(self) -> int: ...
    @property
    def pool_stats(self) -> PoolStats: ...
    @property
    def recordings(self) -> int: ...
    @property
    def replays(self) -> int: ...
    @property
    def sizes(self) -> list[int]: ...

def runtimes() -> list[str]:
    """
    Names of the graph runtimes this build has.
    """

def storage_id(tensor: torch.Tensor) -> int:
    """
    Address of a tensor's storage object; 0 without one. Makes no Python object that would hold it.
    """
