# SPDX-License-Identifier: MIT
"""Checkpoints: modules that are refused, what is warned of, and what cannot be saved."""

from __future__ import annotations

import copy
import enum

import pytest
import torch
from conftest import Fn
from test_checkpoint import Net, check, eager_on_cpu, seeded, state_of, tuned_by_hand
from torch import nn

import xpugraph as xg
from xpugraph import checkpoint, environment

pytestmark = pytest.mark.filterwarnings("error::xpugraph.CheckpointWarning")


@pytest.fixture(scope="module")
def saved(device, tmp_path_factory):
    """A checkpoint of two backends, and the module on the CPU."""
    module = seeded(1, Net)
    tuned = tuned_by_hand(copy.deepcopy(module).to(device), [torch.randn(4, 6, device=device)])
    return module, xg.save(tuned, tmp_path_factory.mktemp("saved") / "net.zip")


# ---- what is refused ------------------------------------------------------------------------------------------------


def sequence(*layers):
    return lambda: nn.Sequential(*layers)


CONV = (nn.Conv2d(2, 3, 3, stride=1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))


def changed(index, layer):
    return sequence(*CONV[:index], layer, *CONV[index + 1 :])


class Plus(nn.Sequential):
    def __init__(self, extra):
        super().__init__(*copy.deepcopy(CONV))
        setattr(self[0], extra, nn.Parameter(torch.zeros(2)))


@pytest.fixture(scope="module")
def conv(device, tmp_path_factory):
    module = copy.deepcopy(nn.Sequential(*CONV)).eval().to(device)
    routes = [xg.Route(1, None, "eager")]
    tuned = tuned_by_hand(module, [torch.randn(4, 2, 4, 4, device=device)], routes)
    return xg.save(tuned, tmp_path_factory.mktemp("conv") / "conv.zip")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (changed(0, nn.Conv2d(2, 3, 2)), r"parameter '0\.weight' float32 \(3, 2, 3, 3\) was saved, .*\(3, 2, 2, 2\)"),
        (changed(0, nn.Conv2d(2, 3, 3).half()), r"'0\.weight' float32 .* here is .* float16"),
        (changed(0, nn.Conv2d(2, 3, 3, bias=False)), r"'0\.bias' .* was saved, here is none of that name"),
        (changed(3, nn.Linear(12, 5)), r"parameter '3\.weight' float32 \(4, 12\) was saved, .*\(5, 12\)"),
        (sequence(nn.Identity(), *CONV[1:]), r"'0\.weight' .* was saved, here is none"),
        (lambda: Plus("extra"), r"'0\.extra' .* was not saved"),
        (changed(1, nn.GELU()), r"1 as ReLU\(.*\) was saved, here is 1 as GELU"),
        (changed(1, nn.ReLU(inplace=True)), r"1 as ReLU\(.*inplace=True"),
        (changed(0, nn.Conv2d(2, 3, 3, stride=2)), r"0 as Conv2d\(.*stride=\(1, 1\).*stride=\(2, 2\)"),
        (changed(0, nn.Conv2d(2, 3, 3, padding=1)), r"0 as Conv2d"),
        (sequence(*CONV, nn.ReLU()), r"had 5 submodules, here are 6"),
        (sequence(nn.Sequential(*CONV)), r"'0\.weight' .* here is none of that name"),
    ],
)
def test_another_module_is_refused_by_its_first_difference(device, conv, make, message):
    module = copy.deepcopy(make()).eval().to(device)
    before = state_of(module)
    with pytest.raises(xg.CheckpointError, match=message):
        xg.load(module, conv)
    assert all(torch.equal(value, before[name]) for name, value in state_of(module).items())


def attention(heads):
    return nn.TransformerEncoderLayer(8, heads, 8, batch_first=True, dropout=0.0).eval()


def test_settings_that_no_parameter_shows_are_refused_too(tmp_path):
    path = xg.save(eager_on_cpu(attention(2), torch.randn(3, 5, 8)), tmp_path / "attention.zip")
    with pytest.raises(xg.CheckpointError, match=r"self_attn as MultiheadAttention\(.*num_heads=2.*num_heads=4"):
        xg.load(attention(4), path)
    with pytest.raises(xg.CheckpointError, match="norm_first=False.*norm_first=True"):
        xg.load(nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True, norm_first=True).eval(), path)
    assert xg.load(attention(2), path)


def test_attributes_of_own_modules_are_warned_of(tmp_path):
    class Scaled(nn.Linear):
        def __init__(self, scale, act):
            super().__init__(4, 4)
            self.scale, self.act, self.calls = scale, act, 0

        def forward(self, x):
            return self.act(super().forward(x)) * self.scale

    path = xg.save(eager_on_cpu(Scaled(2.0, torch.relu).eval(), torch.randn(3, 4)), tmp_path / "scaled.zip")
    with pytest.warns(xg.CheckpointWarning, match=r"act was relu, here is tanh; scale was 2\.0, here is 3\.0"):
        xg.load(Scaled(3.0, torch.tanh).eval(), path)
    assert xg.load(Scaled(2.0, torch.relu).eval(), path)


class Choosy(nn.Module):
    """The same to a fingerprint; what it does depends on a global."""

    fails = False

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        if Choosy.fails:
            raise ValueError("not today")
        return self.linear(x)


