# SPDX-License-Identifier: MIT
"""Workload: a dataset turned into how the module is called, and into batches of any size that look like it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..batching import BatchDims, fresh_inputs, take_rows, tensor_arguments
from ..call import Call, as_call, check_same_structure, rebuild_call, take_apart
from ..errors import ConfigError
from ..recipe import Recipe
from ..structure import Leaves, describe, rebuild

MOST_BATCHES = 8  # taken of a loader
_SEED = 20261201  # of the workload's own generator; the global ones are never touched


class Workload:
    """How a module is called, and batches like those of its dataset.

    Attributes:
        recipe: Structure of a call, its tensors and their batch dimensions, the requested batch sizes, the device.
        batch_dims: For ``build``: as given, or as found between batch sizes; None when it was only guessed.

    Args:
        module: On its device.
        dataset: A tensor (one batch), a tuple of arguments, a dict of keyword arguments, a list of those, or a loader:
            anything else that is iterated for them. Of a loader at most 8 batches are taken.
        batch_sizes: The sizes that will be served; None: 1 and the largest batch of the dataset.
        batch_dims: As in ``XPUGraphBackend.build``.
        exact_batch_sizes: Graphs are recorded of exactly these sizes too.

    Raises:
        ConfigError: The dataset does not fit the module's forward, or does not tell the batch; names the argument.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        dataset: Any,
        batch_sizes: Sequence[int] | None = None,
        batch_dims: BatchDims | None = None,
        exact_batch_sizes: bool = False,
    ) -> None:
        self.exact_batch_sizes = exact_batch_sizes
        samples = take_samples(dataset)
        device = _device(module, samples)
        calls = [_take_apart(module, to_device(sample, device, f"dataset[{i}]")) for i, sample in enumerate(samples)]
        check_same_structure(calls)
        arguments, seen = tensor_arguments(calls, batch_dims)
        largest = max(range(len(calls)), key=seen.__getitem__)
        requested = [1, seen[largest]] if batch_sizes is None else list(batch_sizes)
        self.recipe = Recipe(calls[largest].arguments, arguments, sorted(set(requested)), device)
        self.batch_dims: list[int | None] | None = None
        if batch_dims is not None or len(set(seen)) > 1:
            self.batch_dims = [t.batch_dim for t in arguments]
        self._source = calls[largest].leaves.tensors
        self._all: list[torch.Tensor] = []
        self._rows = 0

    @property
    def largest(self) -> int:
        """The largest requested batch size."""
        return self.recipe.batch_sizes[-1]

    @property
    def device(self) -> torch.device:
        """Where module and batches are."""
        return self.recipe.device

    def tensors(self, batch_size: int) -> list[torch.Tensor]:
        """Random rows like the dataset's, in memory of their own."""
        if self._rows < batch_size:
            generator = torch.Generator().manual_seed(_SEED)
            self._rows = max(batch_size, self.largest)
            self._all = fresh_inputs(self.recipe.tensors, self._source, self._rows, self.device, generator)
        return [take_rows(x, t, 0, batch_size).clone() for x, t in zip(self._all, self.recipe.tensors, strict=True)]

    def call(self, batch_size: int, device: torch.device | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of one call with `batch_size` rows; defaults are left to forward.

        Args:
            batch_size: Rows of the batch.
            device: Where the tensors shall be, instead of the workload's device.
        """
        tensors = [tensor.to(device or self.device) for tensor in self.tensors(batch_size)]
        args, kwargs = rebuild_call(self.recipe.arguments, tensors)
        omittable = {a.name for a in self.recipe.arguments if not a.positional and a.omittable}
        return args, {name: value for name, value in kwargs.items() if name not in omittable}

    def sample(self, batch_size: int) -> Any:
        """The same call as a sample of ``build``."""
        args, kwargs = self.call(batch_size)
        if not kwargs:
            return args
        names = [a.name for a in self.recipe.arguments if a.positional]
        if not all(names):
            raise ConfigError(
                "dataset: forward takes positional-only and keyword-only arguments, which no sample can be"
            )
        return dict(zip(names, args, strict=True), **kwargs)

    def samples(self) -> list[Any]:
        """For ``build``: one sample of the largest size."""
        return [self.sample(self.largest)]

    def batch_text(self) -> str:
        """What was taken to be the batch, in words."""
        dims = [f"dimension {t.batch_dim} of {t.name}" for t in self.recipe.tensors if t.batch_dim is not None]
        return ", ".join(dims)

    def input_bytes(self, batch_size: int) -> int:
        """Bytes of the tensors of one call."""
        total = 0
        for t in self.recipe.tensors:
            shape = list(t.shape)
            if t.batch_dim is not None:
                shape[t.batch_dim] = t.rows(batch_size)
            total += torch.Size(shape).numel() * t.dtype.itemsize
        return total


class Arguments:
    """The arguments of calls of one batch size, in turns: no call gets the tensors of the one before.

    Attributes:
        args: Positional ones of the next call.
        kwargs: Keyword ones.
    """

    def __init__(self, workload: Workload, batch_size: int, restore: bool) -> None:
        calls = [workload.call(batch_size) for _ in range(3)]
        self._next = itertools.cycle([(*call, _tensors(call)) for call in calls])
        self._fresh = [t.clone() for t in _tensors(calls[0])] if restore else []
        self.prepare()

    def prepare(self) -> None:
        """Moves on to the next tensors, with the values that they had at first."""
        self.args, self.kwargs, tensors = next(self._next)
        for tensor, fresh in zip(tensors, self._fresh, strict=False):
            tensor.copy_(fresh)


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves = Leaves()
    describe(list(value), "arguments", leaves)
    return leaves.tensors


def _device(module: torch.nn.Module, samples: Sequence[Any]) -> torch.device:
    """Where the module is; one without weights is where the first sample is."""
    tensors = itertools.chain(module.parameters(), module.buffers(), _tensors(samples[:1]))
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def take_samples(dataset: Any) -> list[Any]:
    """The samples of a dataset.

    Raises:
        ConfigError: There is none, or it is nothing that holds samples.
    """
    if isinstance(dataset, (torch.Tensor, tuple, Mapping)):
        return [dataset]
    if isinstance(dataset, torch.nn.Module) or isinstance(dataset, (str, bytes)) or not hasattr(dataset, "__iter__"):
        raise ConfigError(
            f"dataset: a {type(dataset).__name__} was given; accepted are a tensor (one batch), a tuple of arguments, "
            "a dict of keyword arguments, a list of those, and a DataLoader"
        )
    if isinstance(dataset, list):
        samples = dataset
    else:  # a loader: its last batch may be smaller and so tell the batch dimension, but it may be far away
        samples = list(itertools.islice(iter(dataset), MOST_BATCHES))
    if not samples:
        raise ConfigError("dataset: it is empty; at least one sample is needed")
    return samples


def _take_apart(module: torch.nn.Module, sample: Any) -> Call:
    try:
        return take_apart(module, *as_call(sample))
    except ConfigError as error:
        if type(sample) is list and len(sample) > 1:  # as a loader's default collation makes them
            raise ConfigError(
                f"dataset: a batch of {len(sample)} tensors is {len(sample)} arguments, which do not fit: {error}. If "
                "the loader yields labels as well, give it without: ([x] for x, label in loader)"
            ) from error
        raise


def to_device(sample: Any, device: torch.device, name: str) -> Any:
    """The sample with its tensors on `device`."""
    leaves = Leaves()
    spec = describe(sample, name, leaves)
    return rebuild(spec, [tensor.detach().to(device) for tensor in leaves.tensors])
