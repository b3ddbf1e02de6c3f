# SPDX-License-Identifier: MIT
"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_path(path: Path, keep: bool = True) -> Iterator[Path]:
    """Yields a path beside `path`, moved onto it when the block ends well and removed when not, or when not to keep.

    A link is followed. What is no plain file, such as /dev/null or a pipe, stays and is written itself.
    """
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        if not keep:
            return
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp's files are the owner's alone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(value: Any, path: Path) -> None:
    """Writes a value as JSON, NaN and infinity as null."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(_finite(value), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
