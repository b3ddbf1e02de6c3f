# SPDX-License-Identifier: MIT
"""Hostile manifests, with right sums: anything but what save() writes is refused, and nothing worse happens."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json

import pytest
import torch
from test_checkpoint import tuned_by_hand
from test_checkpoint_files import X, net, with_manifest

import xpugraph as xg
from xpugraph import recipe
from xpugraph.archive import MANIFEST, MEMBERS

pytestmark = pytest.mark.filterwarnings("ignore::xpugraph.CheckpointWarning")

REFUSALS = (xg.CheckpointError, xg.ConfigError)


@pytest.fixture(scope="module")
def members(device, tmp_path_factory):
    """The files of a checkpoint of two backends."""
    tuned = tuned_by_hand(net(1).to(device), [X.to(device)])
    path = xg.save(tuned, tmp_path_factory.mktemp("members") / "net", folder=True)
    return {name: (path / name).read_bytes() for name in MEMBERS}


@pytest.fixture
def craft(members, tmp_path):
    """A checkpoint with another manifest."""

    def make(manifest):
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        return with_manifest(tmp_path / "crafted.zip", members, text.encode())

    return make


@pytest.fixture
def refused(craft, device):
    """Loads and looks at it; the module stays as it is."""

    def check(manifest, match, error=REFUSALS, inspected=True):
        path, module = craft(manifest), net(2).to(device)
        with pytest.raises(error, match=match):
            xg.load(module, path)
        assert all(torch.equal(value.cpu(), net(2).state_dict()[name]) for name, value in module.state_dict().items())
        if inspected:
            with pytest.raises(xg.CheckpointError, match=match):
                xg.inspect_checkpoint(path)

    return check


def at(manifest, *path):
    for key in path:
        manifest = manifest[key]
    return manifest


def test_manifest_as_written_loads(craft, members, device):
    tuned = xg.load(net(2).to(device), craft(json.loads(members[MANIFEST])))
    torch.testing.assert_close(tuned(X.to(device)).cpu(), net(1)(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("schema", 2, "schema 2 is unknown; this xpugraph reads schema 1"),
        ("schema", "1", "schema '1' is unknown"),
        ("schema", True, "schema True is unknown"),
        ("schema", None, "schema None is unknown"),
        ("format", "aitune", "not of format 'xpugraph-checkpoint'"),
        ("more", 1, "the manifest has an unknown entry 'more'"),
    ],
)
def test_unknown_format_and_schema(refused, members, key, value, match):
    refused({**json.loads(members[MANIFEST]), key: value}, match, xg.CheckpointError)


@pytest.mark.parametrize("key", ["format", "schema", "device", "versions", "module", "aliases", "router", "report"])
def test_missing_entries(refused, members, key):
    manifest = json.loads(members[MANIFEST])
    del manifest[key]
    refused(manifest, key, xg.CheckpointError)


def test_what_is_no_json(refused, members):
    text = members[MANIFEST].decode()
    for odd in ("", "[]", "null", '"x"', text[:-1], text + "x", "[" * 100_000, '{"format":' * 5000, "\ufeff" + text):
        refused(odd, "is no JSON|is not of format", xg.CheckpointError)
    for number in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000):
        refused(text.replace('"seconds": 0.0', f'"seconds": {number}'), "is no JSON", xg.CheckpointError)


def test_deep_nesting(refused, members):
    manifest = json.loads(members[MANIFEST])
    for depth in (90, 120, 400):
        deep = ["tensor", 0]
        for _ in range(depth):
            deep = ["list", [deep]]
        odd = copy.deepcopy(manifest)
        at(odd, "router", "backends", "graph", "recipe", "arguments", 0)["spec"] = deep
        refused(odd, "nested|is no JSON", inspected=False)
        odd = copy.deepcopy(manifest)
        at(odd, "report", "backends", 0)["facts"] = {"x": deep}
        refused(odd, "nested|is no JSON")


ROUTES = [
    [],
    [[1, 2, "eager"]],
    [[1, 2, "eager"], [4, None, "graph"]],
    [[1, 3, "eager"], [3, None, "graph"]],
    [[2, None, "graph"]],
    [[0, 2, "eager"], [3, None, "graph"]],
    [[1, None, "eager"], [3, None, "graph"]],
    [[1, 10**18, "eager"], [10**18 + 1, None, "graph"]],
    [[1, 10**400, "eager"], [10**400 + 1, None, "graph"]],
    [[1, 2, "other"], [3, None, "graph"]],
    [[1, None, "graph"]],
    [[1, -5, "eager"], [3, None, "graph"]],
    [[1, 2.0, "eager"], [3, None, "graph"]],
    [["1", "2", "eager"], ["3", None, "graph"]],
    [[1, 2], [3, None]],
    [[1, 2, ["eager"]], [3, None, "graph"]],
    {"1": 2},
    "routes",
]


@pytest.mark.parametrize("routes", ROUTES, ids=lambda routes: str(routes)[:40])
def test_hostile_routes(refused, members, routes):
    manifest = json.loads(members[MANIFEST])
    manifest["router"]["routes"] = routes
    refused(manifest, "rout|state: not what|cannot be started|not what they write", inspected=False)


@pytest.mark.parametrize("name", ["os.system", "Backend", "", "xpugraph.backends.TorchEagerBackend", 5, None, ["x"]])
def test_unknown_backend(refused, members, name):
    manifest = json.loads(members[MANIFEST])
    manifest["router"]["backends"]["eager"]["backend"] = name
    refused(manifest, "no class of backend is called|state: not what", inspected=False)


def paths(value, path=()):
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(item, (*path, key))


OTHERS = ("x", None, True, 7, [None], {"x": 1})


def replaced(manifest, path, value):
    if not path:
        return value
    odd = copy.deepcopy(manifest)
    at(odd, *path[:-1])[path[-1]] = value
    return odd


def test_other_types_everywhere(craft, members, device, monkeypatch):
    """Graphs are recorded for what they are made by, until they once are; the rest is done with before that."""
    manifest, refusals, loaded = json.loads(members[MANIFEST]), 0, []
    deploy, module = xg.BatchSizeRouterBackend.deploy, net(2).to(device)
    monkeypatch.setattr("xpugraph.checkpoint._warn", lambda *_: None)  # it asks the device its name
    for path, value in itertools.product(paths(manifest), OTHERS):
        if path and type(at(manifest, *path)) is type(value):
            continue
        odd = craft(replaced(manifest, path, value))
        real = path[:2] == ("router", "backends") and path not in {path for path, _ in loaded}
        monkeypatch.setattr(xg.BatchSizeRouterBackend, "deploy", deploy if real else lambda self: None)
        try:
            tuned = xg.load(module, odd)
        except (*REFUSALS, xg.BuildError) as error:
            assert isinstance(error, REFUSALS) or path[-1] == "pool_limit_bytes", (path, value)
            refusals += 1
            right = net(2)
        else:
            loaded.append((path, value))
            right = net(1)
            if real:
                torch.testing.assert_close(tuned(X.to(device)).cpu(), net(1)(X), rtol=1e-4, atol=1e-5)
        for name, tensor in module.state_dict().items():
            assert torch.equal(tensor.cpu(), right.state_dict()[name]), (path, value)
        module.load_state_dict(net(2).state_dict())
        with contextlib.suppress(xg.CheckpointError):
            str(xg.inspect_checkpoint(odd))
    assert refusals > 400
    assert {path[0] for path, _ in loaded} <= {"router", "report"}, loaded
    harmless = {"name", "low", "high", "rtol", "atol", "batch_sizes", "compile_with_inductor", "strict", "copy_outputs"}
    harmless |= {"exact_after", "exact_batch_sizes", "backend", 0}
    of_router = [path for path, _ in loaded if path[0] == "router" and "costs" not in path[:-1]]  # a cost of 7 is one
    assert {path[-1] for path in of_router} <= harmless, loaded


def test_report_that_cannot_be_printed_is_no_reason_for_a_traceback(craft, members):
    manifest = json.loads(members[MANIFEST])
    manifest["report"]["device"] = "\x1b[2J\x07 \ud800 [/red]"
    text = str(xg.inspect_checkpoint(craft(manifest)))
    assert "\x1b" not in text and "\x07" not in text and text.encode()
    odd = replaced(manifest, ("report", "batch_sizes"), [99])
    assert "99" in str(xg.inspect_checkpoint(craft(odd)))
    for key, value in (("routes", []), ("backends", [])):
        odd = replaced(manifest, ("report", key), value)
        with pytest.raises(xg.CheckpointError, match="the manifest is not what"):
            xg.inspect_checkpoint(craft(odd))


# ---- recipes --------------------------------------------------------------------------------------------------------

TENSOR = {
    "name": "x", "dtype": "float32", "shape": [4, 3], "strides": [3, 1], "batch_dim": 0, "rows_per_item": 1,
    "low": -1.0, "high": 1, "ranges": None, "written": False,
}  # fmt: skip
ARGUMENT = {"name": "x", "positional": True, "omittable": False, "spec": ["tensor", 0]}
CONSTANT = {"name": "c", "positional": True, "omittable": True, "spec": ["const", 2.5]}
RECIPE = {"batch_sizes": [1, 2], "device": "cpu", "arguments": [ARGUMENT, CONSTANT], "tensors": [TENSOR]}


def test_recipe_comes_back():
    assert recipe.recipe_to_dict(recipe.recipe_from_dict(RECIPE)) == RECIPE
    keyed = {"name": "k", "positional": False, "omittable": False}
    spec = ["dict", ["a", 1], [["tuple", [["tensor", 0]]], ["list", [["const", None], ["const", "x"]]]]]
    state = {**RECIPE, "arguments": [{**keyed, "spec": spec}]}
    assert recipe.recipe_to_dict(recipe.recipe_from_dict(state)) == state
    indices = {**TENSOR, "dtype": "int64", "low": 0.0, "high": 9, "ranges": [[0, 9], [3, 3], [0, 2]]}
    state = {**RECIPE, "tensors": [indices]}
    assert recipe.recipe_to_dict(recipe.recipe_from_dict(state)) == state
    del indices["ranges"]  # as before there were ranges
    assert recipe.recipe_from_dict(state).tensors[0].ranges is None


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("batch_dim", [2, -1, 0.0, True, "0", None]),
        ("rows_per_item", [0, -1, 1.0, None]),
        ("shape", [[4], [-4, 3], [4, 3.0], "43", None, [2**40, 2**40], [10**18, 3]]),
        ("strides", [[3], [3, -1], [3, 1, 1], [3, "1"]]),
        ("dtype", ["nn", "float33", "__name__", "Tensor", 5, None]),
        ("low", ["x", None, True, 2, float("nan"), float("-inf")]),
        ("ranges", [5, [], [[0, 1]] * 3, [[0]], ["ab"] * 3]),
        ("written", [0, None, "no"]),
        ("name", [None, 5]),
        ("unknown", [1]),
    ],
)
def test_recipe_of_no_tensor(key, values):
    for value in values:
        with pytest.raises(xg.ConfigError, match="state"):
            recipe.recipe_from_dict({**RECIPE, "tensors": [{**TENSOR, key: value}]})


def test_recipe_of_no_ranges():
    indices = {**TENSOR, "dtype": "int64", "low": 0, "high": 9, "ranges": [[0, 9], [3, 3], [0, 2]]}
    recipe.recipe_from_dict({**RECIPE, "tensors": [indices]})
    for odd in ([0, 9, 1], [9, 0], [0, 2**63 - 1], [-(2**63) - 1, 0], [0, 1.0], [False, True], ["0", "1"], None):
        with pytest.raises(xg.ConfigError, match="state"):
            recipe.recipe_from_dict({**RECIPE, "tensors": [{**indices, "ranges": [odd, [3, 3], [0, 2]]}]})
    for ranges in ([[0, 9]] * 2, [[0, 9]] * 4):
        with pytest.raises(xg.ConfigError, match="state"):
            recipe.recipe_from_dict({**RECIPE, "tensors": [{**indices, "ranges": ranges}]})


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [CONSTANT],
        [{**ARGUMENT, "spec": ["tensor", 1]}],
        [{**ARGUMENT, "spec": ["tensor", -1]}],
        [{**ARGUMENT, "spec": ["list", [["tensor", 0], ["tensor", 0]]]}],
        [{**ARGUMENT, "spec": ["node", "os.system", None, [["tensor", 0]]]}],
        [{**ARGUMENT, "spec": ["dict", ["a", "a"], [["tensor", 0], ["const", 1]]]}],
        [{**ARGUMENT, "spec": ["dict", ["a", "b"], [["tensor", 0]]]}],
        [{**ARGUMENT, "spec": ["dict", [["a"]], [["tensor", 0]]]}],
        [{**ARGUMENT, "spec": "tensor"}],
        [{**ARGUMENT, "spec": ["tensor"]}],
        [{**ARGUMENT, "spec": []}],
        [{**ARGUMENT, "omittable": True}],
        [{**ARGUMENT, "positional": 1}],
        [{**ARGUMENT, "name": "", "positional": False}],
        [ARGUMENT, {**CONSTANT, "name": "x"}],
        [{**CONSTANT, "positional": False}, ARGUMENT],
        [ARGUMENT, {**CONSTANT, "spec": ["const", []]}],
        [ARGUMENT, {**CONSTANT, "spec": ["const", float("nan")]}],
    ],
    ids=str,
)
def test_recipe_of_no_call(arguments):
    with pytest.raises(xg.ConfigError, match="state"):
        recipe.recipe_from_dict({**RECIPE, "arguments": arguments})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_sizes", []),
        ("batch_sizes", [0, 1]),
        ("batch_sizes", [2, 1]),
        ("batch_sizes", [1, 1]),
        ("batch_sizes", [1, 10**18]),
        ("batch_sizes", ["1"]),
        ("batch_sizes", 5),
        ("device", "warp"),
        ("device", 5),
        ("device", None),
        ("tensors", []),
        ("tensors", [TENSOR, TENSOR]),
    ],
)
def test_recipe_of_no_batch(device, key, value):
    with pytest.raises(xg.ConfigError, match="state"):
        recipe.recipe_from_dict({**RECIPE, key: value})
