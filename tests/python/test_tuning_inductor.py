# SPDX-License-Identifier: MIT
"""tune over all four backends, and checkpoints of routers with compiled ones."""

from __future__ import annotations

import copy

import torch
from conftest import Fn, mlp
from test_tuning import FAST, statuses

import xpugraph as xg


def test_the_tuner_tries_all_four_and_every_route_is_right(device, tmp_path):
    torch.manual_seed(0)
    model = mlp(16, 3).eval()
    reference = copy.deepcopy(model)
    model = model.to(device)
    strategy = xg.HighestThroughputStrategy(profiling_config=FAST)
    tuned = xg.tune(model, torch.randn(9, 16), [1, 3, 9], strategy, progress=False)
    assert list(statuses(tuned)) == ["eager", "inductor", "graph", "graph+inductor"]
    assert set(statuses(tuned).values()) <= {"routed", "not routed"}
    by_label = {backend.label: backend for backend in tuned.report.backends}
    assert by_label["graph+inductor"].facts["recorded_batch_sizes"] == [1, 2, 4, 8, 9]
    assert 1 <= by_label["graph+inductor"].facts["inductor_compiles"] <= 3
    assert by_label["inductor"].facts["inductor_compiles"] >= 1
    for n in (1, 2, 3, 7, 9, 10, 20):
        x = torch.randn(n, 16)
        torch.testing.assert_close(tuned(x.to(device)).cpu(), reference(x), rtol=1e-4, atol=1e-5)


def test_a_router_of_compiled_backends_is_saved_and_loaded(device, tmp_path):
    torch.manual_seed(0)
    model = mlp(16, 2).eval()
    reference = copy.deepcopy(model)
    model = model.to(device)
    config = xg.XPUGraphBackendConfig(compile_with_inductor=True)
    backends = {"graph+inductor": xg.XPUGraphBackend(config), "inductor": xg.TorchInductorBackend()}
    routes = [xg.Route(1, 3, "graph+inductor"), xg.Route(4, None, "inductor")]
    chosen = xg.OneBackendStrategy(xg.TorchEagerBackend(), FAST)
    report = xg.tune(model, torch.randn(4, 16), strategy=chosen, progress=False).report
    router = xg.BatchSizeRouterBackend(routes, backends).build(model, [torch.randn(8, 16, device=device)])
    path = xg.save(xg.TunedModule(model, router, report), tmp_path / "compiled.zip")
    assert xg.inspect_checkpoint(path).recorded_batch_sizes == {"graph+inductor": [1, 2, 4, 8]}
    loaded = xg.load(mlp(16, 2).eval().to(device), path)
    assert loaded.routes == routes
    for n in (1, 3, 4, 8, 11):
        x = torch.randn(n, 16)
        torch.testing.assert_close(loaded(x.to(device)).cpu(), reference(x), rtol=1e-4, atol=1e-5)
    graph = loaded.backend.backends["graph+inductor"]
    assert graph.counters()["graph_calls"] == 2 and min(graph.nodes().values()) > 0


def test_a_module_that_inductor_refuses_is_served_by_the_others(device):
    """Its reason is in the report, and the plain graph is still built."""

    def forward(x):
        torch._dynamo.graph_break()
        return x * 2 + 1

    module = Fn(forward)
    module.register_buffer("anchor", torch.zeros(1))
    module = module.eval().to(device)
    strategy = xg.HighestThroughputStrategy(
        [xg.XPUGraphBackend(), xg.XPUGraphBackend(xg.XPUGraphBackendConfig(compile_with_inductor=True))], FAST
    )
    tuned = xg.tune(module, torch.randn(4, 16), strategy=strategy, progress=False)
    assert statuses(tuned) == {"graph": "routed", "graph+inductor": "failed"}
    assert "graph_break" in tuned.report.backends[1].reason or "break" in tuned.report.backends[1].reason
    assert "graph+inductor failed" in str(tuned.report)
