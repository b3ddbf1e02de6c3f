# SPDX-License-Identifier: MIT
"""BatchSizeRouterBackend: who serves which call, and the life of a router over backends that fail."""

from __future__ import annotations

import copy
import gc
import json
import threading
import weakref

import pytest
import torch
from conftest import Fn, mlp

import xpugraph as xg
from xpugraph.routing import Route

ROUTES = [Route(1, 4, "graph"), Route(5, 9, "eager"), Route(10, None, "graph")]


class Spy(xg.TorchEagerBackend):
    """Eager that notes the batch sizes it serves, and fails where it is told to."""

    def __init__(self, name="spy", fail=""):
        super().__init__()
        self.name, self.fail, self.sizes = name, fail, []

    label = property(lambda self: self.name)

    def _infer(self, *args, **kwargs):
        self.sizes.append(len(next(t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor))))
        return super()._infer(*args, **kwargs)

    def _build(self, module, samples, **options):
        self._trip("build")
        super()._build(module, samples, **options)

    def _activate(self):
        self._trip("activate")

    def _deploy(self, device):
        self._trip("deploy")

    def _trip(self, where):
        if self.fail == where:
            self.fail = ""
            raise RuntimeError(f"{where} failed")


def spies(**options):
    return {"graph": Spy("graph", **options), "eager": Spy("eager")}


def router(backends, routes=ROUTES, module=None, samples=None):
    module = module or Fn(lambda x: x * 2).eval()
    return xg.BatchSizeRouterBackend(routes, backends).build(module, samples or [torch.ones(4, 3), torch.ones(2, 3)])


def test_each_size_goes_where_its_range_says():
    routed = router(spies())
    for n in (1, 4, 5, 9, 10, 11, 1000, 0):
        assert routed.infer(torch.ones(n, 3)).shape == (n, 3)
    graph, eager = routed.backends["graph"].sizes, routed.backends["eager"].sizes
    assert graph == [1, 4, 10, 11, 1000, 0]
    assert eager == [5, 9]
    assert routed.backend_for(5) is routed.backends["eager"]
    assert routed.backend_for(10**6) is routed.backend_for(0) is routed.backends["graph"]


def test_the_given_backends_are_copied():
    given = spies()
    routed = router(given)
    assert given["graph"].state is xg.BackendState.INIT
    assert routed.backends["graph"] is not given["graph"]


def ones(*lengths):
    return tuple(torch.ones(length) for length in lengths)


@pytest.mark.parametrize(
    ("function", "samples", "call"),
    [
        (lambda x, y=None: x, [torch.ones(4, 3), torch.ones(2, 3)], ((), {"x": torch.ones(5, 3)})),
        (lambda y, x: x, [(1, torch.ones(4, 3)), (1, torch.ones(2, 3))], ((1, torch.ones(5, 3)), {})),
        (lambda y, x: x, [(1, torch.ones(4, 3)), (1, torch.ones(2, 3))], ((1,), {"x": torch.ones(5, 3)})),
        (
            lambda d: d["a"][1],
            [({"a": [None, torch.ones(4)]},), ({"a": [None, torch.ones(2)]},)],
            (({"a": [None, torch.ones(5)]},), {}),
        ),
        (lambda x: x, [torch.ones(3, 4), torch.ones(3, 2)], ((torch.ones(3, 5),), {})),
        (lambda x: x, [(torch.ones(4, 2),), (torch.ones(2, 2),)], ((torch.ones(5, 2),), {})),
        (
            lambda t, x: x,
            [(torch.ones(9), torch.ones(4)), (torch.ones(9), torch.ones(2))],
            ((torch.ones(9), torch.ones(5)), {}),
        ),
        (
            lambda x, pairs: x,
            [(torch.ones(4), torch.ones(8)), (torch.ones(2), torch.ones(4))],
            ((torch.ones(5), torch.ones(10)), {}),
        ),
        (
            lambda pairs, x: x,
            [(torch.ones(8), torch.ones(4)), (torch.ones(4), torch.ones(2))],
            ((torch.ones(10), torch.ones(5)), {}),
        ),
    ],
)
def test_the_batch_size_is_read_wherever_it_is(function, samples, call):
    class Module(torch.nn.Module):
        forward = staticmethod(function)

    class Counts(xg.TorchEagerBackend):
        served = 0

        def _infer(self, *args, **kwargs):
            self.served += 1
            return super()._infer(*args, **kwargs)

    backends = {"graph": Counts(), "eager": Counts()}
    routed = router(backends, module=Module().eval(), samples=samples)
    routed.infer(*call[0], **call[1])
    assert (routed.backends["graph"].served, routed.backends["eager"].served) == (0, 1)


