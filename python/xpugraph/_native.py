# SPDX-License-Identifier: MIT
"""Loads the C++ extension, at first use and not at ``import xpugraph``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType

from . import libsycl
from .errors import MissingRuntimeError


@functools.cache
def _import() -> ModuleType:
    import torch  # noqa: F401  the extension links torch's libraries, which must be in the process first

    if (wrong := libsycl.conflict()) is not None:
        raise MissingRuntimeError(wrong)
    return importlib.import_module("xpugraph._C")


def load() -> ModuleType:
    """The module ``xpugraph._C``.

    Raises:
        MissingRuntimeError: The extension was not built, or a library it links is not installed.
    """
    try:
        return _import()
    except MissingRuntimeError:
        raise
    except ImportError as error:
        if importlib.util.find_spec("xpugraph._C") is None:
            hint = "this installation has no compiled extension: run 'pip install --no-build-isolation .' in the source"
        elif "libsycl" in str(error) or "libur_" in str(error):
            hint = libsycl.missing()
        else:
            hint = "the extension was built for another torch: rebuild it with the torch that is installed"
        raise MissingRuntimeError(f"xpugraph's extension does not load ({error}); {hint}") from error
