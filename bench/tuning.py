# SPDX-License-Identifier: MIT
"""What tuning costs and what its routes are worth: run by ``make bench``.

Every latency is a ratio of medians that were taken in turns in one process. Auto is compared with the fastest single
backend of each batch size, several times over; the median of the ratios counts and their spread is shown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from _measures import Measure, report, write

import xpugraph as xg
from xpugraph.backends import named_backends
from xpugraph.bench import resolve_device
from xpugraph.environment import device_name
from xpugraph.models import make_model
from xpugraph.timing import stream_synchronizer, time_interleaved

SIZES = [1, 3, 8, 17, 64]
TUNING_LIMIT = {"mlp": 60.0, "resnet18": 360.0}  # seconds, of all backends on two cores
WITHIN = 1.05


def tune_and_load(name: str, device: torch.device) -> tuple[xg.TunedModule, list[Measure]]:
    """Tunes a model, saves it, and loads it into another copy of the model."""
    module, shape = make_model(name)
    start = time.perf_counter()
    tuned = xg.tune(module.to(device), torch.randn(SIZES[-1], *shape), SIZES, progress=False)
    tuning = time.perf_counter() - start
    print(tuned.report, file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = xg.save(tuned, Path(folder) / "model.xpugraph")
        fresh = make_model(name)[0].to(device)
        start = time.perf_counter()
        loaded = xg.load(fresh, path)
        loading = time.perf_counter() - start
    loaded.backend.deactivate()
    limit = TUNING_LIMIT.get(name)
    target = "" if limit is None else f"< {limit:.0f}"
    ratio = tuning / loading
    return tuned, [
        Measure(f"{name}: tuning", tuning, "s", target, limit is None or tuning < limit, f"routes {tuned.routes}"),
        Measure(f"{name}: load faster than tune", ratio, "x", ">= 5", ratio >= 5, f"{loading:.2f} s"),
    ]


def auto_over_best(
    name: str, tuned: xg.TunedModule, device: torch.device, repeats: int, min_time: float
) -> list[Measure]:
    """Auto's latency over that of the fastest single backend, at each batch size."""
    sample = torch.randn(SIZES[-1], *make_model(name)[1]).to(device)
    backends = {}
    for label, make in named_backends().items():
        try:
            backends[label] = make().build(tuned.module, [sample])
        except xg.XPUGraphError as error:
            print(f"{name}: {label} left out: {error}", file=sys.stderr)
    synchronize = stream_synchronizer(device)
    measures = []
    for size in SIZES:
        batch = sample[:size].clone()
        calls = {label: partial(backend.infer, batch) for label, backend in backends.items()}
        calls["auto"] = partial(tuned, batch)
        ratios, winners = [], []
        for _ in range(repeats):
            medians = {label: t.median for label, t in time_interleaved(calls, synchronize, min_time, rounds=6).items()}
            auto = medians.pop("auto")
            winner = min(medians, key=medians.__getitem__)
            ratios.append(auto / medians[winner])
            winners.append(winner)
        middle = statistics.median(ratios)
        chosen, fastest = tuned.backend.route_of(size).backend, ", ".join(sorted(set(winners)))
        note = f"routed to {chosen}; fastest {fastest}; {min(ratios):.2f} to {max(ratios):.2f}"
        measures.append(Measure(f"{name}: auto/best, batch {size}", middle, "x", "<= 1.05", middle <= WITHIN, note))
    for backend in backends.values():
        backend.deactivate()
    return measures


def dispatch() -> Measure:
    """Python of the router between a call and the backend's own infer."""

    class Nothing(xg.TorchEagerBackend):
        def infer(self, x: torch.Tensor) -> None:
            return None

    routes = [xg.Route(1, 8, "a"), xg.Route(9, 17, "b"), xg.Route(18, None, "a")]
    x = torch.zeros(17, 4)
    router = xg.BatchSizeRouterBackend(routes, {"a": Nothing(), "b": Nothing()}).build(torch.nn.Identity().eval(), [x])
    bare = router.backends["b"].infer
    rounds, calls = 15, 20_000

    def seconds(call: object) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            call(x)  # type: ignore[operator]
        return time.perf_counter() - start

    differences = [(seconds(router.infer) - seconds(bare)) / calls for _ in range(rounds)]
    cost = 1e6 * statistics.median(differences)
    return Measure("router's dispatch", cost, "us", "< 5", cost < 5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="sycl", help="auto, xpu, cuda or sycl (default)")
    parser.add_argument("--models", default="mlp,mobilenet_v3_small,resnet18", help="separated by commas")
    parser.add_argument("--json", type=Path, default=Path("out/tuning.json"), help="where the figures go")
    parser.add_argument("--repeats", type=int, default=3, help="runs of every comparison")
    parser.add_argument("--min-time", type=float, default=0.5, help="seconds for each latency")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a target is missed")
    options = parser.parse_args()

    try:
        device = resolve_device(options.device)
    except ValueError as error:
        parser.error(f"--device: {error}")
    measures = [dispatch()]
    with torch.no_grad():
        for name in options.models.split(","):
            tuned, found = tune_and_load(name, device)
            measures += found
            measures += auto_over_best(name, tuned, device, options.repeats, options.min_time)
            tuned.backend.deactivate()
    report(measures, f"xpugraph tuning on {device_name(device.type)}, torch {torch.__version__}")
    write(measures, device, options.json)
    return 1 if options.strict and not all(measure.ok for measure in measures) else 0


if __name__ == "__main__":
    sys.exit(main())
