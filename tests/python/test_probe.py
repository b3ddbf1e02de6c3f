# SPDX-License-Identifier: MIT
"""The probe's rules for operators that the sycl device does not dispatch to: those of GPUs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from xpugraph.errors import BuildError
from xpugraph.probe import Probe, _draws

aten = torch.ops.aten


def _attention(dropout: float) -> torch.Tensor:
    q, k, v = (torch.rand(2, 2, 4, 8) for _ in range(3))
    with Probe([], [q, k, v]):
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout)


def test_fused_attention_without_dropout_is_recorded_and_with_dropout_refused():
    """torch says of every fused attention that it may draw random numbers."""
    fused = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert torch.Tag.nondeterministic_seeded in fused.tags
    _attention(0.0)
    with pytest.raises(BuildError, match=r"draws random numbers \(aten"):
        _attention(0.3)


@pytest.mark.parametrize(
    ("operator", "args", "kwargs", "draws"),
    [
        (aten._scaled_dot_product_efficient_attention.default, (1, 1, 1, None, False), {}, False),
        (aten._scaled_dot_product_efficient_attention.default, (1, 1, 1, None, False, 0.1), {}, True),
        (aten._scaled_dot_product_fused_attention_overrideable.default, (1, 1, 1), {"dropout_p": 0.0}, False),
        (aten._scaled_dot_product_fused_attention_overrideable.default, (1, 1, 1), {"dropout_p": 0.2}, True),
        (aten._scaled_dot_product_flash_attention.default, (1, 1, 1), {}, False),
        (aten.native_dropout.default, (1, 0.5, False), {}, False),
        (aten.native_dropout.default, (1, 0.5, True), {}, True),
        (aten.native_dropout.default, (1, 0.5, None), {}, True),
        (aten.rrelu_with_noise.default, (1, 1), {}, False),
        (aten.rrelu_with_noise.default, (1, 1), {"training": True}, True),
        (aten.bernoulli_.float, (1, 0.0), {}, True),
        (aten.rand.default, ([2],), {}, True),
        (aten.add.Tensor, (1, 1), {}, False),
    ],
)
def test_what_draws(operator, args, kwargs, draws):
    assert _draws(operator, args, kwargs) is draws