@pytest.mark.parametrize("call", [(), (3,), ("x",), (None,), (torch.tensor(1.0),), ([torch.ones(5, 3)],)])
def test_a_call_of_another_structure_goes_to_the_backend_of_the_largest_sizes(call):
    class Takes(torch.nn.Module):
        def forward(self, *args):
            return len(args)

    class Named(torch.nn.Module):
        def forward(self, x=None):
            return 7

    routed = router(spies(), module=Named().eval())
    routed.backends["graph"]._infer = lambda *args: "largest"
    assert routed.infer(*call) == "largest"


def test_real_backends_answer_as_the_cpu_at_every_size(device):
    torch.manual_seed(0)
    module = mlp(16, 3).eval()
    reference = copy.deepcopy(module)
    backends = {"graph": xg.XPUGraphBackend(), "eager": xg.TorchEagerBackend()}
    routed = router(backends, module=module.to(device), samples=[torch.randn(16, 16, device=device)])
    for n in range(1, 40):
        x = torch.randn(n, 16)
        torch.testing.assert_close(routed.infer(x.to(device)).cpu(), reference(x), rtol=1e-4, atol=1e-5)
    assert routed.backends["graph"].counters()["graph_calls"] == 4 + 30
    assert routed.eager_calls() == 0
    with pytest.raises(xg.InputError, match="17"):
        routed.infer(torch.randn(2, 17, device=device))
    assert "1…4 → graph" in routed.describe() and "10…∞ → graph" in routed.describe()
    assert "5…9 → eager" in routed.describe() and "recorded batch sizes" in routed.describe()


def test_threads_get_their_own_rows(device):
    module = mlp(16, 3).eval().to(device)
    reference = copy.deepcopy(module).cpu()
    backends = {"graph": xg.XPUGraphBackend(), "eager": xg.TorchEagerBackend()}
    routed = router(backends, module=module, samples=[torch.randn(16, 16, device=device)])
    errors = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(60):
            n = int(torch.randint(1, 20, (), generator=generator))
            x = torch.randn(n, 16, generator=generator)
            got = routed.infer(x.to(device)).cpu()
            if not torch.allclose(got, reference(x), rtol=1e-4, atol=1e-5):
                errors.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# ---- life


def test_states():
    routed = xg.BatchSizeRouterBackend(ROUTES, spies())
    with pytest.raises(xg.StateError, match="build"):
        routed.infer(torch.ones(1, 3))
    with pytest.raises(xg.StateError):
        routed.to_dict()
    routed.build(Fn(lambda x: x).eval(), [torch.ones(4, 3)])
    routed.deactivate()
    assert all(backend.state is xg.BackendState.INACTIVE for backend in routed.backends.values())
    with pytest.raises(xg.StateError, match="activate"):
        routed.infer(torch.ones(1, 3))
    routed.activate()
    routed.infer(torch.ones(1, 3))
    routed.deploy()
    assert routed.state is xg.BackendState.DEPLOYED
    routed.infer(torch.ones(7, 3))
    with pytest.raises(xg.StateError):
        routed.build(Fn(lambda x: x).eval(), [torch.ones(4, 3)])


@pytest.mark.parametrize("failing", ["graph", "eager"])
def test_a_build_that_fails_can_be_repeated(failing):
    backends = spies()
    backends[failing] = Spy(failing, fail="build")
    routed = xg.BatchSizeRouterBackend(ROUTES, backends)
    with pytest.raises(RuntimeError, match="build failed"):
        routed.build(Fn(lambda x: x).eval(), [torch.ones(4, 3)])
    assert routed.state is xg.BackendState.INIT
    backends[failing].fail = ""
    routed.build(Fn(lambda x: x).eval(), [torch.ones(4, 3)])
    routed.infer(torch.ones(6, 3))


@pytest.mark.parametrize("failing", ["graph", "eager"])
def test_an_activation_that_fails_leaves_it_inactive_and_can_be_repeated(failing):
    routed = router(spies())
    routed.deactivate()
    routed.backends[failing].fail = "activate"
    with pytest.raises(RuntimeError, match="activate failed"):
        routed.activate()
    assert routed.state is xg.BackendState.INACTIVE
    assert all(backend.state is xg.BackendState.INACTIVE for backend in routed.backends.values())
    routed.activate()
    assert routed.infer(torch.ones(6, 3)).shape == (6, 3)


def test_a_deployment_that_is_refused_leaves_an_active_router_as_it_is(device):
    module = mlp(16, 1).eval().to(device)
    backends = {"graph": xg.XPUGraphBackend(), "eager": xg.TorchEagerBackend()}
    routed = router(backends, module=module, samples=[torch.randn(8, 16, device=device)])
    with pytest.raises(xg.ConfigError):
        routed.deploy("cpu")
    assert routed.state is xg.BackendState.ACTIVE
    for n in (2, 6):
        assert routed.infer(torch.randn(n, 16, device=device)).shape == (n, 16)