def test_module_has_its_old_weights_when_graphs_cannot_be_recorded(device, tmp_path, monkeypatch):
    path = xg.save(tuned_by_hand(seeded(1, Choosy).to(device), [torch.randn(4, 6, device=device)]), tmp_path / "c.zip")
    module = seeded(2, Choosy).to(device)
    before = state_of(module)
    monkeypatch.setattr(Choosy, "fails", True)
    with pytest.raises(xg.BuildError, match="not today"):
        xg.load(module, path)
    assert all(torch.equal(value, before[name]) for name, value in state_of(module).items())
    monkeypatch.setattr(Choosy, "fails", False)
    check(xg.load(module, path), seeded(1, Choosy), device, torch.randn(3, 6))


def test_training_mode_and_a_device_without_graphs_are_refused(device, saved):
    with pytest.raises(xg.ConfigError, match="training mode"):
        xg.load(seeded(1).train().to(device), saved[1])
    module = seeded(2)
    before = state_of(module)
    with pytest.raises(xg.ConfigError, match="net.zip: module: it is on cpu; graphs exist on"):
        xg.load(module, saved[1])
    assert all(torch.equal(value, before[name]) for name, value in state_of(module).items())
    with pytest.raises(xg.ConfigError, match="nn.Module is needed"):
        xg.load("net", saved[1])


# ---- what is warned of ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "value", "message"),
    [
        ("device_name", lambda _: "xpu (B580)", r"tuned on device sycl .*\(here xpu \(B580\)\); its routes may not"),
        ("versions", lambda: environment.versions() | {"torch": "1.0"}, r"tuned on torch 2.* \(here 1\.0\)"),
        ("versions", lambda: {"torch": torch.__version__}, r"intel-sycl-rt \S+ \(here none\)"),
    ],
)
def test_other_device_and_versions_are_warned_of(device, saved, monkeypatch, function, value, message):
    result = value("") if function == "device_name" else value()
    monkeypatch.setattr(environment, function, lambda *_: result)
    with pytest.warns(xg.CheckpointWarning, match=message) as caught:
        tuned = xg.load(seeded(2).to(device), saved[1])
    assert len(caught) == 1 and caught[0].filename == __file__
    check(tuned, saved[0], device, torch.randn(3, 6))


def test_module_of_buffers_only_is_on_the_device_of_its_buffers(device, tmp_path):
    def make():
        module = Fn(lambda x: torch.relu(x) + 1)
        module.register_buffer("b", torch.zeros(2))
        return module.eval().to(device)

    path = xg.save(tuned_by_hand(make(), [torch.randn(4, 6, device=device)]), tmp_path / "b.zip")
    x = torch.randn(3, 6)
    torch.testing.assert_close(xg.load(make(), path)(x.to(device)).cpu(), torch.relu(x) + 1)


# ---- what is not saved ----------------------------------------------------------------------------------------------


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"not": "a tensor"}


def with_buffer(value):
    module = nn.Linear(4, 4)
    module.register_buffer("odd", value)
    return module.eval()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Sequential(Extra(4, 4)).eval(), r"'0\._extra_state' is a dict"),
        (lambda: with_buffer(torch.eye(4).to_sparse()), r"'odd' is a Tensor of layout torch.sparse_coo"),
        (lambda: with_buffer(torch.zeros(2, dtype=torch.complex128)), r"'odd' is of torch.complex128"),
        (lambda: with_buffer(torch.zeros(2).to(torch.float8_e8m0fnu)), r"'odd' is of torch.float8_e8m0fnu"),
    ],
)
def test_state_that_safetensors_cannot_hold_is_named(tmp_path, make, message):
    tuned = eager_on_cpu(make(), torch.randn(3, 4))
    with pytest.raises(xg.ConfigError, match=message):
        xg.save(tuned, tmp_path / "x.zip")
    assert not list(tmp_path.iterdir())


class Kind(enum.Enum):
    A = 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Kind.A, "option: <Kind.A: 1> cannot be saved"),
        (torch.float16, "option: torch.float16 cannot"),
        (float("nan"), "option: nan cannot be saved"),
        ({("a",): 1.0}, "option: dict keys"),
    ],
)
def test_arguments_that_json_cannot_hold_are_named(tmp_path, value, message):
    class Optional(nn.Linear):
        def forward(self, x, option):
            return super().forward(x)

    tuned = eager_on_cpu(Optional(4, 4).eval(), (torch.randn(3, 4), value))
    with pytest.raises(xg.ConfigError, match=message):
        xg.save(tuned, tmp_path / "x.zip")
    assert not list(tmp_path.iterdir())


def test_other_things_are_not_saved(tmp_path):
    with pytest.raises(xg.ConfigError, match="a TunedModule.* not a Linear"):
        xg.save(nn.Linear(2, 2), tmp_path / "x.zip")
    tuned = eager_on_cpu(nn.Linear(4, 4).eval(), torch.randn(3, 4))
    tuned.report.backends[0].facts = {"odd": float("nan")}
    with pytest.raises(xg.ConfigError, match="cannot be saved as JSON"):
        xg.save(tuned, tmp_path / "x.zip")
    tuned.report.backends[0].facts = {"odd": object()}
    with pytest.raises(xg.ConfigError, match="cannot be saved as JSON"):
        xg.save(tuned, tmp_path / "x.zip")
    assert not list(tmp_path.iterdir()) and checkpoint.SCHEMA == 1
