# SPDX-License-Identifier: MIT
"""The manifest of a checkpoint: JSON, checked before anything is made of it, and before it is written."""

from __future__ import annotations

import json
import math
from typing import Any

from .archive import MANIFEST
from .errors import CheckpointError, ConfigError

FORMAT, SCHEMA = "xpugraph-checkpoint", 1

_DEEPEST = 100  # of JSON values in JSON values
# A type; [of each item]; (each item); {key: value}, and {str: value} with any key. Routers and reports check their own.
_SHAPE: dict[Any, Any] = {
    "format": str,
    "schema": int,
    "device": str,
    "versions": {str: str},
    "module": {
        "class": str,
        "submodules": [(str, str, str)],
        "attributes": {str: str},
        "tensors": [{"name": str, "kind": str, "shape": [int], "dtype": str}],
    },
    "aliases": {str: str},
    "router": dict,
    "report": dict,
}


def render(manifest: dict[str, Any]) -> bytes:
    """The manifest as text.

    Raises:
        ConfigError: It holds what `parse` would refuse.
    """
    try:
        data = json.dumps(manifest, indent=1, allow_nan=False).encode("ascii")
        parse(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"tuned: its backends or its report hold what cannot be saved as JSON: {error}") from error
    return data


def parse(data: bytes) -> dict[str, Any]:
    """The manifest in a text.

    Raises:
        CheckpointError: It is no manifest of this format and schema; says where.
    """
    try:
        manifest = json.loads(data.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{MANIFEST} is no JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{MANIFEST} is not of format {FORMAT!r}")
    if type(manifest.get("schema")) is not int or manifest["schema"] != SCHEMA:
        raise CheckpointError(f"schema {manifest.get('schema')!r} is unknown; this xpugraph reads schema {SCHEMA}")
    _check_depth(manifest)
    _check(manifest, _SHAPE, "the manifest")
    return manifest


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _check_depth(value: Any, depth: int = 0) -> None:
    if depth > _DEEPEST:
        raise CheckpointError(f"{MANIFEST} is nested deeper than {_DEEPEST}")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, depth + 1)


def _check(value: Any, shape: Any, name: str) -> None:
    kind: type = shape if isinstance(shape, type) else dict if isinstance(shape, dict) else list
    actual = type(value)
    if actual is not kind:
        raise CheckpointError(f"{name} is a {actual.__name__}; a {kind.__name__} is needed")
    if isinstance(shape, type):
        return
    for key, item in value.items() if kind is dict else enumerate(value):
        _check(item, _of_key(shape, key, name), f"{name}[{key!r}]")
    if isinstance(shape, tuple) and len(value) < len(shape):
        raise CheckpointError(f"{name} has {len(value)} entries; {len(shape)} are needed")
    if isinstance(shape, dict) and str not in shape and (missing := shape.keys() - value.keys()):
        raise CheckpointError(f"{name} lacks {min(missing)!r}")


def _of_key(shape: Any, key: Any, name: str) -> Any:
    """The shape of one entry."""
    if isinstance(shape, list):
        return shape[0]
    if isinstance(shape, dict) and str in shape:
        return shape[str]
    if (key < len(shape)) if isinstance(shape, tuple) else (key in shape):
        return shape[key]
    raise CheckpointError(f"{name} has an unknown entry {key!r}")
