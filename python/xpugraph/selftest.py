# SPDX-License-Identifier: MIT
"""``xpugraph selftest``: what a user runs first on a device that nobody has tried, and what they report when it fails.

Every check is small, runs whatever the ones before it did, and passes, fails with a reason, or is skipped with one.
The values compared are those of eager on the device and on the CPU. Nothing waits for the whole device or empties a
cache on xpu. The report holds versions, device names and results, and neither paths nor names of users and hosts.
"""

from __future__ import annotations

import getpass
import platform
import re
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import environment, known_faults
from .errors import ConfigError

PASS, FAIL, SKIP = "pass", "fail", "skip"


class Skipped(Exception):  # noqa: N818  no error: the device does not have what the check is about
    """Raised by a check that has nothing to check here; the message says why."""


@dataclass(frozen=True)
class SelftestConfig:
    """Where to test and how much; `quick` leaves out the models and most repetitions."""

    device: torch.device
    models: Sequence[str] = ()
    quick: bool = False


@dataclass
class Check:
    """What one check came to."""

    name: str
    status: str
    seconds: float
    detail: str = ""
    advice: str | None = None


@dataclass
class SelftestResult:
    """All checks, and where they ran."""

    device: str
    versions: dict[str, str]
    system: dict[str, Any]
    checks: list[Check] = field(default_factory=list)

    @property
    def failures(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status == FAIL]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form, schema 1."""
        return scrub(
            {
                "schema": 1,
                "result": PASS if self.ok else FAIL,
                "device": self.device,
                "versions": self.versions,
                "system": self.system,
                "checks": [
                    {
                        "name": check.name,
                        "status": check.status,
                        "seconds": round(check.seconds, 3),
                        "detail": check.detail,
                        **({"advice": check.advice} if check.advice else {}),
                    }
                    for check in self.checks
                ],
            }
        )


def run_selftest(config: SelftestConfig, on_check: Callable[[Check], None] = lambda check: None) -> SelftestResult:
    """Runs all checks; `on_check` is told each result as it comes."""
    from .selftest_checks import checks

    result = SelftestResult(environment.device_name(config.device.type), environment.versions(), system(config.device))
    for name, check in checks(config):
        result.checks.append(run_check(name, check))
        on_check(result.checks[-1])
    result.system["recorded"] = _recorded()
    return result


def _recorded() -> dict[str, Any]:
    """Returns how many graphs each of SYCL's engines has recorded in this process."""
    from . import _native

    core = getattr(_native.load(), "sycl", None)
    return {} if core is None else dict(core.recorded())


def run_check(name: str, check: Callable[[], str | None]) -> Check:
    """Runs one check. It returns what it found, raises Skipped, or raises what went wrong."""
    start = time.perf_counter()
    try:
        status, detail = PASS, check() or ""
    except Skipped as reason:
        status, detail = SKIP, str(reason)
    except Exception as error:  # whatever a device, a driver or a model raises is the finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        status, detail = FAIL, f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    advice = known_faults.advice(detail) if status == FAIL else None
    return Check(name, status, time.perf_counter() - start, str(scrub(detail)), advice)


def system(device: torch.device) -> dict[str, Any]:
    """Returns what a report needs of the machine: kernel, SYCL's devices and engines, the device's properties."""
    found: dict[str, Any] = {"os": f"{platform.system()} {platform.release()}", "machine": platform.machine()}
    topics = ("torch", "sycl_packages", "sycl_build", "runtimes", "devices", "capture_engines", "known_faults")
    collected = environment.collect()
    found |= {topic: collected[topic] for topic in topics}
    return found


# ---- no personal data -----------------------------------------------------------------------------------------------

_PATH = re.compile(r"(?<![\w/:])(?:/[\w.@+-]+)+/([\w.@+-]+)")


def scrub(value: Any) -> Any:
    """Returns JSON values without folders of paths and without the names of the user and of the host."""
    if isinstance(value, dict):
        return {key: scrub(item) for key, item in value.items()}
    if isinstance(value, list):
        return [scrub(item) for item in value]
    if not isinstance(value, str):
        return value
    text = _PATH.sub(r"\1", value)
    for name, stand_in in ((_user(), "USER"), (socket.gethostname(), "HOST")):
        if len(name) > 2 and name not in ("root", "localhost"):
            text = re.sub(rf"\b{re.escape(name)}\b", stand_in, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user in this container
        return ""


def check_models(models: Sequence[str]) -> None:
    """Refuses names of models that there are not.

    Raises:
        ConfigError: A name is unknown.
    """
    from .models import model_names

    for name in models:
        if name not in model_names():
            raise ConfigError(f"unknown model {name!r}: accepted are {', '.join(model_names())}")