def test_a_deactivation_that_fails_gives_the_others_back():
    class Stuck(Spy):
        def _deactivate(self):
            raise RuntimeError("stuck")

    routed = router({"graph": Stuck("graph"), "eager": Spy("eager")})
    with pytest.raises(RuntimeError, match="stuck"):
        routed.deactivate()
    assert routed.backends["eager"].state is xg.BackendState.INACTIVE
    with pytest.raises(xg.StateError):
        routed.infer(torch.ones(2, 3))


def test_a_deployment_that_fails_can_be_repeated():
    module = Fn(lambda x: x).eval()
    state = (
        xg.BatchSizeRouterBackend([Route(1, None, "a")], {"a": xg.TorchEagerBackend()})
        .build(module, [torch.ones(4, 3)])
        .to_dict()
    )
    state["backends"]["b"] = {"backend": "Spy"}
    state["routes"] = [[1, 3, "a"], [4, None, "b"]]

    class Loads(Spy):
        @classmethod
        def from_dict(cls, module, state):
            backend = cls("b", fail="deploy")
            backend._module, backend._state = module, xg.BackendState.CHECKPOINT_LOADED
            return backend

    state["backends"]["b"]["backend"] = "Loads"
    routed = xg.BatchSizeRouterBackend.from_dict(module, state)
    with pytest.raises(RuntimeError, match="deploy failed"):
        routed.deploy()
    assert routed.state is xg.BackendState.CHECKPOINT_LOADED
    routed.deploy()
    assert routed.infer(torch.ones(6, 3)).shape == (6, 3)


def test_deactivation_gives_the_graphs_back(device):
    module = mlp(16, 3).eval().to(device)
    routed = router(
        {"graph": xg.XPUGraphBackend()}, [Route(1, None, "graph")], module, [torch.randn(8, 16, device=device)]
    )
    routed.deactivate()
    assert routed.backends["graph"].recorded_batch_sizes == []
    routed.activate()
    assert routed.backends["graph"].recorded_batch_sizes == [1, 2, 4, 8]
    gone = weakref.ref(routed.backends["graph"])
    del routed
    gc.collect()
    assert gone() is None


# ---- as data


def test_to_dict_is_small_json_without_weights_and_comes_back(device):
    torch.manual_seed(0)
    module = mlp(64, 4).eval().to(device)
    backends = {"graph": xg.XPUGraphBackend(), "eager": xg.TorchEagerBackend()}
    x = torch.randn(6, 64, device=device)
    routed = router(backends, module=module, samples=[torch.randn(16, 64, device=device)])
    text = json.dumps(routed.to_dict())
    assert len(text) < 4000 < 4 * 64 * 64 * 4
    again = xg.BatchSizeRouterBackend.from_dict(module, json.loads(text))
    assert again.state is xg.BackendState.CHECKPOINT_LOADED
    with pytest.raises(xg.StateError, match="deploy"):
        again.infer(x)
    again.deploy()
    assert again.routes == routed.routes
    torch.testing.assert_close(again.infer(x).cpu(), routed.infer(x).cpu())
    assert again.key() == routed.key()
    assert all(p is q for p, q in zip(module.parameters(), again.backends["eager"]._module.parameters(), strict=True))


def test_key_tells_routes_and_configurations_apart():
    def key(routes, config=None):
        backends = {"graph": xg.XPUGraphBackend(config), "eager": xg.TorchEagerBackend()}
        return xg.BatchSizeRouterBackend(routes, backends).key()

    keys = {
        key(ROUTES),
        key([Route(1, 4, "graph"), Route(5, 8, "eager"), Route(9, None, "graph")]),
        key(ROUTES, xg.XPUGraphBackendConfig(copy_outputs=False)),
    }
    assert len(keys) == 3
    assert key(ROUTES) in keys


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: s.pop("routes"),
        lambda s: s.pop("call"),
        lambda s: s.pop("backends"),
        lambda s: s.update(routes=[[1, None]]),
        lambda s: s.update(routes=[["1", None, "graph"]]),
        lambda s: s.update(routes=[[1, 3, "graph"], [5, None, "eager"]]),
        lambda s: s.update(routes=3),
        lambda s: s.update(backends=[]),
        lambda s: s["backends"]["graph"].update(backend="os.system"),
        lambda s: s["backends"]["graph"].update(backend="Backend"),
        lambda s: s["backends"]["graph"].update(backend=3),
        lambda s: s["call"].update(tensors=[]),
        lambda s: s["call"].update(arguments=[]),
    ],
)
def test_a_state_that_is_something_else_is_refused(device, spoil):
    module = mlp(16, 1).eval().to(device)
    backends = {"graph": xg.XPUGraphBackend(), "eager": xg.TorchEagerBackend()}
    state = router(backends, module=module, samples=[torch.randn(2, 16, device=device)]).to_dict()
    spoil(state)
    with pytest.raises(xg.ConfigError):
        xg.BatchSizeRouterBackend.from_dict(module, state)
