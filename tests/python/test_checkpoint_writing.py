# SPDX-License-Identifier: MIT
"""Where a checkpoint is written, what a kill leaves, and a look at it on a machine without the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_checkpoint import eager_on_cpu, tuned_by_hand
from test_checkpoint_files import X, net, right_or_refused, write_folder

import xpugraph as xg
from xpugraph.archive import MANIFEST, MEMBERS

pytestmark = pytest.mark.filterwarnings("error::xpugraph.CheckpointWarning")

# ---- where it is written --------------------------------------------------------------------------------------------


def test_paths_of_all_kinds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tuned = eager_on_cpu(net(1), X)
    for path, folder in (("a.zip", None), (Path("new/er/b.zip"), False), ("new/c", True), (str(tmp_path / "d"), True)):
        result = xg.save(tuned, path, folder)
        assert result == Path(path) and result.is_dir() == bool(folder)
        assert right_or_refused(path) and right_or_refused(Path(path).absolute())
    other = eager_on_cpu(net(3), X)
    for path in ("a.zip", "new/c"):  # what is there decides
        xg.save(other, path)
        assert Path(path).is_dir() == (path == "new/c")
        assert torch.equal(xg.load(net(2), path)(X), net(3)(X))
    Path("empty").mkdir()
    assert xg.save(tuned, "empty").is_dir() and right_or_refused("empty")
    names = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.name not in MEMBERS)
    assert names == ["a.zip", "d", "empty", "new", "new/c", "new/er", "new/er/b.zip"]


def test_link_stays_a_link_and_its_target_is_replaced(tmp_path):
    tuned = eager_on_cpu(net(3), X)
    for name, folder in (("a.zip", False), ("a", True)):
        xg.save(tuned, tmp_path / name, folder)
        (tmp_path / f"link-{name}").symlink_to(name)
        xg.save(eager_on_cpu(net(1), X), tmp_path / f"link-{name}")
        assert (tmp_path / f"link-{name}").is_symlink() and right_or_refused(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 4


def test_other_things_are_not_replaced(tmp_path):
    tuned = eager_on_cpu(net(1), X)
    folder = write_folder(tmp_path / "site", {MANIFEST: b"a site's own", "index.html": b"x"})
    alone = write_folder(tmp_path / "app", {MANIFEST: b"an app's own"})
    file = tmp_path / "file"
    file.write_bytes(b"x")
    os.mkfifo(tmp_path / "fifo")
    for path, as_folder, match in (
        (folder, None, "other things in it, such as index.html"),
        (folder, False, "is a folder; give folder=True"),
        (alone, True, "no checkpoint's folder: it lacks sha256sums.txt"),
        (file, True, "is a file; a folder cannot take its place"),
        (tmp_path / "fifo", None, "is no plain file"),
    ):
        with pytest.raises(xg.CheckpointError, match=match):
            xg.save(tuned, path, as_folder)
    assert (folder / "index.html").read_bytes() == b"x" and (alone / MANIFEST).read_bytes() == b"an app's own"
    assert file.read_bytes() == b"x" and len(list(tmp_path.iterdir())) == 4
    for path in ("/proc/xpugraph/a.zip", "/dev/null/a.zip", "/proc/a.zip"):
        with pytest.raises(OSError):
            xg.save(tuned, path)


# ---- kills ----------------------------------------------------------------------------------------------------------

KILLS = '''
import os, random, resource, shutil, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
import test_checkpoint_files as t
import xpugraph as xg
from xpugraph import archive

old, new = (t.eager_on_cpu(t.net(seed), t.X) for seed in (1, 3))
results = {seed: t.net(seed)(t.X) for seed in (1, 3)}
CALLS = {"write", "fsync", "replace", "chmod", "close", "mkdir", "unlink", "rmdir", "_exchange"}

def holds():
    """The seed whose weights a load finds; it must find some."""
    y = xg.load(t.net(2), path)(t.X)
    return next(seed for seed, result in results.items() if torch.equal(y, result))

def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    return child

def ends(work):
    return os.waitpid(in_child(work), 0)[1]

def save(tuned):
    xg.save(tuned, path, folder)

def killed_at(n):
    """Ends the process before or after its n-th call into the system while files are written."""
    count = 0
    def look(frame, event, argument):
        nonlocal count
        name = argument.__name__ if event.startswith("c_") else frame.f_code.co_name
        count += name in CALLS
        if count == n:
            os._exit(99)
    writer = "write_folder" if folder else "write_zip"
    write = getattr(archive, writer)
    def watched(*arguments):
        sys.setprofile(look)
        write(*arguments)
        sys.setprofile(None)
    setattr(xg.checkpoint, writer, watched)
    save(new)

def limited_to(size, deadly):
    """Ends the process, or fails, at a byte of a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if deadly else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        save(new)
    except OSError:
        os._exit(7)

