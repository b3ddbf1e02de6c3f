# SPDX-License-Identifier: MIT
"""The batch dimension of tensors: how it is found, and how rows are made, cut and widened along it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from .call import Call, TensorArgument, is_integer
from .errors import BuildError, ConfigError

_MOST_RANGES = 4096  # of one tensor; they are saved in checkpoints
BatchDims = Mapping[str, "int | None"] | Sequence["int | None"]


def tensor_arguments(
    calls: Sequence[Call], batch_dims: BatchDims | None = None
) -> tuple[list[TensorArgument], list[int]]:
    """The tensors of a call with their batch dimensions, and the batch size of every sample.

    A dimension follows the batch when its length differs between samples of two batch sizes. With samples of one batch
    size only, and no `batch_dims`, every tensor whose dimension 0 is as long as that of the first tensor is taken to
    follow the batch in it.

    Raises:
        ConfigError: The samples or `batch_dims` do not tell the batch; names the tensor.
    """
    leaves = calls[0].leaves
    shapes = [[tuple(call.leaves.tensors[i].shape) for call in calls] for i in range(len(leaves.names))]
    if not shapes:
        raise ConfigError("samples: the module is called without any tensor, so there is no batch")
    dims = _given_dims(leaves.names, batch_dims) if batch_dims is not None else _found_dims(leaves.names, shapes)
    for name, dim, by_sample in zip(leaves.names, dims, shapes, strict=True):
        if dim is not None and not 0 <= dim < len(by_sample[0]):
            raise ConfigError(f"batch_dims: {name} has {len(by_sample[0])} dimensions, so {dim} is not one of them")
    batched = [i for i, dim in enumerate(dims) if dim is not None]
    if not batched:
        raise ConfigError(
            "samples: no tensor follows the batch (all have 0 dimensions or the same shape); give batch_dims"
        )
    batch_sizes = [min(shapes[i][s][dims[i]] for i in batched) for s in range(len(calls))]  # type: ignore[index]
    if any(size < 1 for size in batch_sizes):
        raise ConfigError("samples: a sample with an empty batch tells nothing; give at least one row")
    largest = max(range(len(calls)), key=lambda s: batch_sizes[s])
    arguments = []
    for i, (name, tensor) in enumerate(zip(leaves.names, calls[largest].leaves.tensors, strict=True)):
        rows = _rows_per_item(name, dims[i], shapes[i], batch_sizes)
        shape, strides, (low, high) = tuple(tensor.shape), tensor.stride(), _range(tensor)
        ranges = _ranges(tensor, dims[i], rows)
        arguments.append(TensorArgument(name, tensor.dtype, shape, strides, dims[i], rows, low, high, ranges))
    return arguments, batch_sizes


def _rows_per_item(name: str, dim: int | None, shapes: list[tuple[int, ...]], batch_sizes: list[int]) -> int:
    if dim is None:
        return 1
    ratios = {shape[dim] / batch for shape, batch in zip(shapes, batch_sizes, strict=True)}
    if len(ratios) != 1 or not (ratio := ratios.pop()).is_integer() or ratio < 1:
        listed = ", ".join(f"{shape[dim]} rows at batch size {b}" for shape, b in zip(shapes, batch_sizes, strict=True))
        raise ConfigError(f"samples: {name} has {listed}; its rows must be a whole multiple of the batch")
    return int(ratio)


def _given_dims(names: list[str], batch_dims: BatchDims) -> list[int | None]:
    if isinstance(batch_dims, Mapping):
        unknown = sorted(set(batch_dims) - set(names))
        if unknown:
            raise ConfigError(f"batch_dims: no tensor is called {unknown[0]!r}; there are {', '.join(names)}")
        missing = [name for name in names if name not in batch_dims]
        if missing:
            raise ConfigError(f"batch_dims: nothing is said of {missing[0]!r} (None: it does not follow the batch)")
        return [batch_dims[name] for name in names]
    if len(batch_dims) != len(names):
        raise ConfigError(f"batch_dims: {len(batch_dims)} were given for {len(names)} tensors ({', '.join(names)})")
    return list(batch_dims)


def _found_dims(names: list[str], shapes: list[list[tuple[int, ...]]]) -> list[int | None]:
    varying: list[int | None] = []
    for name, by_sample in zip(names, shapes, strict=True):
        dims = [d for d in range(len(by_sample[0])) if len({shape[d] for shape in by_sample}) > 1]
        if len(dims) > 1:
            raise ConfigError(
                f"samples: {name} differs in dimensions {dims} between samples ({', '.join(map(str, by_sample))}); "
                "only the batch may differ"
            )
        varying.append(dims[0] if dims else None)
    if any(dim is not None for dim in varying):
        return varying
    # Samples of one batch size: dimension 0 of whatever is as long as the first tensor that has a dimension.
    lengths = [by_sample[0][0] if by_sample[0] else None for by_sample in shapes]
    first = next((length for length in lengths if length is not None), None)
    return [0 if length is not None and length == first else None for length in lengths]


def _range(tensor: torch.Tensor) -> tuple[float, float]:
    """Smallest and largest finite value, (0, 0) when there is none. Complex values count by their real part."""
    values = tensor.detach().cpu()
    values = values.real if values.is_complex() else values
    values = values.double()
    values = values[torch.isfinite(values)]
    return (float(values.min()), float(values.max())) if values.numel() else (0.0, 0.0)


def _ranges(tensor: torch.Tensor, batch_dim: int | None, rows_per_item: int) -> tuple[tuple[int, int], ...] | None:
    """Of integers, smallest and largest value at each place of an item; None for others, and where items are long."""
    if not is_integer(tensor.dtype):
        return None
    values = tensor.detach().cpu().to(torch.int64).clamp(max=(1 << 63) - 2)  # the next one is an int64 too
    if values.numel() == 0:
        return None
    items = 1
    if batch_dim is not None:
        items, values = values.shape[batch_dim] // rows_per_item, values.movedim(batch_dim, 0)
    places = values.reshape(items, -1)
    if places.shape[1] > _MOST_RANGES:
        return None
    return tuple(zip(places.amin(0).tolist(), places.amax(0).tolist(), strict=True))


def take_rows(tensor: torch.Tensor, argument: TensorArgument, start: int, count: int) -> torch.Tensor:
    """Items start … start + count of a tensor (a view); the whole tensor when it does not follow the batch."""
    if argument.batch_dim is None:
        return tensor
    return tensor.narrow(argument.batch_dim, argument.rows(start), argument.rows(count))


def fresh_inputs(
    arguments: Sequence[TensorArgument],
    source: Sequence[torch.Tensor] | None,
    batch_size: int,
    device: torch.device,
    generator: torch.Generator,
) -> list[torch.Tensor]:
    """Random inputs of `batch_size` items that stay within what the module was shown.

    Items are drawn from those of `source`, the same ones for every tensor: what belongs together stays together, and
    every item comes before one comes twice. Without `source`, values are uniform in the recorded ranges. Floating-point
    values are then shrunk towards zero by a random factor, smaller for the first rows than for the last: no two
    prefixes have the same maximum, mean or norm, which is what tells a module whose rows depend on each other. Values
    never leave the sign or grow beyond the sample's, so that a module that takes logarithms or indices still gets valid
    input.
    """
    order = None if source is None else _order(arguments, source, batch_size, generator)
    inputs = []
    for i, argument in enumerate(arguments):
        base = _draw(argument, None if source is None else source[i].detach().cpu(), order, batch_size, generator)
        if argument.batch_dim is not None and base.is_floating_point():
            base = _shrink(base, argument.batch_dim, argument.rows(batch_size), generator)
        inputs.append(_like_sample(base, argument, device))
    return inputs


def _order(
    arguments: Sequence[TensorArgument], source: Sequence[torch.Tensor], batch_size: int, generator: torch.Generator
) -> torch.Tensor:
    batched = [(a, x) for a, x in zip(arguments, source, strict=True) if a.batch_dim is not None]
    have = min(x.shape[a.batch_dim] // a.rows_per_item for a, x in batched)  # type: ignore[index]
    order = torch.randperm(have, generator=generator)[:batch_size]
    return torch.cat([order, torch.randint(have, (max(0, batch_size - have),), generator=generator)])


def _draw(
    argument: TensorArgument,
    source: torch.Tensor | None,
    order: torch.Tensor | None,
    batch_size: int,
    generator: torch.Generator,
) -> torch.Tensor:
    rows = argument.rows(batch_size)
    if source is not None and argument.batch_dim is None:
        return source
    if source is not None and order is not None and bool((source != 0).any()):
        within = torch.arange(argument.rows_per_item)
        chosen = (order[:, None] * argument.rows_per_item + within).reshape(-1)
        return source.index_select(argument.batch_dim, chosen)  # type: ignore[arg-type]
    shape = list(argument.shape)
    if argument.batch_dim is not None:
        shape[argument.batch_dim] = rows
    if argument.dtype.is_floating_point or argument.dtype.is_complex:
        if argument.low == argument.high == 0.0:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(argument.dtype)
        unit = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (argument.low + unit * (argument.high - argument.low)).to(argument.dtype)
    return _draw_integers(argument, shape, generator).to(argument.dtype)


def _draw_integers(argument: TensorArgument, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    if argument.ranges is None:
        low, high = argument.integer_range
        return torch.randint(low, high + 1, shape, generator=generator)
    # One column a place of an item, each with its own range.
    items = 1 if argument.batch_dim is None else shape[argument.batch_dim] // argument.rows_per_item
    columns = [torch.randint(low, high + 1, (items,), generator=generator) for low, high in argument.ranges]
    drawn = torch.stack(columns, 1)
    if argument.batch_dim is None:
        return drawn.reshape(shape)
    others = [length for dim, length in enumerate(shape) if dim != argument.batch_dim]
    return drawn.reshape([shape[argument.batch_dim], *others]).movedim(0, argument.batch_dim)


def _shrink(values: torch.Tensor, dim: int, rows: int, generator: torch.Generator) -> torch.Tensor:
    along = [1] * values.dim()
    along[dim] = rows
    ramp = torch.linspace(0.25, 1.0, rows).reshape(along)
    factor = ramp * (0.5 + 0.5 * torch.rand(values.shape, generator=generator))
    return torch.where(torch.isfinite(values), (values * factor).to(values.dtype), values)


def _like_sample(values: torch.Tensor, argument: TensorArgument, device: torch.device) -> torch.Tensor:
    """On the device, in the memory format of the sample. No view: Dynamo would fix what the view is of."""
    order = sorted(range(values.dim()), key=lambda d: argument.strides[d], reverse=True)
    inverse = [order.index(d) for d in range(values.dim())]
    like = values.permute(order).contiguous().permute(inverse)
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device).copy_(like)


def output_dims(
    names: Sequence[str], a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], batch_a: int, batch_b: int
) -> list[tuple[int | None, int]]:
    """Batch dimension and rows per item of every output, from eager runs at two batch sizes.

    Raises:
        BuildError: An output follows the batch in a way that cannot be cut and joined; names it.
    """
    found: list[tuple[int | None, int]] = []
    for name, x, y in zip(names, a, b, strict=True):
        if x.dim() != y.dim() or x.dtype != y.dtype:
            raise BuildError(
                f"{name} has another number of dimensions or dtype at batch size {batch_a} than at {batch_b}"
            )
        dims = [d for d in range(x.dim()) if x.shape[d] != y.shape[d]]
        if not dims:
            found.append((None, 1))
            continue
        lengths = (x.shape[dims[0]], y.shape[dims[0]])
        if len(dims) > 1 or lengths[0] * batch_b != lengths[1] * batch_a or lengths[0] % batch_a:
            raise BuildError(
                f"{name} has shape {tuple(x.shape)} at batch size {batch_a} and {tuple(y.shape)} at {batch_b}: "
                "one dimension must follow the batch, with a whole number of rows for each item"
            )
        found.append((dims[0], lengths[0] // batch_a))
    return found
