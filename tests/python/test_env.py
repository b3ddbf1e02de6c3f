# SPDX-License-Identifier: MIT
"""What ``xpugraph env`` tells, and that it tells it whatever is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import torch
from typer.testing import CliRunner

from xpugraph import cli, environment, libsycl


def test_env_without_the_native_module_still_tells_the_rest(monkeypatch):
    monkeypatch.setitem(sys.modules, "xpugraph._native", None)
    monkeypatch.delattr("xpugraph._native", raising=False)
    outcome = CliRunner().invoke(cli.main, ["env"])
    assert outcome.exit_code == 0 and f"version: {torch.__version__}" in outcome.stdout
    assert "runtimes: not available: " in outcome.stdout and "Traceback" not in outcome.output
    findings = json.loads(CliRunner().invoke(cli.main, ["env", "--json"]).stdout)
    assert findings["torch"]["version"] == torch.__version__
    assert set(findings["devices"]) == {"xpu", "cuda", "sycl"} and findings["runtimes"].startswith("not available")


def test_env_survives_every_probe_failing(monkeypatch):
    def broken(*_):
        raise OSError("gone")

    for probe in ("_torch", "_sycl_packages", "_sycl_libraries", "_runtimes", "_devices", "_loaded_libraries"):
        monkeypatch.setattr(environment, probe, broken)
    outcome = CliRunner().invoke(cli.main, ["env"])
    assert outcome.exit_code == 0 and outcome.stdout.count("not available: OSError: gone") == 6


def test_env_tells_of_a_libsycl_of_another_major(monkeypatch):
    monkeypatch.setattr(libsycl, "needed", lambda: 7)
    build = json.loads(CliRunner().invoke(cli.main, ["env", "--json"]).stdout)["sycl_build"]
    assert build["needs"] == "libsycl.so.7" and "built for libsycl.so.7" in build["conflict"]
    assert "built for libsycl.so.7" in build["headers"]


def test_env_warns_of_the_libsycl_of_a_toolkit(tmp_path):
    """A copy of the library in another folder that LD_LIBRARY_PATH names, loaded by name as a torch for XPU does."""
    own = libsycl.installed()[libsycl.needed()]
    shutil.copy(own, tmp_path / f"libsycl.so.{libsycl.needed()}")
    code = f"import ctypes; ctypes.CDLL('libsycl.so.{libsycl.needed()}'); from xpugraph import cli; cli.main(['env'])"
    given = {**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{own.parent}"}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True)
    (warning,) = [line for line in done.stdout.splitlines() if "than this environment's" in line]
    assert f"another libsycl than this environment's: {tmp_path}" in warning, done.stderr
    assert "unset LD_LIBRARY_PATH" in warning


def test_env_warns_of_what_another_folder_puts_below_libsycl(tmp_path):
    own = libsycl.installed()[libsycl.needed()]
    shutil.copy(own.parent / "libur_loader.so.0", tmp_path)
    given = {**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{own.parent}"}
    code = "from xpugraph import cli; cli.main(['env'])"
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True)
    assert f"another libur_loader than this environment's: {tmp_path}" in done.stdout, done.stdout + done.stderr


def test_env_lines_indent_what_is_nested():
    findings = {"a": 1, "b": {"c": None, "d": ["x"], "e": []}, "f": [{"name": "gpu", "ok": True}]}
    assert list(environment.lines(findings)) == [
        "a: 1", "b:", "  c: none", "  d:", "    - x", "  e: none", "f:", "  - name gpu, ok yes",
    ]  # fmt: skip


def test_env_tells_the_sycl_device():
    findings = json.loads(CliRunner().invoke(cli.main, ["env", "--json"]).stdout)
    assert "sycl" in findings["runtimes"] and "not available" not in json.dumps(findings["devices"]["sycl"])
    assert any("libsycl" in path for path in findings["loaded_libraries"])


def test_env_tells_the_variables_that_matter(monkeypatch):
    wanted = {
        "SYCL_A": "1", "UR_B": "2", "ONEAPI_C": "3", "ZE_D": "4", "XPUGRAPH_E": "5", "PYTORCH_ALLOC_CONF": "6",
        "PYTORCH_XPU_ALLOC_CONF_X": "7",
    }  # fmt: skip
    for name, value in {**wanted, "SECRET_SYCL": "no", "HOUR_B": "no", "TOKEN": "no"}.items():
        monkeypatch.setenv(name, value)
    found = environment.collect(["variables"])["variables"]
    assert wanted.items() <= found.items() and "no" not in found.values()


def test_versions_and_packages_name_triton_under_either_name(monkeypatch):
    monkeypatch.setattr(environment.metadata, "version", lambda name: f"{name} 1")
    for found in (environment.versions(), environment.collect(["sycl_packages"])["sycl_packages"]):
        assert {"triton-xpu", "pytorch-triton-xpu"} <= set(found)


def test_env_tells_what_an_xpu_device_is(monkeypatch):
    properties = SimpleNamespace(name="gpu", platform_name="Level-Zero", device_id=0x56A0, has_fp64=False, uuid="u")
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 1)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: properties)
    expected = {"name": "gpu", "platform_name": "Level-Zero", "device_id": 0x56A0, "has_fp64": False}
    assert environment.collect(["devices"])["devices"]["xpu"] == [expected]


def test_a_device_is_named_by_its_index(monkeypatch):
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda index=None: f"card {0 if index is None else index}")
    assert environment.device_name("xpu") == "xpu (card 0)" and environment.device_name("xpu:1") == "xpu:1 (card 1)"


def test_env_names_build_and_engine():
    findings = json.loads(CliRunner().invoke(cli.main, ["env", "--json"]).stdout)
    build = findings["sycl_build"]
    assert build["needs"] == f"libsycl.so.{build['headers']['libsycl major']}" and build["conflict"] is None
    cpu = next(found for found in findings["capture_engines"] if found["backend"] == "opencl")
    assert cpu["engine"].startswith("command graph (no native recording: ") and cpu["limited graph"] == "yes"
    assert findings["known_faults"] == [] and findings["warnings"] == []


def test_why_torch_sees_no_gpu_is_told_by_what_is_there(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.version, "xpu", "20260000", raising=False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    pci, dri = tmp_path / "pci", tmp_path / "dri"
    monkeypatch.setattr(environment, "_DRI", dri)
    monkeypatch.setattr(environment, "_PCI", pci)
    assert environment.collect(["gpus"])["gpus"]["cards"] == "none"

    def device(name, vendor, kind="0x030000", driver=None, node=None):
        (pci / name / "drm" / (node or "card0")).mkdir(parents=True)
        for fact, value in (("vendor", vendor), ("device", "0xe20b"), ("class", kind)):
            (pci / name / fact).write_text(value + "\n")
        if driver:
            (tmp_path / driver).mkdir(exist_ok=True)
            (pci / name / "driver").symlink_to(tmp_path / driver)

    device("00:01", "0x8086", kind="0x020000", driver="e1000e")
    device("00:02", "0x1002", driver="amdgpu", node="renderD128")
    assert "No Intel GPU" in environment.unseen_gpu()
    device("00:03", "0x8086", node="renderD129")
    assert "has no driver for the card 0xe20b" in environment.unseen_gpu()
    (tmp_path / "xe").mkdir()
    (pci / "00:03" / "driver").symlink_to(tmp_path / "xe")
    assert "give it to this container" in environment.unseen_gpu()
    dri.mkdir()
    (dri / "renderD129").touch()
    monkeypatch.setattr(environment.os, "access", lambda node, mode: False)
    assert "may not open" in environment.unseen_gpu() and "render" in environment.unseen_gpu()
    monkeypatch.setattr(environment.os, "access", lambda node, mode: True)
    assert "libze-intel-gpu1" in environment.unseen_gpu() and "ZE_AFFINITY_MASK" in environment.unseen_gpu()
    amd, arc = environment.collect(["gpus"])["gpus"]["cards"]
    assert amd["kernel_driver"] == "amdgpu" and amd["node"] == "none"
    assert arc == {"vendor": "0x8086", "device": "0xe20b", "kernel_driver": "xe", "node": "renderD129", "usable": True}
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    assert environment.unseen_gpu() is None
