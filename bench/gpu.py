# SPDX-License-Identifier: MIT
"""Five models on a CUDA GPU: xpugraph's backends beside everything a user would pick instead.

bench/gpu.sh builds xpugraph and runs this: gpu.sh OUT.json [options]. Models are added to OUT.json when it is there,
so that one run may take several commands. The JSON is that of `xpugraph bench`; its `facts` are of the run: what a call
costs above a bare replay, recording, threads, and the ratios that are compared with the targets.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _peers import peers
from rich.console import Console

import xpugraph as xg
from xpugraph import bench_report
from xpugraph.bench import Auto, BenchConfig, BenchResult, backend_factories, resolve_device, run_bench
from xpugraph.files import write_json
from xpugraph.models import make_model, model_names
from xpugraph.tuning import ProfilingConfig
from xpugraph.units import digits

SIZES = (1, 3, 8, 17, 64, 100)


def factories(sizes: list[int]) -> dict[str, Any]:
    """xpugraph's backends, and the peers. Tuning profiles the served sizes only."""
    served = ProfilingConfig(batch_sizes=sizes)
    ours = dict(backend_factories())
    ours["auto"] = functools.partial(Auto, profiling_config=served)
    ours["auto-exact"] = functools.partial(Auto, exact_batch_sizes=True, profiling_config=served)
    return {**ours, **peers()}


def microseconds(call: Callable[[], object], seconds: float = 0.5) -> float:
    """Median of a call and a synchronisation."""
    synchronize = torch.cuda.current_stream().synchronize
    for _ in range(50):
        call()
    synchronize()
    values, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        synchronize()
        values.append(time.perf_counter() - start)
    return 1e6 * statistics.median(values)


def overhead(device: torch.device, rounds: int = 5) -> list[dict[str, float]]:
    """The MLP: a call of `graph` above the bare replay of the same recorded size. µs; one entry a round."""
    module, shape = make_model("mlp")
    module = module.to(device)
    x = torch.randn(64, *shape, device=device)
    config = BenchConfig(["mlp"], [1, 4], [], device, max_recorded_batch_size=64)
    floor = peers()["exact-replay"](config)
    floor.build(module, [x])
    backend = xg.XPUGraphBackend(xg.XPUGraphBackendConfig(plan="pad"))
    backend.build(module, samples=[x])
    batches = {n: [x[i : i + n].clone() for i in range(16)] for n in (1, 3)}
    kept: list[Any] = [None] * 5

    def moving(n: int) -> Callable[[], object]:
        """Another input at every call, and results that live on for a while."""
        turn = 0

        def call() -> None:
            nonlocal turn
            turn += 1
            kept[turn % 5] = backend.infer(batches[n][turn % 16])

        return call

    found = []
    for _ in range(rounds):
        bare = {n: microseconds(floor.graphs[size].replay) for n, size in ((1, 1), (3, 4))}
        row = {}
        for n in (1, 3):
            row[f"bare_{n}"] = bare[n]
            row[f"same_tensor_{n}"] = microseconds(functools.partial(backend.infer, batches[n][0])) - bare[n]
            row[f"moving_tensors_{n}"] = microseconds(moving(n)) - bare[n]
        found.append({key: round(value, 2) for key, value in row.items()})
    backend.deactivate()
    floor.deactivate()
    return found


def recording(name: str, device: torch.device) -> dict[str, Any]:
    """35 sizes up to 256: seconds, and bytes of the pool against those of size 256 alone."""
    module, shape = make_model(name)
    module = module.to(device)
    x = torch.randn(256, *shape, device=device)
    facts = {}
    for key, sizes in (("alone", [256]), ("all", None)):
        backend = xg.XPUGraphBackend(xg.XPUGraphBackendConfig(batch_sizes=sizes, plan="pad"))
        backend.build(module, samples=[x])
        facts[f"pool_{key}"] = backend.pool_stats()["reserved"]
        facts[f"sizes_{key}"] = len(backend.recorded_batch_sizes)
        facts[f"warm_up_and_record_seconds_{key}"] = round(backend.record_seconds, 3)
        facts[f"capture_seconds_{key}"] = round(backend.capture_seconds, 3)
        backend.deactivate()
    facts["pool_ratio"] = round(facts["pool_all"] / facts["pool_alone"], 4)
    return facts


