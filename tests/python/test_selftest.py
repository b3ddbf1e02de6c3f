# SPDX-License-Identifier: MIT
"""``xpugraph selftest`` on the sycl device, and that it fails when something is wrong and tells no names."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from xpugraph import cli, cli_selftest, environment, selftest, selftest_checks
from xpugraph.errors import BuildError, MissingRuntimeError
from xpugraph.selftest import PROBE, Skipped, run_check, scrub


def _run(*options: str):
    return CliRunner().invoke(cli.main, ["selftest", "--device", "sycl", *options])


@pytest.fixture(autouse=True)
def _one_thread(device):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_it_passes_on_the_sycl_device_and_writes_a_report(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    monkeypatch.setenv("SYCL_CACHE_DIR", str(tmp_path / "kernels"))
    outcome = _run("--quick", "--models", "mlp", "--json", str(path))
    assert outcome.exit_code == 0, outcome.stdout
    assert "PASS: " in outcome.stdout and "FAIL" not in outcome.stdout
    report = json.loads(path.read_text())
    assert report["schema"] == 1 and report["result"] == "pass" and "running" not in report
    status = {check["name"]: check["status"] for check in report["checks"]}
    skipped = {"side stream", "side stream that is not joined", "attention in bfloat16 under autocast"}
    assert {name for name in status if status[name] == "skip"} == skipped
    assert {status[name] for name in status if name not in skipped} == {"pass"}
    assert {"node: kernel", "node: fill", "node: copy", "model mlp", "two threads", "memory after delete"} <= set(
        status
    )
    assert report["versions"]["torch"] == torch.__version__
    assert "engine" in report["system"]["capture_engines"][0] and report["system"]["recorded"]["command graph"] > 10
    assert any("libsycl" in name for name in report["system"]["loaded_libraries"])
    assert report["system"]["variables"]["SYCL_CACHE_DIR"] == "kernels"
    text = path.read_text()
    for private in (str(tmp_path), str(Path.home()) + "/", sys.prefix):
        assert private not in text


def test_a_wrong_graph_fails_with_the_difference(device, monkeypatch):
    right = selftest_checks.XPUGraphBackend.infer
    monkeypatch.setattr(
        selftest_checks.XPUGraphBackend, "infer", lambda self, x: right(self, x) + (0.1 if len(x) == 3 else 0)
    )
    check = run_check(
        "wrong",
        lambda: selftest_checks._graph_is_right(selftest_checks._mlp(), selftest_checks._rows(4), device, [1, 3]),
    )
    assert check.status == "fail" and "batch 3, replay 1, against eager on the device: differs by" in check.detail


def test_a_dropped_size_fails_the_check_of_many_sizes_with_advice(device, monkeypatch):
    dropped = {8: "CaptureError: the device cannot record a graph: UR_RESULT_ERROR_OUT_OF_RESOURCES"}
    monkeypatch.setattr(selftest_checks.XPUGraphBackend, "dropped_batch_sizes", dropped)
    check = run_check("many", lambda: selftest_checks._many_sizes(device, 8))
    assert check.status == "fail" and "1 sizes were dropped" in check.detail and "at 8: " in check.detail
    assert "XPUGRAPH_NATIVE_RECORDING=0" in check.advice


def test_a_crash_of_the_probe_is_a_failure_with_the_workaround(device, monkeypatch):
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    monkeypatch.setattr(selftest_checks, "_PROBE", f"print('submitted', flush=True); {crash}")
    check = run_check("probe", lambda: selftest_checks._probe(device))
    assert "crashed (signal SIGSEGV) after its first submission" in check.detail and check.advice is None
    monkeypatch.setattr(selftest_checks, "_PROBE", crash)
    check = run_check("probe", lambda: selftest_checks._probe(device))
    assert check.status == "fail" and "crashed (signal SIGSEGV) at its first submission" in check.detail
    assert "SYCL_UR_USE_LEVEL_ZERO_V2=0" in check.advice
    assert "Current thread" in check.detail and check.stops == "the probe crashed"  # faulthandler's
    monkeypatch.setattr(selftest_checks, "_PROBE", "raise RuntimeError('no queue')")
    assert "no queue" in run_check("probe", lambda: selftest_checks._probe(device)).detail


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGSEGV)", "time.sleep(60)"])
def test_after_a_crash_or_a_hang_of_the_probe_nothing_runs_in_this_process(ending, device, monkeypatch, tmp_path):
    words = "import os, signal, sys, time; print('of /home/somebody/secret/driver.so', file=sys.stderr, flush=True); "
    monkeypatch.setattr(selftest_checks, "_PROBE", words + ending)
    monkeypatch.setattr(selftest_checks, "_PROBE_SECONDS", 2)
    monkeypatch.setattr(selftest_checks, "_graph_is_right", lambda *_: pytest.fail("ran"))
    monkeypatch.setattr(environment, "_devices", lambda: pytest.fail("asked"))
    monkeypatch.setattr(environment, "_capture_engines", lambda: pytest.fail("asked"))
    path = tmp_path / "report.json"
    outcome = _run("--quick", "--json", str(path))
    assert outcome.exit_code == 1, outcome.output
    report = json.loads(path.read_text())
    status = {check["name"]: check["status"] for check in report["checks"]}
    assert report["result"] == "fail" and status.pop("build") == "pass" and status.pop(selftest.PROBE) == "fail"
    assert len(status) > 10 and set(status.values()) == {"skip"}
    assert {check["detail"] for check in report["checks"][2:]} == {"the probe crashed"}
    assert "of driver.so" in report["checks"][1]["detail"] and "secret" not in path.read_text()
    assert "engine" in report["system"]["capture_engines"][0]  # told by a process of its own


def test_devices_are_asked_after_the_probe(device, monkeypatch):
    order = []
    collect = environment.collect
    monkeypatch.setattr(environment, "collect", lambda topics: order.append(list(topics)) or collect(topics))
    monkeypatch.setattr(environment, "device_name", lambda kind: order.append("name") or kind)
    names = ["build", selftest.PROBE, "third"]
    checks = [(name, lambda name=name: order.append(name)) for name in names]
    monkeypatch.setattr(selftest_checks, "checks", lambda config: checks)
    result = selftest.run_selftest(selftest.SelftestConfig(device))
    first, build, probe, name, later, third = order
    assert (build, probe, name, third) == ("build", selftest.PROBE, "name", "third")
    assert not {"devices", "capture_engines", "runtimes", "sycl_build"} & set(first)
    assert {"devices", "capture_engines"} <= set(later) and result.ok


def test_a_child_that_tells_nothing_is_named(monkeypatch):
    monkeypatch.setattr(selftest.sys, "executable", "/bin/false")
    ended = "not available: its process ended with 1"
    assert selftest.collect_in_child(["devices", "warnings"]) == {"devices": ended, "warnings": ended}


def test_one_topic_that_crashes_takes_no_other_with_it(monkeypatch, tmp_path):
    crash = "import os, sys\nif 'devices' in sys.orig_argv: os.abort()\n"
    (tmp_path / "sitecustomize.py").write_text(crash)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    found = selftest.collect_in_child(["devices", "loaded_libraries"])
    assert found["devices"] == f"not available: its process ended with {-signal.SIGABRT}"
    assert any("libsycl" in library for library in found["loaded_libraries"])


def test_a_run_that_ends_halfway_leaves_what_it_found(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    seen = []

    def ends():
        seen.append(json.loads(path.read_text()))
        raise KeyboardInterrupt

    monkeypatch.setattr(selftest_checks, "checks", lambda config: [("good", lambda: "fine"), ("bad", ends)])
    assert _run("--quick", "--json", str(path)).exit_code != 0
    report = json.loads(path.read_text())
    assert report == seen[0] and report["result"] == "incomplete" and report["running"] == "bad"
    assert [check["name"] for check in report["checks"]] == ["good"]


def test_a_crash_while_the_device_is_chosen_leaves_a_report(tmp_path, monkeypatch):
    def ends(device):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_selftest, "_chosen", ends)
    path = tmp_path / "report.json"
    assert _run("--quick", "--json", str(path)).exit_code != 0
    report = json.loads(path.read_text())
    assert (report["result"], report["running"], report["checks"]) == ("incomplete", "choosing the device", [])
    assert report["versions"]["torch"] == torch.__version__


def test_an_xpu_device_is_tested_even_by_a_build_without_it(monkeypatch):
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    assert cli_selftest._chosen("auto") == (torch.device("xpu"), None)
    assert cli_selftest._chosen("sycl")[0].type == "sycl"
    check = run_check("build", lambda: selftest_checks._build(torch.device("xpu")))
    assert check.status == "fail" and "records nothing on it" in check.detail and "--no-build-isolation" in check.detail


def _no_extension():
    raise MissingRuntimeError("xpugraph's extension does not load (libgone.so); rebuild it")


@pytest.mark.parametrize(("name", "seen"), [("xpu", "xpu"), ("auto", "xpu"), ("sycl", None), ("auto", None)])
def test_an_extension_that_does_not_load_is_the_finding_of_the_check_of_the_build(name, seen, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.xpu, "is_available", lambda: seen == "xpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("xpugraph.enable_sycl_device", _no_extension)
    monkeypatch.setattr(selftest_checks._native, "load", _no_extension)
    path = tmp_path / "report.json"
    outcome = CliRunner().invoke(cli.main, ["selftest", "--device", name, "--quick", "--json", str(path)])
    assert outcome.exit_code == 1 and isinstance(outcome.exception, SystemExit), outcome.output
    report = json.loads(path.read_text())
    status = {check["name"]: check["status"] for check in report["checks"]}
    assert [check for check in status if status[check] == "fail"] == ["build"] and len(status) > 10
    build = next(check for check in report["checks"] if check["name"] == "build")
    assert "libgone.so" in build["detail"] and report["result"] == "fail"


def test_a_torch_for_xpu_that_sees_no_gpu_fails_although_all_else_passes(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.version, "xpu", "20260000", raising=False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    checks = selftest_checks.checks

    def first(config):
        return [check for check in checks(config) if check[0] in ("torch sees the GPU", "build")]

    monkeypatch.setattr(selftest_checks, "checks", first)
    monkeypatch.setattr(environment, "_PCI", tmp_path)
    options = ["selftest", "--quick", "--json", str(tmp_path / "report.json")]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    outcome = CliRunner().invoke(cli.main, options)
    assert outcome.exit_code == 1 and "fail torch sees the GPU" in outcome.stdout and "pass build" in outcome.stdout
    assert "No Intel GPU is on this machine" in outcome.stdout
    assert CliRunner().invoke(cli.main, [*options, "--device", "sycl"]).exit_code == 0
    monkeypatch.setattr(torch.version, "xpu", None)
    assert CliRunner().invoke(cli.main, options).exit_code == 0


def test_a_constant_of_the_host_is_right_or_refused_and_never_wrong(device, monkeypatch):
    check = run_check("constant", lambda: selftest_checks._host_constant(device))
    assert check.status == "pass" and "nodes at batch 4" in check.detail
    right = selftest_checks.XPUGraphBackend.infer
    monkeypatch.setattr(selftest_checks.XPUGraphBackend, "infer", lambda self, x: right(self, x) + 0.1)
    assert "differs by" in run_check("constant", lambda: selftest_checks._host_constant(device)).detail
    monkeypatch.setattr(selftest_checks, "_graph", _refuses)
    check = run_check("constant", lambda: selftest_checks._host_constant(device))
    assert (check.status, check.detail) == ("pass", "refused: unjoined work")


def _refuses(*_, **__):
    raise BuildError("unjoined work")


@pytest.mark.parametrize(
    ("check", "status", "words"),
    [("_unjoined", "skip", "refuses to record several streams"), ("_waiting", "pass", "what was raised: ")],
)
def test_what_may_break_a_driver_runs_in_a_process_of_its_own(device, check, status, words):
    done = run_check(check, lambda: selftest_checks._apart(check, device))
    assert done.status == status and words in done.detail, done.detail


def test_a_hang_of_a_process_of_its_own_is_a_failure_with_advice(device, monkeypatch):
    monkeypatch.setattr(selftest_checks, "_APART", "import time; time.sleep(60)")
    monkeypatch.setattr(selftest_checks, "_PROBE_SECONDS", 1)
    done = run_check("waiting", lambda: selftest_checks._apart("_waiting", device))
    assert done.status == "fail" and done.stops is None and "the process hung for 1 s" in done.detail
    assert "XPUGRAPH_NATIVE_RECORDING=0" in done.advice


def test_a_stream_that_is_not_joined_leaves_a_device_that_records(device, monkeypatch):
    right, calls = selftest_checks._graph_is_right, []

    def first_refused(*arguments):
        calls.append(arguments)
        return _refuses() if len(calls) == 1 else right(*arguments)

    monkeypatch.setattr(selftest_checks, "_graph_is_right", first_refused)
    check = run_check("unjoined", lambda: selftest_checks._unjoined(device))
    assert check.status == "pass" and check.detail.startswith("refused (unjoined work); ") and len(calls) == 2
    monkeypatch.setattr(selftest_checks, "_graph_is_right", _refuses)
    assert run_check("unjoined", lambda: selftest_checks._unjoined(device)).status == "fail"


def test_attention_under_autocast_is_compared_where_the_device_casts(device, monkeypatch):
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: matmul(a, b).bfloat16())
    check = run_check("autocast", lambda: selftest_checks._autocast_attention(device))
    assert check.status == "pass" and "at batch 4" in check.detail, check.detail
    right = selftest_checks.XPUGraphBackend.infer
    monkeypatch.setattr(selftest_checks.XPUGraphBackend, "infer", lambda self, x: right(self, x) + 1)
    assert "differs by" in run_check("autocast", lambda: selftest_checks._autocast_attention(device)).detail


@pytest.mark.slow
def test_one_graph_of_inductors_kernels_but_not_when_quick(device, monkeypatch):
    def names(quick):
        return [name for name, _ in selftest_checks.checks(selftest.SelftestConfig(device, quick=quick))]

    assert set(names(False)) - set(names(True)) == {"graph of Inductor's kernels"}
    check = run_check("inductor", lambda: selftest_checks._inductor(device))
    assert check.status == "pass" and "nodes at batch 4" in check.detail, check.detail
    monkeypatch.setattr(selftest_checks, "_graph", lambda *_, **config: config["compile_with_inductor"] and _refuses())
    assert "unjoined work" in run_check("inductor", lambda: selftest_checks._inductor(device)).detail


def test_a_refusal_that_does_not_come_is_a_failure(device, monkeypatch):
    monkeypatch.setattr(selftest_checks, "_graph", lambda *_, **__: None)
    check = run_check("refusals", lambda: selftest_checks._refusals(device))
    assert check.status == "fail" and "should be refused (random)" in check.detail


def test_failures_give_exit_code_1_and_say_what_to_report(tmp_path, monkeypatch):
    def broken():
        raise RuntimeError("UR_RESULT_ERROR_DEVICE_LOST in /home/somebody/secret/driver.so")

    def some_checks(config):
        yield "good", lambda: "fine"
        yield "odd", broken
        yield "other", lambda: (_ for _ in ()).throw(Skipped("not here"))

    monkeypatch.setattr(selftest_checks, "checks", some_checks)
    path = tmp_path / "report.json"
    outcome = _run("--quick", "--json", str(path))
    assert outcome.exit_code == 1
    assert "FAIL: 1 of 3 checks" in outcome.stdout and "attach report.json" in outcome.stdout
    assert "in the issue tracker of the place you got xpugraph from" in outcome.stdout
    assert "known: the device was reset" in outcome.stdout
    report = json.loads(path.read_text())
    assert report["result"] == "fail" and [check["status"] for check in report["checks"]] == ["pass", "fail", "skip"]
    assert "secret" not in path.read_text() and "driver.so" in report["checks"][1]["detail"]


@pytest.mark.parametrize(
    "options", [["--models", "nosuch"], ["--device", "nosuch"], ["--device", "xpu:one"], ["--json", "/"]]
)
def test_bad_options_are_refused_before_anything_runs(options, monkeypatch):
    monkeypatch.setattr(selftest, "run_selftest", lambda *_: pytest.fail("ran"))
    assert _run(*options).exit_code == 2


def test_the_libsycl_of_a_toolkit_fails_the_check_of_the_build(device, monkeypatch):
    monkeypatch.setattr(selftest_checks.libsycl, "warnings", lambda: ["another libsycl: unset LD_LIBRARY_PATH"])
    check = run_check("build", lambda: selftest_checks._build(device))
    assert check.status == "fail" and "unset LD_LIBRARY_PATH" in check.detail and check.stops is None


def test_the_second_gpu_is_tested_where_it_is_named(monkeypatch, tmp_path):
    tested = []
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
    monkeypatch.setattr(torch.xpu, "set_device", lambda index: tested.append(("current", index)))
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda index=None: f"card {index}")
    run = SimpleNamespace(returncode=0, stdout="1 nodes")
    monkeypatch.setattr(selftest_checks.subprocess, "run", lambda command, **_: tested.append(command[-1]) or run)
    checks = selftest_checks.checks
    monkeypatch.setattr(selftest_checks, "checks", lambda c: [check for check in checks(c) if check[0] == PROBE])
    path = tmp_path / "report.json"
    options = ["selftest", "--quick", "--json", str(path), "--device"]
    assert CliRunner().invoke(cli.main, [*options, "xpu:1"]).exit_code == 0
    assert tested == [("current", 1), "xpu:1"] and json.loads(path.read_text())["device"] == "xpu:1 (card 1)"
    outcome = CliRunner().invoke(cli.main, [*options, "xpu:2"])
    assert outcome.exit_code == 2 and "there is no xpu:2: here are xpu:0, xpu:1" in " ".join(outcome.stderr.split())


def test_scrub_leaves_no_folders_and_no_names(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "ada.lovelace")
    monkeypatch.setattr(socket, "gethostname", lambda: "analytical-engine")
    found = scrub({"a": ["/home/ada.lovelace/.venv/lib/libsycl.so.9 of ada.lovelace at analytical-engine", 3, None]})
    assert found == {"a": ["libsycl.so.9 of USER at HOST", 3, None]}
    assert scrub("/home/a/lib/x.so:/home/a/lib/y.so file:///home/a/z.so") == "x.so:y.so z.so"
    assert scrub("see https://example.org/a/b and n/a, 1/2") == "see https://example.org/a/b and n/a, 1/2"
