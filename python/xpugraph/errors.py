# SPDX-License-Identifier: MIT
"""Every error that xpugraph raises on purpose. The C++ core raises the same classes."""


class XPUGraphError(RuntimeError):
    """Base of all errors of xpugraph."""


class ConfigError(XPUGraphError, ValueError):
    """A configuration value or an argument of ``build`` that is out of range or does not fit the module."""


class InputError(XPUGraphError, ValueError):
    """A call that the recorded graphs do not serve, and that eager refuses too (or ``strict=True`` forbids)."""


class StateError(XPUGraphError):
    """A method used in the wrong order, or a module that was changed after it was recorded."""


class BuildError(XPUGraphError):
    """A module that cannot be recorded at any batch size; the message says why. The module is as it was before."""


class CaptureError(XPUGraphError):
    """A capture that failed. Stream, allocations and recording state are as before it."""


class OutOfMemoryError(XPUGraphError):
    """``pool_limit_bytes`` is too small, or the device is out of memory."""


class CheckpointError(XPUGraphError, ValueError):
    """A checkpoint that is damaged, of another format or schema, or made of another module."""


class DeviceError(XPUGraphError):
    """Work that failed on the device after it was submitted; raised at the next synchronisation."""


class MissingRuntimeError(XPUGraphError, ImportError):
    """A runtime library that is not installed; the message says what to install."""
