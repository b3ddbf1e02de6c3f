# SPDX-License-Identifier: MIT
"""TuningReport: what was tried, measured and chosen; as a table, as JSON, as a plot."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..errors import ConfigError
from ..files import write_json
from ..routing import Route
from ..units import digits, mebibytes
from .profiling import Measurement

SCHEMA = 1
_WIDTH = 160  # of tables where no terminal limits it


@dataclasses.dataclass
class BackendReport:
    """One backend of a tuning; see `Candidate` for the fields."""

    label: str
    config: str
    status: str
    reason: str = ""
    log: str = ""
    build_seconds: float = 0.0
    measurements: dict[int, Measurement] = dataclasses.field(default_factory=dict)
    served_by_eager: list[int] = dataclasses.field(default_factory=list)
    saturated_at: int | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        measurements = [dataclasses.asdict(m) | {"throughput": m.throughput} for m in self.measurements.values()]
        return dict(vars(self), measurements=measurements)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> BackendReport:
        """The inverse of to_dict."""
        entries = [{k: v for k, v in entry.items() if k != "throughput"} for entry in state["measurements"]]
        measurements = {int(entry["batch_size"]): Measurement(**entry) for entry in entries}
        return cls(**dict(state, measurements=measurements))


@dataclasses.dataclass
class TuningReport:
    """Everything a tuning found out.

    Attributes:
        device: Type and name.
        versions: Of xpugraph, torch and the runtimes.
        strategy: In one line.
        batch_sizes: The sizes that were measured.
        backends: What was tried.
        routes: What was chosen.
        default: Label of the backend that serves where no other is clearly faster.
        batch: Which dimension of which tensors was taken to be the batch.
        latency_budget_ms: As the strategy was given it.
        reserved_while_profiling: Bytes reserved on the device with every backend built; None: no count there.
        reserved_for_serving: The same once the others were freed.
        seconds: How long tuning took.
    """

    device: str
    versions: dict[str, str]
    strategy: str
    batch_sizes: list[int]
    backends: list[BackendReport]
    routes: list[Route]
    default: str
    batch: str = ""
    latency_budget_ms: float | None = None
    reserved_while_profiling: int | None = None
    reserved_for_serving: int | None = None
    seconds: float = 0.0

    @property
    def best(self) -> Measurement | None:
        """The measurement with the highest throughput among the routed ones that keep the latency budget, if any."""
        budget = self.latency_budget_ms or float("inf")
        measured = [m for m in map(self._routed, self.batch_sizes) if m is not None and m.latency_ms <= budget]
        return max(measured, key=lambda m: m.throughput, default=None)

    def _routed(self, batch_size: int) -> Measurement | None:
        (label,) = (route.backend for route in self.routes if batch_size in route)
        (backend,) = (backend for backend in self.backends if backend.label == label)
        return backend.measurements.get(batch_size)

    # ---- as data ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, schema 1."""
        return {
            "schema": SCHEMA,
            **vars(self),
            "backends": [backend.to_dict() for backend in self.backends],
            "routes": [[route.first, route.last, route.backend] for route in self.routes],
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> TuningReport:
        """The inverse of to_dict.

        Raises:
            ConfigError: `state` is something else.
        """
        try:
            if state["schema"] != SCHEMA:
                raise ConfigError(f"report: schema {state['schema']!r} is unknown; this xpugraph reads {SCHEMA}")
            fields = {key: value for key, value in state.items() if key != "schema"}
            fields["backends"] = [BackendReport.from_dict(entry) for entry in state["backends"]]
            fields["routes"] = [Route(*entry) for entry in state["routes"]]
            return cls(**fields)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"report: not what TuningReport.to_dict() makes ({error!r})") from error

    def write_json(self, path: str | Path) -> None:
        """Writes `to_dict` to a file, which appears whole or not at all."""
        write_json(self.to_dict(), Path(path))

    def plot(self, path: str | Path) -> None:
        """Draws latency over batch size, one line a backend, each range shaded with the colour of its backend.

        Args:
            path: .png, .svg or .pdf.
        """
        from .plot import draw

        draw(self, Path(path))

    # ---- for people ------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        buffer = io.StringIO()
        Console(file=buffer, width=_WIDTH, highlight=False).print(self)
        return buffer.getvalue().rstrip()

    def __rich__(self) -> RenderableType:
        """For ``rich.print`` and consoles."""
        head = Text(f"{self.device}   {self.strategy}, tuned in {self.seconds:.1f} s", style="bold")
        title = Text("latency in ms by batch size; * is what serves", style="dim")
        return Group(head, title, self._table(), *(Text(line, style=style) for line, style in self._notes()))

    def _table(self) -> Table:
        table = Table()
        table.add_column("backend", no_wrap=True)
        for size in self.batch_sizes:
            table.add_column(str(size), justify="right", overflow="fold")
        for backend in self.backends:
            table.add_row(Text(backend.label), *(self._cell(backend, size) for size in self.batch_sizes))
        return table

    def _cell(self, backend: BackendReport, size: int) -> Text:
        measurement = backend.measurements.get(size)
        if measurement is None:
            return Text("–" if backend.status != "failed" else "failed", style="dim")
        routed = any(size in route and route.backend == backend.label for route in self.routes)
        mark = "*" if routed else ""
        return Text(digits(measurement.latency_ms) + mark, style="bold green" if routed else "")

    def _notes(self) -> list[tuple[str, str]]:
        notes = [(f"  {route}", "green") for route in self.routes]
        if (best := self.best) is not None:
            budget = "" if self.latency_budget_ms is None else f" within {self.latency_budget_ms:g} ms"
            notes.append((f"  most{budget}: {best.throughput:.1f} items/s at batch size {best.batch_size}", ""))
        if self.batch:
            notes.append((f"  the batch is {self.batch}", "dim"))
        for backend in self.backends:
            notes += _backend_notes(backend)
        if self.reserved_while_profiling is not None:
            before, after = mebibytes(self.reserved_while_profiling), mebibytes(self.reserved_for_serving)
            notes.append(
                (f"  memory reserved on the device: {before} with every backend built, {after} for serving", "")
            )
        return notes


def _backend_notes(backend: BackendReport) -> list[tuple[str, str]]:
    notes = []
    if backend.status in ("failed", "wrong"):
        notes.append((f"  {backend.label} {backend.status}: {backend.reason}", "red"))
    facts = backend.facts
    if facts.get("recorded_batch_sizes"):
        sizes = facts["recorded_batch_sizes"]
        pool = mebibytes(facts["pool_bytes"])
        notes.append((f"  {backend.label}: {len(sizes)} graphs up to batch size {sizes[-1]}, pool {pool}", "dim"))
    notes += [
        (f"  {backend.label}: no graph of batch size {size}: {reason}", "yellow")
        for size, reason in facts.get("dropped_batch_sizes", {}).items()
    ]
    if backend.served_by_eager:
        sizes = ", ".join(map(str, backend.served_by_eager))
        notes.append((f"  {backend.label} passed batch sizes {sizes} on to eager", "yellow"))
    unstable = [str(m.batch_size) for m in backend.measurements.values() if not m.stable]
    if unstable:
        notes.append((f"  {backend.label}: noisy or few samples at batch sizes {', '.join(unstable)}", "yellow"))
    return notes
