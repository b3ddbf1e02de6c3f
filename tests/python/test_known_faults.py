# SPDX-License-Identifier: MIT
"""Known faults of drivers: what is said of them, and that a size which meets one is dropped and the others serve."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import torch
from conftest import Fn

import xpugraph as xg
from xpugraph import known_faults, memory

ROOT = Path(__file__).parents[2]


def test_known_faults_are_found_by_the_words_of_the_message():
    for message, word in (
        ("sycl: Native API failed: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "few graphs"),
        ("wait method cannot be used for an event associated with a command graph.", ".item()"),
        ("Graph nodes cannot depend on events from outside the graph.", "SDPBackend.MATH"),
        ("nothing was recorded: no work was submitted to the capture stream", "another queue"),
        ("Attempt to increase offset for a XPU generator not in capture mode.", "random numbers"),
    ):
        assert word in known_faults.advice(message)
    assert known_faults.advice("ValueError: bad shape") is None
    assert known_faults.explain(ValueError("bad shape")) == "ValueError: bad shape"


def test_what_concerns_an_installed_torch_for_xpu():
    assert known_faults.concerning("2.13.0+cpu", None) == []
    assert "LEVEL_ZERO_V2" in known_faults.concerning("2.14.1+xpu", "20260100")[0]
    assert any("187277" in note for note in known_faults.concerning("2.13.0+xpu", "20260000"))
    assert any("3142" in note for note in known_faults.concerning("2.12.0+xpu", "20250302"))


def test_every_known_fault_is_in_the_troubleshooting_page():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    for fault in (*known_faults.FAULTS, known_faults.CRASH):
        for source in fault.source.split(", "):
            assert source in page, source


def test_from_the_fifth_graph_on_the_driver_refuses_and_the_first_four_serve(device):
    captures = 0

    def forward(x):
        nonlocal captures
        if torch.sycl.is_current_stream_capturing():
            captures += 1
            if captures >= 5:
                raise RuntimeError("Native API failed. Native API returns: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)")
        return x * 2

    backend = xg.XPUGraphBackend(xg.XPUGraphBackendConfig(batch_sizes=[1, 2, 4, 8, 16, 24, 32]))
    backend.build(Fn(forward).eval(), samples=[torch.rand(32, 3).to(device)])
    assert backend.recorded_batch_sizes == [8, 16, 24, 32] and sorted(backend.dropped_batch_sizes) == [1, 2, 4]
    reason = backend.dropped_batch_sizes[4]
    assert "UR_RESULT_ERROR_OUT_OF_RESOURCES" in reason and "known: " in reason and "kernels#509" in reason
    for batch in (1, 3, 8, 32, 40):
        x = torch.rand(batch, 3)
        torch.testing.assert_close(backend.infer(x.to(device)).cpu(), x * 2)
    assert backend.counters()["eager_calls"] == 0


def test_no_cache_is_emptied_on_xpu(monkeypatch):
    class Module:
        @staticmethod
        def empty_cache():
            raise AssertionError("emptied")

    monkeypatch.setattr(memory, "_module", lambda device: Module)
    memory.release_cache(torch.device("xpu"))


def _device_wide(tree):
    """Calls of empty_cache(), and of synchronize() on what is no stream (a stream is the result of a call)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            whole = node.func.attr == "synchronize" and not isinstance(node.func.value, ast.Call)
            if whole or node.func.attr == "empty_cache":
                yield ast.unparse(node)


def test_no_source_waits_for_a_device_or_empties_a_cache():
    allowed = {
        "_torch_sycl.py": ["torch.accelerator.synchronize()", "_core().empty_cache()"],  # torch.sycl's own functions
        "memory.py": ["module.empty_cache()"],  # release_cache, tested above
    }
    for path in sorted((ROOT / "python" / "xpugraph").rglob("*.py")):
        calls = list(_device_wide(ast.parse(path.read_text(encoding="utf-8"))))
        assert calls == allowed.get(path.name, []), path
    forbidden = re.compile(
        r"llocator::emptyCache\(|\b(?:syncStreamsOnDevice|device_synchronize|cudaDeviceSynchronize)\("
    )
    for path in sorted((ROOT / "csrc").rglob("*.*")):
        assert not forbidden.search(path.read_text(encoding="utf-8")), path


def test_every_heading_of_the_troubleshooting_page_is_a_message_of_this_version():
    """Adjacent literals are joined, as the compilers do."""
    sources = [
        *(ROOT / "python" / "xpugraph").rglob("*.py"),
        *(ROOT / "csrc").rglob("*.*"),
        *(ROOT / "cmake").iterdir(),
    ]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    text = re.sub(r'"\s*\n\s*[fr]?"', "", text)
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### `(.*)`$", page, re.MULTILINE)
    assert len(headings) > 20
    others = {"crashed (signal SIGSEGV)", "sees no xpu device"}  # put together from parts
    missing = [heading for heading in headings if heading not in text and heading not in others]
    assert not missing, missing
