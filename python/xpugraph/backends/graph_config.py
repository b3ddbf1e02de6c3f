# SPDX-License-Identifier: MIT
"""XPUGraphBackendConfig: how a module is recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError

_ACCEPTED = {
    **dict.fromkeys(("compile_with_inductor", "exact_batch_sizes", "copy_outputs", "strict"), (True, False)),
    "plan": ("measured", "pad"),
    "padding": ("zeros",),
}


@dataclasses.dataclass
class XPUGraphBackendConfig:
    """How a module is recorded.

    Attributes:
        compile_with_inductor: Record the kernels that Torch Inductor generates. ``build`` raises BuildError with the
            reason when it cannot compile the module.
        max_recorded_batch_size: The grid ends there; larger batches are served in chunks.
        batch_sizes: The sizes to record, instead of 1, 2, 4 and the multiples of 8.
        exact_batch_sizes: Record the sizes that were named (`batch_sizes` here and in ``tune``) beside 1, 2, 4 and the
            multiples of 8, as far as `max_recorded_batch_size` allows.
        exact_after: Record a batch size exactly once this many calls had it, on a thread of its own while calls go on.
            None: never.
        plan: "measured": every recorded size is timed once, and each batch is served by the cheapest cover of recorded
            sizes (17 as 16 + 1 where that is faster than 24). "pad": by the next recorded size, always.
        padding: What the rows hold that fill a batch up to a recorded size. Only "zeros" exists.
        copy_outputs: True: results belong to the caller. False: a result that took one replay is lent, and the next
            call (of any thread) overwrites it.
        pool_limit_bytes: The graphs' shared pool may not reserve more; the largest sizes are dropped until it fits.
        rtol: Relative tolerance of the check against eager; None: by dtype (1e-3 for float32).
        atol: Absolute tolerance, times the largest value of the result where that is above 1; None: by dtype (1e-4).
        strict: True: a call that the graphs cannot serve raises InputError. False: eager serves it, and describe()
            counts it.
    """

    compile_with_inductor: bool = False
    max_recorded_batch_size: int = 256
    batch_sizes: Sequence[int] | None = None
    exact_batch_sizes: bool = False
    exact_after: int | None = None
    plan: str = "measured"
    padding: str = "zeros"
    copy_outputs: bool = True
    pool_limit_bytes: int | None = None
    rtol: float | None = None
    atol: float | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError for a value that is out of range; names the field."""
        for name, accepted in _ACCEPTED.items():
            value = getattr(self, name)
            if not any(value is one or (isinstance(value, str) and value == one) for one in accepted):
                listed = f"{'is' if len(accepted) == 1 else 'are'} {' and '.join(map(repr, accepted))}"
                raise ConfigError(f"{name}={value!r}; accepted {listed}")
        _whole("max_recorded_batch_size", self.max_recorded_batch_size)
        for name in ("pool_limit_bytes", "exact_after"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name))
        if self.batch_sizes is not None:
            self.batch_sizes = sorted({_whole("batch_sizes", size) for size in self.batch_sizes})
            if not self.batch_sizes:
                raise ConfigError("batch_sizes=[]; at least one size is needed")
        if self.exact_after is not None and not self.copy_outputs:
            raise ConfigError(
                f"exact_after={self.exact_after!r} and copy_outputs=False: recording would overwrite lent results"
            )
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigError(f"{name}={value!r}; a number of 0 or more is needed")

    def changed(self) -> dict[str, Any]:
        """The fields that are not at their defaults."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}={value!r}; a whole number of 1 or more is needed")
    return value
