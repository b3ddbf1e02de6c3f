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

XPU = {"2.12.0": "20250302", "2.13.0": "20260000", "2.14.1": "20260100", "2.15.0": "20260100"}
ROOT = Path(__file__).parents[2]


def test_known_faults_are_found_by_the_words_of_the_message():
    for message, word in (
        ("sycl: Native API failed: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "few graphs"),
        ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "out of memory"),
        ("ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "out of memory"),
        ("wait method cannot be used for an event associated with a command graph.", ".item()"),
        ("Graph nodes cannot depend on events from outside the graph.", "SDPBackend.MATH"),
        ("async_malloc is not supported in native recording mode.", "XPUGRAPH_NATIVE_RECORDING=0"),
        ("nothing was recorded: no work was submitted to the capture stream", "another queue"),
        ("Attempt to increase offset for a XPU generator not in capture mode.", "random numbers"),
    ):
        assert word in known_faults.advice(message)
    assert "not memory" not in known_faults.advice("UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY")
    assert "()" not in known_faults.advice("UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY")
    assert known_faults.advice("ValueError: bad shape") is None
    assert known_faults.explain(ValueError("bad shape")) == "ValueError: bad shape"


def test_what_concerns_an_installed_torch_for_xpu():
    assert known_faults.concerning("2.13.0+cpu", None) == []
    assert "LEVEL_ZERO_V2" in known_faults.concerning("2.14.1+xpu", "20260100")[0]
    notes = {release: "\n".join(known_faults.concerning(f"{release}+xpu", xpu)) for release, xpu in XPU.items()}
    assert [release for release in XPU if "187277" in notes[release]] == ["2.14.1"]
    assert "unknown whether it still crashes" in notes["2.14.1"]
    assert [release for release in XPU if "#5069" in notes[release]] == ["2.13.0", "2.14.1"]
    assert "SDPBackend.MATH" in notes["2.14.1"] and "not known for 2.14" in notes["2.14.1"]
    assert "cannot be recorded" in notes["2.13.0"] and "2.15.0.dev20260822" in notes["2.13.0"]
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
    # Put together from parts, or the compiler's.
    others = {"crashed (signal SIGSEGV)", "sees no xpu device", "there is no xpu:", "fatal error: level_zero/ze_api.h"}
    missing = [heading for heading in headings if heading not in text and heading not in others]
    assert not missing, missing


def test_the_page_on_installing_breaks_no_torch_for_xpu():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    steps = page[: page.index("## Other builds")]
    assert "intel-sycl-rt==" not in steps and "'torch>=2.11,<2.15'" in steps and "python3-venv" in steps
    commands = "\n".join(re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    assert "setvars" not in commands and "pip install -v --no-build-isolation ." in commands
    assert commands.index("is_available()") < commands.index("get_device_name()")
    assert "download.pytorch.org/whl/xpu" in commands and steps.index("setvars.sh") < steps.index(
        "download.pytorch.org"
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    warning = readme.index("do not install `intel-sycl-rt` yourself")
    assert warning < readme.index("'intel-sycl-rt==2026.1.2'")
