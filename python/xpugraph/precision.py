# SPDX-License-Identifier: MIT
"""TF32: how far apart right results may be where torch computes float32 products with 10 bits of mantissa.

On CUDA convolutions do so by default, with other kernels at other batch sizes. How much that moves a model's results
depends on the model, so that it is measured: eager runs once more in full precision on the same input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_MARGIN = 4.0  # two results in TF32 are at most twice as far from each other as from the full precision; as much again


def uses_tf32(device: torch.device) -> bool:
    """Whether torch may compute float32 products in TF32 on `device`."""
    if device.type not in ("cuda", "xpu"):
        return False
    try:
        return any(getattr(place, name) for place, name in _legacy_switches(device))
    except RuntimeError:  # they were set operator by operator, and torch refuses to say it in one word
        return True


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Computes float32 products in float32 meanwhile, in all threads: the switches are the process's."""
    switches = _legacy_switches(device)
    off: Any = False
    try:
        before = [getattr(place, name) for place, name in switches]
    except RuntimeError:
        switches, off = _switches(device), "ieee"
        before = [getattr(place, name) for place, name in switches]
    try:
        for place, name in switches:
            setattr(place, name, off)
        yield
    finally:
        for (place, name), value in zip(switches, before, strict=True):
            setattr(place, name, value)


def _legacy_switches(device: torch.device) -> list[tuple[Any, str]]:
    """The switches that most programs use. torch raises RuntimeError when others were used beside them."""
    if device.type == "cuda":
        return [(torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
    return [(torch.backends.mkldnn, "allow_tf32")]


def _switches(device: torch.device) -> list[tuple[Any, str]]:
    backends: Any = torch.backends
    places: list[Any] = (
        [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
        if device.type == "cuda"
        else [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    )
    return [(place, "fp32_precision") for place in places]


def tf32_noise(
    device: torch.device, results: Sequence[torch.Tensor], run: Callable[[], Sequence[torch.Tensor]]
) -> list[float]:
    """By how much each of `results` may differ from a right one for TF32's sake: 0 where nothing computes in TF32.

    Args:
        device: Where `run` computes.
        results: What `run` returned before.
        run: Computes them again.
    """
    if not uses_tf32(device) or not any(result.dtype in (torch.float32, torch.complex64) for result in results):
        return [0.0] * len(results)
    with full_precision(device):
        precise = run()
    return [_MARGIN * _apart(a, b) for a, b in zip(results, precise, strict=True)]


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape or not a.numel() or a.dtype not in (torch.float32, torch.complex64):
        return 0.0
    difference = (a - b).abs()
    return float(difference[torch.isfinite(difference)].max()) if bool(torch.isfinite(difference).any()) else 0.0
