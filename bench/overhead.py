# SPDX-License-Identifier: MIT
"""What graphs gain and cost on the bench's MLP, against the targets: run by ``make bench``.

Every figure is a ratio or a difference of medians taken in turns in one process, so that it holds on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _measures import Measure, report, write

import xpugraph as xg
from xpugraph.bench import resolve_device
from xpugraph.environment import device_name
from xpugraph.models import make_model
from xpugraph.timing import gc_disabled, stream_synchronizer, time_interleaved

LARGEST = 256
FLAT_MIB = 4.0  # growth of resident memory below this is an allocator's breathing


class Overhead:
    """The MLP on a device, in eager mode and recorded for all 35 sizes."""

    def __init__(self, device: torch.device, min_time: float, default_threads: int) -> None:
        self.min_time, self.threads = min_time, sorted({1, default_threads})
        self.synchronize = stream_synchronizer(device)
        self.cpu_model, shape = make_model("mlp")
        self.model = make_model("mlp")[0].to(device)
        self.sample = torch.randn(300, *shape).to(device)
        self.graph = xg.XPUGraphBackend(xg.XPUGraphBackendConfig(max_recorded_batch_size=LARGEST))
        self.graph.build(self.model, samples=[self.sample[:LARGEST]])

    def latency(self) -> list[Measure]:
        """Batch 1 in eager mode on the device, replayed, and in plain CPU eager with one thread and with all."""
        x, x_cpu = self.sample[:1].clone(), self.sample[:1].cpu()

        calls: dict[str, Callable[[], object]] = {"eager": lambda: self.model(x), "graph": lambda: self.graph.infer(x)}
        calls |= {f"cpu{threads}": lambda: self.cpu_model(x_cpu) for threads in self.threads}
        before = torch.get_num_threads()

        def on_turn(name: str) -> None:
            torch.set_num_threads(int(name.removeprefix("cpu")) if name.startswith("cpu") else before)

        try:
            timings = time_interleaved(calls, self.synchronize, self.min_time, rounds=9, on_turn=on_turn)
        finally:
            torch.set_num_threads(before)
        eager, graph = timings["eager"].median, timings["graph"].median
        cpu, threads = min((timings[f"cpu{threads}"].median, threads) for threads in self.threads)
        note = f"{graph:.3f} ms graph, {eager:.3f} ms eager"
        cpu_note = f"{graph:.3f} ms graph, {cpu:.3f} ms CPU with {threads} threads, the better of {self.threads}"
        return [
            Measure("graph faster than eager, batch 1", eager / graph, "x", ">= 3", eager >= 3 * graph, note),
            Measure("graph faster than plain CPU eager, batch 1", cpu / graph, "x", "> 1", graph < cpu, cpu_note),
        ]

    def call_cost(self) -> list[Measure]:
        """A call and sync less a bare replay and sync of the same executable."""
        return [self._call_cost(1, 1, "exact"), self._call_cost(3, 4, "padded to 4")]

    def _call_cost(self, rows: int, recorded: int, how: str) -> Measure:
        x = self.sample[:rows].clone()
        pairs = int(min(20_000, max(300, self.min_time * 4000)))
        calls, replays = [], []
        with gc_disabled():
            for index in range(pairs + 50):
                call, replay = self._once(lambda: self.graph.infer(x)), self._once(lambda: self.graph.replay(recorded))
                if index >= 50:
                    calls.append(call)
                    replays.append(replay)
        cost = 1e6 * statistics.median(call - replay for call, replay in zip(calls, replays, strict=True))
        note = f"replay {1e6 * statistics.median(replays):.0f} us"
        return Measure(f"call above bare replay, batch {rows} {how}", cost, "us", "<= 30", cost <= 30, note)

    def _once(self, call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start

    def recording(self) -> list[Measure]:
        """Seconds to record all sizes, and the pool of all sizes over the pool of the largest alone."""
        sizes, seconds = len(self.graph.recorded_batch_sizes), self.graph.record_seconds
        alone = xg.XPUGraphBackend(xg.XPUGraphBackendConfig(batch_sizes=[LARGEST]))
        alone.build(self.model, samples=[self.sample[:LARGEST]])
        pool, pool_alone = self.graph.pool_stats()["reserved"], alone.pool_stats()["reserved"]
        alone.deactivate()
        ratio = pool / max(1, pool_alone)
        note = f"{pool / 2**20:.2f} MiB over {pool_alone / 2**20:.2f} MiB"
        return [
            Measure(f"recording {sizes} sizes", seconds, "s", "< 2, of 35", seconds < 2 and sizes == 35),
            Measure(f"pool of {sizes} sizes over the largest's", ratio, "x", "<= 1.1", ratio <= 1.1, note),
        ]

    def soak(self, calls: int) -> list[Measure]:
        """Calls of random sizes: what they record, and how resident memory grows after the first tenth."""
        sizes = random.Random(0)
        recordings = self.graph.counters()["recordings"]
        before = 0.0
        for index in range(calls):
            if index == calls // 10:
                self.synchronize()
                before = resident_mib()
            self.graph.infer(self.sample[: sizes.randint(1, 300)])
            if index % 16 == 15:
                self.synchronize()
        self.synchronize()
        grown = resident_mib() - before
        more = self.graph.counters()["recordings"] - recordings
        note = f"{calls} calls, batch sizes 1 to 300, {before:.0f} MiB before"
        return [
            Measure("recordings during calls", more, "", "0", more == 0, note),
            Measure("growth of resident memory", grown, "MiB", f"<= {FLAT_MIB:g}", grown <= FLAT_MIB, note),
        ]


def resident_mib() -> float:
    """Returns this process's resident memory; 0 where /proc does not tell it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="sycl", help="auto, xpu, cuda or sycl (default)")
    parser.add_argument("--json", type=Path, default=Path("out/overhead.json"), help="where the figures go")
    parser.add_argument("--min-time", type=float, default=1.0, help="seconds for each latency")
    parser.add_argument("--calls", type=int, default=10_000, help="calls of the memory measure")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a target is missed")
    options = parser.parse_args()

    default_threads = torch.get_num_threads()  # before the device shares the cores out
    try:
        device = resolve_device(options.device)
    except ValueError as error:
        parser.error(f"--device: {error}")
    with torch.no_grad():
        overhead = Overhead(device, options.min_time, default_threads)
        parts: list[Callable[[], list[Measure]]] = [
            overhead.latency,
            overhead.call_cost,
            overhead.recording,
            lambda: overhead.soak(options.calls),
        ]
        measures = [measure for part in parts for measure in part()]
    report(measures, f"xpugraph overhead on {device_name(device.type)}, torch {torch.__version__}")
    write(measures, device, options.json)
    return 1 if options.strict and not all(measure.ok for measure in measures) else 0


if __name__ == "__main__":
    sys.exit(main())
