# SPDX-License-Identifier: MIT
"""The models of the bench."""

from __future__ import annotations

import pytest
import torch

from xpugraph import bench, models


@pytest.mark.parametrize("name", models.model_names())
def test_models_tell_inputs_apart_so_that_stale_rows_are_seen(name):
    if name != "mlp":
        pytest.importorskip("PIL")
    module, shape = models.make_model(name)
    assert not module.training
    x = torch.randn(2, *shape)
    with torch.no_grad():
        y = module(x)
        assert bench.relative_error(y.flip(0), y) > 20 * bench.TOLERANCE
        assert bench.relative_error(y, models.make_model(name)[0](x)) == 0  # seeded


def test_making_a_model_leaves_the_random_state():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    models.make_model("mlp")
    assert torch.equal(torch.rand(3), expected)
