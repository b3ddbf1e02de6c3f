# SPDX-License-Identifier: MIT
"""The models that ``xpugraph bench`` runs: one small MLP and four of torchvision's, with seeded random weights, fp32.

Weights as drawn by default make outputs that hardly depend on the input (the MLP's rows differ by 1e-8, a fresh
``vit_b_16`` answers zeros), so that any comparison of values would pass. The factories therefore draw linear layers so
that signals keep their size, and set the running statistics of batch norms from one batch of noise.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from types import ModuleType

import torch
from torch import nn

from .errors import ConfigError, MissingRuntimeError

_IMAGE = (3, 224, 224)
_INSTALL = "pip install --no-deps torchvision (the release for your torch), then pip install numpy pillow"
_op_definitions: list[torch.library.Library] = []  # a Library takes its definitions along when it goes


def model_names() -> list[str]:
    """Returns the names that `make_model` accepts."""
    return list(_FACTORIES)


def make_model(name: str, seed: int = 0) -> tuple[nn.Module, tuple[int, ...]]:
    """Makes a model on the CPU, in eval mode; torch's random state is left as it was.

    Args:
        name: One of `model_names`.
        seed: What the weights are drawn from.

    Returns:
        The module and the shape of one sample, without its batch dimension.

    Raises:
        ConfigError: `name` is unknown.
        MissingRuntimeError: torchvision is needed and cannot be imported.
    """
    if name not in _FACTORIES:
        raise ConfigError(f"unknown model {name!r}: accepted are {', '.join(_FACTORIES)}")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        module, shape = _FACTORIES[name]()
        _keep_signal(module, shape)
    return module.requires_grad_(False).eval(), shape


def _keep_signal(module: nn.Module, shape: tuple[int, ...]) -> None:
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if norms:
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        module.train()(torch.randn(4, *shape))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def _mlp() -> tuple[nn.Module, tuple[int, ...]]:
    layers = [layer for _ in range(24) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers), (256,)


def _torchvision(name: str) -> Callable[[], tuple[nn.Module, tuple[int, ...]]]:
    def factory() -> tuple[nn.Module, tuple[int, ...]]:
        return getattr(import_torchvision().models, name)(weights=None), _IMAGE

    return factory


def import_torchvision() -> ModuleType:
    """Imports torchvision, also where its extension was built for another torch and does not load.

    Only its model definitions are wanted. Without the extension the import fails at the first operator that Python code
    describes and C++ code should have defined; those operators are then declared, without an implementation.

    Raises:
        MissingRuntimeError: It is not installed, or does not import; the message has the line that installs it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to load")  # the image extension, which decodes files
        try:
            try:
                return importlib.import_module("torchvision")
            except RuntimeError as error:
                if "operator torchvision::" not in str(error):
                    raise
                _declare_operators()
                return importlib.import_module("torchvision")
        except (ImportError, RuntimeError) as error:
            raise MissingRuntimeError(f"torchvision cannot be imported ({error}): {_INSTALL}") from error


def _declare_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _op_definitions.append(library)


_FACTORIES: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "mlp": _mlp,
    "mobilenet_v3_small": _torchvision("mobilenet_v3_small"),
    "resnet18": _torchvision("resnet18"),
    "resnet50": _torchvision("resnet50"),
    "vit_b_16": _torchvision("vit_b_16"),
}
