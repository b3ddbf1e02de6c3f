# SPDX-License-Identifier: MIT
"""``xpugraph selftest``: what a user runs first on a device that nobody has tried, and what they report when it fails.

Every check is small, runs whatever the ones before it did, and passes, fails with a reason, or is skipped with one.
The values compared are those of eager on the device and on the CPU. Nothing waits for the whole device or empties a
cache on xpu. The report holds versions, device names and results, and neither paths nor names of users and hosts.

The first submission happens in a process of its own. Until it has come back, nothing here makes SYCL look for devices
beyond what choosing the device takes; when it crashed or hung, nothing is tried in this process.
"""

from __future__ import annotations

import getpass
import json
import platform
import re
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import environment, known_faults
from .errors import ConfigError

PASS, FAIL, SKIP, INCOMPLETE = "pass", "fail", "skip", "incomplete"
PROBE = "probe in a process of its own"
# Of `environment.collect`: what asks no device.
_AT_ONCE = ("torch", "variables", "sycl_packages", "gpus", "known_faults")
_AFTER_PROBE = ("sycl_build", "runtimes", "devices", "capture_engines", "loaded_libraries", "warnings")


class Skipped(Exception):  # noqa: N818  no error: the device does not have what the check is about
    """Raised by a check that has nothing to check here; the message says why."""


class Stop(AssertionError):  # noqa: N818  an assertion that failed, with a consequence
    """Raised by a check after which no other makes sense; those are skipped, with `reason`."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class SelftestConfig:
    """Where to test and how much.

    Attributes:
        device: The device.
        models: Models to record.
        quick: Leaves out most repetitions and what compiles.
        auto: Nobody named the device, so a torch for XPU is expected to see one.
        problem: Why the device could not be enabled. The check of the build says it, and nothing else is tried.
    """

    device: torch.device
    models: Sequence[str] = ()
    quick: bool = False
    auto: bool = False
    problem: str | None = None


@dataclass
class Check:
    """What one check came to."""

    name: str
    status: str
    seconds: float
    detail: str = ""
    advice: str | None = None
    stops: str | None = None  # why the checks after this one are skipped


@dataclass
class SelftestResult:
    """All checks, and where they ran."""

    device: str
    versions: dict[str, str]
    system: dict[str, Any]
    checks: list[Check] = field(default_factory=list)
    running: str | None = None
    complete: bool = False

    @property
    def failures(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status == FAIL]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form, schema 1. Until the end the result is "incomplete", and `running` names a check."""
        return scrub(
            {
                "schema": 1,
                "result": (PASS if self.ok else FAIL) if self.complete else INCOMPLETE,
                **({"running": self.running} if self.running else {}),
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


def begin() -> SelftestResult:
    """Returns what a report has before any device was asked for anything."""
    found: dict[str, Any] = {"os": f"{platform.system()} {platform.release()}", "machine": platform.machine()}
    return SelftestResult("not chosen yet", environment.versions(), found | environment.collect(_AT_ONCE))


def run_selftest(
    config: SelftestConfig,
    on_check: Callable[[Check], None] = lambda check: None,
    on_change: Callable[[SelftestResult], None] = lambda result: None,
    result: SelftestResult | None = None,
) -> SelftestResult:
    """Runs all checks.

    Args:
        config: Where and how much.
        on_check: Is told each check as it ends.
        on_change: Is told the result before and after every check, so that a crash leaves what was found until then.
        result: What `begin` returned.
    """
    from .selftest_checks import checks

    result = begin() if result is None else result
    result.device = str(config.device)
    stopped: str | None = None
    asked = False
    for name, check in checks(config):
        result.running = name
        on_change(result)
        if stopped is None:
            done = run_check(name, check)
            stopped = done.stops
        else:
            done = Check(name, SKIP, 0.0, stopped)
        result.checks.append(done)
        result.running = None
        on_check(done)
        on_change(result)
        if not asked and (stopped is not None or name == PROBE):
            asked = True
            _ask_devices(result, config.device, in_child=stopped is not None and name == PROBE)
    if not asked:
        _ask_devices(result, config.device, in_child=False)
    if stopped is None:
        result.system["recorded"] = _recorded()
    result.complete = True
    on_change(result)
    return result


def _ask_devices(result: SelftestResult, device: torch.device, in_child: bool) -> None:
    """Adds what only the devices and the loaded extension tell; in a process of its own where this one may crash."""
    if in_child:
        result.system |= collect_in_child(_AFTER_PROBE)
    else:
        result.device = environment.device_name(str(device) if device.index else device.type)
        result.system |= environment.collect(_AFTER_PROBE)


def collect_in_child(topics: Sequence[str]) -> dict[str, Any]:
    """Returns topics of `environment.collect`, each asked in a process of its own, or why there is no answer."""
    script = "import json, sys; from xpugraph import environment; print(json.dumps(environment.collect(sys.argv[1:])))"
    loaded = "runtimes"  # loads the extension and its libraries, and asks no device
    found = {}
    for topic in topics:
        try:
            done = subprocess.run(
                [sys.executable, "-c", script, loaded, topic], capture_output=True, text=True, timeout=120
            )
            found[topic] = json.loads(done.stdout)[topic]
        except subprocess.TimeoutExpired:
            found[topic] = "not available: its process hung for 120 s"
        except (ValueError, KeyError):  # nothing that can be read: it ended before
            found[topic] = f"not available: its process ended with {done.returncode}"
    return found


def _recorded() -> dict[str, Any]:
    """Returns how many graphs each of SYCL's engines has recorded in this process."""
    from . import _native

    core = getattr(_native.load(), "sycl", None)  # the check of the build has loaded it
    return {} if core is None else dict(core.recorded())


def run_check(name: str, check: Callable[[], str | None]) -> Check:
    """Runs one check. It returns what it found, raises Skipped, or raises what went wrong."""
    start = time.perf_counter()
    stops = None
    try:
        status, detail = PASS, check() or ""
    except Skipped as reason:
        status, detail = SKIP, str(reason)
    except Stop as error:
        status, detail, stops = FAIL, str(error), error.reason
    except Exception as error:  # whatever a device, a driver or a model raises is the finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        status, detail = FAIL, f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    advice = known_faults.advice(detail) if status == FAIL else None
    return Check(name, status, time.perf_counter() - start, str(scrub(detail)), advice, stops)


# ---- no personal data -----------------------------------------------------------------------------------------------

_PATH = re.compile(r"(?<![\w/])(?:/[\w.@+-]+)+/([\w.@+-]+)")


def scrub(value: Any) -> Any:
    """Returns JSON values without folders of paths and without the names of the user and of the host."""
    if isinstance(value, dict):
        return {key: scrub(item) for key, item in value.items()}
    if isinstance(value, list):
        return [scrub(item) for item in value]
    if not isinstance(value, str):
        return value
    text = _PATH.sub(r"\1", value.replace("file://", ""))
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
