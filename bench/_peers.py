# SPDX-License-Identifier: MIT
"""What a user of a CUDA GPU would pick instead, as backends of `xpugraph bench`: each builds, infers and deactivates.

- reduce-overhead: ``torch.compile(mode="reduce-overhead")``, which records every batch size exactly. Its results live
  in its graphs until the next call, so that each is cloned, as ours are copied.
- python-graph, python-graph+inductor: the padded-graph method written in Python, as torch's documentation of CUDA
  graphs leads one to write it.
- exact-replay: the floor. A replay of a graph of exactly the batch size on whatever its input holds: nothing is copied
  in or out, so that it serves nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xpugraph.bench import BenchConfig

_WARM_UPS = 3


class ReduceOverhead:
    """torch's own graphs over Inductor's kernels."""

    def __init__(self, config: BenchConfig) -> None:
        self.config = config

    def build(self, module: torch.nn.Module, samples: Sequence[torch.Tensor]) -> None:
        self.compiled = torch.compile(module, mode="reduce-overhead")
        for size in self.config.batch_sizes:
            for _ in range(_WARM_UPS + 1):  # compiled, warmed up, recorded, replayed
                self.infer(samples[0][:size].clone())

    def infer(self, x: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return self.compiled(x).clone()

    def deactivate(self) -> None:
        del self.compiled
        torch._dynamo.reset()


class PythonGraph:
    """Pad, replay, slice."""

    inductor = False

    def __init__(self, config: BenchConfig) -> None:
        largest = min(max(config.batch_sizes), config.max_recorded_batch_size)
        grid = {1, 2, 4, *range(8, largest + 1, 8), largest}
        self.grid = sorted(size for size in grid if size <= largest)

    def build(self, module: torch.nn.Module, samples: Sequence[torch.Tensor]) -> None:
        run = torch.compile(module, dynamic=None) if self.inductor else module
        self.input = torch.zeros_like(samples[0][: self.grid[-1]])
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.outputs: dict[int, torch.Tensor] = {}
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        for size in reversed(self.grid):
            x = self.input[:size]
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UPS):
                    run(x)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                self.outputs[size] = run(x)
            self.graphs[size] = graph

    def infer(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        size = next(size for size in self.grid if size >= rows)
        self.input[:rows].copy_(x)
        if size > rows:
            self.input[rows:size].zero_()
        self.graphs[size].replay()
        return self.outputs[size][:rows].clone()

    def deactivate(self) -> None:
        del self.graphs, self.outputs, self.input
        if self.inductor:
            torch._dynamo.reset()


class PythonGraphInductor(PythonGraph):
    """The same over Inductor's kernels."""

    inductor = True


class ExactReplay(PythonGraph):
    """One graph for each measured batch size, replayed bare; returns what it computed of the rows it was built with."""

    def __init__(self, config: BenchConfig) -> None:
        self.grid = sorted(config.batch_sizes)

    def build(self, module: torch.nn.Module, samples: Sequence[torch.Tensor]) -> None:
        super().build(module, samples)
        self.input.copy_(samples[0][: self.grid[-1]])  # the batch of the measurement is its first rows

    def infer(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        self.graphs[rows].replay()
        return self.outputs[rows]


def peers() -> dict[str, Any]:
    """What makes each, by name."""
    return {
        "reduce-overhead": ReduceOverhead,
        "python-graph": PythonGraph,
        "python-graph+inductor": PythonGraphInductor,
        "exact-replay": ExactReplay,
    }