def hammer(device: torch.device, threads: int = 16, seconds: float = 60.0) -> dict[str, Any]:
    """One tuned model, called with random sizes by one thread and then by many; every answer is compared.

    What is not the calls is kept small, for Python runs it in one thread at a time: 50 answers are compared at once.
    """
    module, shape = make_model("mlp")
    module = module.to(device)
    x = torch.randn(512, *shape, device=device)
    strategy = xg.HighestThroughputStrategy(profiling_config=ProfilingConfig(batch_sizes=[1, 8, 64]))
    tuned = xg.tune(module, x[:64], [1, 8, 64], strategy, progress=False)
    right = module(x)
    slack = 1e-4 * float(right.abs().max())
    wrong: list[str] = []

    def random_pairs(generator: torch.Generator) -> list[list[int]]:
        return torch.randint(1, 101, (50, 2), generator=generator).tolist()

    def work(seed: int, until: float, done: list[int]) -> None:
        generator = torch.Generator().manual_seed(seed)
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            while time.perf_counter() < until:
                cuts = [slice(start, start + rows) for rows, start in random_pairs(generator)]
                answers = torch.cat([tuned(x[cut]) for cut in cuts])
                worst = float((answers - torch.cat([right[cut] for cut in cuts])).abs().max())
                if not worst < slack:  # NaN too
                    wrong.append(f"seed {seed}: {worst}")
                done.append(len(cuts))

    def run(count: int, span: float) -> float:
        done: list[list[int]] = [[] for _ in range(count)]
        until = time.perf_counter() + span
        workers = [threading.Thread(target=work, args=(i, until, done[i])) for i in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(map(sum, done)) / span

    torch.cuda.current_stream().synchronize()
    one = run(1, seconds / 4)
    many = run(threads, seconds)
    return {
        "calls_per_second_of_1": round(one),
        f"calls_per_second_of_{threads}": round(many),
        "wrong": len(wrong),
        "first_wrong": wrong[:3],
        "seconds": seconds,
        "routes": [str(route) for route in tuned.routes],
    }


def compare(models: dict[str, Any]) -> dict[str, Any]:
    """The figures that matter, over all cells: auto against reduce-overhead, the best single backend, and Python."""
    singles = ("eager", "inductor", "graph", "graph+inductor")
    found: dict[str, Any] = {}
    for auto in ("auto", "auto-exact"):
        ratios, behind = [], []
        for name, entry in models.items():
            times = entry["latency_ms"]
            for i, size in enumerate(entry["batch_sizes"]):
                row = {backend: values[i] for backend, values in times.items() if values[i]}
                if auto in row and "reduce-overhead" in row:
                    ratios.append((round(row["reduce-overhead"] / row[auto], 3), name, size))
                if auto == "auto" and auto in row:
                    best = min(row[single] for single in singles if single in row)
                    behind.append((round(row[auto] / best, 3), name, size))
        if ratios:
            mean = math.exp(statistics.fmean(math.log(ratio) for ratio, *_ in ratios))
            found[f"{auto}_against_reduce-overhead"] = {"geometric_mean": round(mean, 3), "worst": sorted(ratios)[:5]}
        if behind:
            found["auto_over_best_single"] = {"worst": sorted(behind, reverse=True)[:5]}
    for ours, theirs in (("graph", "python-graph"), ("graph+inductor", "python-graph+inductor")):
        cells = [
            (round(entry["latency_ms"][ours][i] / entry["latency_ms"][theirs][i], 3), name, size)
            for name, entry in models.items()
            for i, size in enumerate(entry["batch_sizes"])
            if ours in entry["latency_ms"] and theirs in entry["latency_ms"]
        ]
        if cells:
            found[f"{ours}_over_{theirs}"] = {"worst": sorted(cells, reverse=True)[:5]}
    return found


def markdown(document: dict[str, Any]) -> str:
    """The table of the README: ms of a call, what a user would pick instead beside what xpugraph picks."""
    shown = ("eager", "inductor", "reduce-overhead", "graph", "graph+inductor", "auto", "auto-exact", "exact-replay")
    sizes = next(iter(document["models"].values()))["batch_sizes"]
    lines = [f"| model | backend | batch {' | '.join(map(str, sizes))} |", "|---|---|" + "---|" * len(sizes)]
    for name, entry in document["models"].items():
        for backend in shown:
            if backend in entry["latency_ms"]:
                cells = [digits(value) if value else "failed" for value in entry["latency_ms"][backend]]
                lines.append(f"| {name} | {backend} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("out/gpu.json"))
    parser.add_argument("--models", default=",".join(model_names()))
    parser.add_argument("--batch-sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--backends", default="")
    parser.add_argument("--min-time", type=float, default=0.4)
    parser.add_argument("--facts", default="overhead,recording,hammer", help="none, or some of these")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu.py: torch sees no CUDA device; nothing to measure")
        return 0
    device = resolve_device("cuda")
    torch.set_grad_enabled(False)
    document = json.loads(options.out.read_text()) if options.out.exists() else {}
    document.setdefault("date", time.strftime("%Y-%m-%d"))
    sizes = sorted(map(int, options.batch_sizes.split(",")))
    for name in [name for name in options.models.split(",") if name]:
        known = factories(sizes)
        backends = options.backends.split(",") if options.backends else list(known)
        config = BenchConfig([name], sizes, backends, device, options.min_time)
        start = time.perf_counter()
        result = run_bench(config, _say, known)
        bench_report.print_tables(result, Console(width=160))
        entry = result.to_dict()
        entry["models"][name]["seconds"] = round(time.perf_counter() - start, 1)
        document = {**entry, **document, "models": {**document.get("models", {}), **entry["models"]}}
        write_json(document, options.out)
    facts = document.setdefault("facts", {})
    wanted = options.facts.split(",")
    if "overhead" in wanted:
        facts["call_above_bare_replay_us"] = overhead(device)
    if "recording" in wanted:
        facts["recording"] = {name: recording(name, device) for name in ("resnet50", "vit_b_16")}
    if "hammer" in wanted:
        facts["threads"] = hammer(device)
    facts["comparison"] = compare(document.get("models", {}))
    write_json(document, options.out)
    if document.get("models"):
        bench_report.plot(BenchResult.from_dict(document), options.out.with_suffix(".png"))
        options.out.with_suffix(".md").write_text(markdown(document))
    print(json.dumps(facts, indent=1))
    return 0


def _say(done: int, total: int, model: str, backend: str, batch_size: int | None) -> None:
    if batch_size is None:
        print(f"{time.strftime('%X')} {model}: building {backend}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