def for_ever():
    while True:
        save(new)
        save(old)

def litter():
    return [name for name in os.listdir(place) if name != "net"]

def clean():
    for name in litter():
        (shutil.rmtree if folder else os.remove)(place / name)

for kind in ("zip", "folder"):
    place, folder = Path(sys.argv[2]) / kind, kind == "folder"
    place.mkdir()
    path = place / "net"
    found, status = [], None
    while status != 0:
        save(old)
        status = ends(lambda: killed_at(len(found) + 1))
        assert status in (0, 99 << 8), (found, status)
        found.append(holds())
        assert all(name.startswith(".net.") for name in litter()), litter()
    assert found == sorted(found) and found[0] == 1 and found[-1] == 3 and len(found) > 20, found

    save(old)
    largest = max(file.stat().st_size for file in (path.iterdir() if folder else [path]))
    for size in sorted({*range(0, largest, 173), largest - 1}):
        clean()
        assert ends(lambda: limited_to(size, deadly=False)) == 7 << 8
        assert holds() == 1 and not litter(), size
        assert os.WTERMSIG(ends(lambda: limited_to(size, deadly=True))) == signal.SIGXFSZ
        assert holds() == 1, size

    for _ in range(20):
        child = in_child(for_ever)
        time.sleep(random.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert holds() in (1, 3)
    save(new)
    assert holds() == 3
    print(kind, "whole after", len(found), "kills")
'''


@pytest.mark.slow
def test_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    arguments = [str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", KILLS, *arguments], capture_output=True, text=True, timeout=55)
    assert done.returncode == 0 and done.stdout.count("whole") == 2, done.stdout + done.stderr[-3000:]


# ---- a machine without the device -----------------------------------------------------------------------------------

NOWHERE = """
import importlib.metadata, json, sys
sys.modules["xpugraph._C"] = None
version = importlib.metadata.version
def of_torch_only(name):
    if "intel" in name:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.metadata.version = of_torch_only
import torch, xpugraph as xg
from xpugraph import cli, devices
def no_runtime():
    raise xg.MissingRuntimeError("no runtime here")
devices.point_to_runtime = no_runtime
import typer.testing
for path in sys.argv[1:]:
    text = typer.testing.CliRunner().invoke(cli.main, ["inspect", path])
    data = typer.testing.CliRunner().invoke(cli.main, ["inspect", path, "--json"])
    assert text.exit_code == data.exit_code == 0, text.output + data.output
    assert "1…2 → eager" in text.stdout and "graph records batch sizes 1, 2, 4" in text.stdout
    value = json.loads(data.stdout)
    assert value["report"]["routes"] == [[1, 2, "eager"], [3, None, "graph"]]
    assert value["recorded_batch_sizes"] == {"graph": [1, 2, 4]} and value["device"].startswith("sycl (")
    try:
        xg.load(torch.nn.Linear(4, 3).eval(), path)
    except xg.ConfigError as error:
        assert "graphs exist on xpu, cuda, sycl" in str(error), error
    else:
        raise AssertionError("graphs on the CPU")
try:
    xg.enable_sycl_device()
except xg.MissingRuntimeError:
    print("inspected")
"""


def test_inspect_where_neither_extension_nor_runtime_is(device, tmp_path):
    tuned = tuned_by_hand(net(1).to(device), [X.to(device)])
    paths = [xg.save(tuned, tmp_path / "a.zip"), xg.save(tuned, tmp_path / "a", folder=True)]
    done = subprocess.run([sys.executable, "-c", NOWHERE, *map(str, paths)], capture_output=True, text=True, timeout=55)
    assert done.returncode == 0 and done.stdout.strip() == "inspected", done.stderr[-3000:]
    info = xg.inspect_checkpoint(str(paths[1]))
    assert (info.parameters, info.module) == (15, "torch.nn.modules.linear.Linear")
    assert json.loads(json.dumps(info.to_dict()))["path"] == str(paths[1]) and info.versions["torch"] in str(info)
