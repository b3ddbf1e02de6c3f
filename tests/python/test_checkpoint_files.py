# SPDX-License-Identifier: MIT
"""The files of a checkpoint: damaged and crafted ones."""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_checkpoint import eager_on_cpu, seeded
from torch import nn

import xpugraph as xg
from xpugraph import archive
from xpugraph.archive import MANIFEST, MEMBERS, SUMS, WEIGHTS

pytestmark = pytest.mark.filterwarnings("error::xpugraph.CheckpointWarning")

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@functools.cache
def made(seed):
    return seeded(seed, lambda: nn.Linear(4, 3))


def net(seed):
    return copy.deepcopy(made(seed))


RIGHT = {name: value.clone() for name, value in net(1).state_dict().items()}


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """The files of a checkpoint, by name."""
    path = xg.save(eager_on_cpu(net(1), X), tmp_path_factory.mktemp("members") / "net", folder=True)
    return {name: (path / name).read_bytes() for name in MEMBERS}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


def sums(files):
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()


def write_zip(path, entries, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in entries:
            file.writestr(zipfile.ZipInfo(name), data, compression)
    return path


def write_folder(path, files):
    path.mkdir(exist_ok=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def with_manifest(path, members, text):
    """A zip with another manifest, and right sums."""
    files = {MANIFEST: text, WEIGHTS: members[WEIGHTS]}
    return write_zip(path, [*files.items(), (SUMS, sums(files))])


def refused(path, match=None, error=xg.CheckpointError):
    module = net(2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(error, match=match):
        xg.load(module, path)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def right_or_refused(path):
    """Loads it; True: the answers are right, False: it was refused and the module is as it was."""
    module = net(2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    try:
        tuned = xg.load(module, path)
    except xg.CheckpointError:
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
        return False
    assert all(torch.equal(value, RIGHT[name]) for name, value in module.state_dict().items())
    assert torch.equal(tuned(X), net(1)(X)) and tuned.routes == [xg.Route(1, None, "eager")]
    return True


# ---- damage ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(where=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255), name=st.sampled_from(("zip", *MEMBERS)))
def test_flipped_byte_is_never_a_wrong_answer(members, place, where, mask, name):
    path = write_zip(place / "flip.zip", members.items()) if name == "zip" else write_folder(place / "flip", members)
    file = path if name == "zip" else path / name
    data = bytearray(file.read_bytes())
    data[int(where * len(data))] ^= mask
    file.write_bytes(data)
    good = right_or_refused(path)
    assert name == "zip" or not good


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_flipped_byte_of_the_zip_itself(members, place, mask):
    path = write_zip(place / "headers.zip", members.items())
    data = path.read_bytes()
    outcomes = []
    for i in range(len(data)):
        if not any(data.find(content) <= i < data.find(content) + len(content) for content in members.values()):
            path.write_bytes(data[:i] + bytes([data[i] ^ mask]) + data[i + 1 :])
            outcomes.append(right_or_refused(path))
    assert len(outcomes) > 300 and outcomes.count(False) > 100


def test_truncated_file_is_refused(members, place):
    path = write_zip(place / "cut.zip", members.items())
    data = path.read_bytes()
    for length in {*range(0, len(data), 41), *range(len(data) - 40, len(data))}:
        path.write_bytes(data[:length])
        refused(path, "cut.zip")
    for name, content in members.items():
        folder = write_folder(place / "cut", members)
        for length in {*range(0, len(content), 41), len(content) - 1}:
            (folder / name).write_bytes(content[:length])
            refused(folder)
    path.write_bytes(data)
    assert right_or_refused(path) and right_or_refused(write_folder(place / "cut", members))


# ---- members --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["../evil.txt", "/tmp/xpugraph-evil.txt", "..\\evil", "a/b.txt", "extra.bin", "MANIFEST.JSON", "x/", ".", "", "é"],
)
def test_other_members_are_refused_and_nothing_is_extracted(members, tmp_path, name):
    (tmp_path / "in").mkdir()
    path = write_zip(tmp_path / "in" / "extra.zip", [*members.items(), (name, b"evil")])
    refused(path, "a checkpoint has manifest.json")
    assert [p.name for p in tmp_path.rglob("*")] == ["in", "extra.zip"]
    assert not Path("/tmp/xpugraph-evil.txt").exists() and not Path("evil.txt").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", MEMBERS)
def test_missing_and_doubled_members_are_refused(members, tmp_path, name):
    rest = {key: data for key, data in members.items() if key != name}
    refused(write_zip(tmp_path / "a.zip", rest.items()), f"{name} is missing or there twice")
    refused(write_folder(tmp_path / "a", rest), f"{name} is missing")
    refused(write_zip(tmp_path / "b.zip", [*members.items(), (name, members[name])]), f"{name} is missing or there")
    escaping = {f"../in/{name}" if key == name else key: data for key, data in members.items()}
    refused(write_zip(tmp_path / "c.zip", escaping.items()), "it holds '../in/")


def test_compressed_members_are_refused(members, tmp_path):
    refused(write_zip(tmp_path / "small.zip", members.items(), zipfile.ZIP_DEFLATED), "is compressed")


def test_huge_members_are_not_read(members, tmp_path, monkeypatch):
    monkeypatch.setitem(archive._MOST_BYTES, MANIFEST, 100)
    refused(write_zip(tmp_path / "a.zip", members.items()), "bytes; more than 100 are not read")
    refused(write_folder(tmp_path / "a", members), "bytes; more than 100 are not read")


@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder"])
def test_links_and_other_files_in_a_folder_are_not_followed(members, tmp_path, kind):
    folder = write_folder(tmp_path / "net", members)
    (folder / WEIGHTS).rename(tmp_path / "outside")
    if kind == "symlink":
        (folder / WEIGHTS).symlink_to(tmp_path / "outside")
    elif kind == "fifo":
        os.mkfifo(folder / WEIGHTS)
    else:
        (folder / WEIGHTS).mkdir()
    refused(folder, f"{WEIGHTS} is a link or no plain file")
    os.mkfifo(tmp_path / "fifo.zip")
    refused(tmp_path / "fifo.zip", "neither a file nor a folder")
    refused(tmp_path / "nowhere", "does not exist")
    refused(tmp_path / ("x" * 300), "cannot be read")


def test_open_checkpoint_stays_what_it_was_while_another_is_saved(members, tmp_path):
    other = eager_on_cpu(net(3), X)
    for path in (write_zip(tmp_path / "a.zip", members.items()), write_folder(tmp_path / "a", members)):
        with archive.Archive(path) as opened:
            xg.save(other, path)
            assert opened.read(WEIGHTS) == members[WEIGHTS] and opened.read(MANIFEST) == members[MANIFEST]
        with archive.Archive(path) as opened:
            assert opened.read(WEIGHTS) != members[WEIGHTS]


# ---- pickles: case 48 -----------------------------------------------------------------------------------------------


class Payload:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def pickles(payload, path, members):
    """What a crafted checkpoint may look like."""
    raw = pickle.dumps(payload)
    yield "pickle", lambda: path.write_bytes(raw)
    yield "old protocol", lambda: path.write_bytes(pickle.dumps(payload, 0))
    yield "torch.save", lambda: torch.save({"weights": payload}, path)
    yield "torch.save before zip", lambda: torch.save(payload, path, _use_new_zipfile_serialization=False)
    yield "beside", lambda: write_zip(path, [*members.items(), ("data.pkl", raw)])
    yield "below", lambda: write_zip(path, [*members.items(), ("net/data.pkl", raw), ("net/data/0", b"")])
    for name in MEMBERS:
        files = {key: raw if key == name else members[key] for key in (MANIFEST, WEIGHTS)}
        yield f"as {name}", lambda f=files, n=name: write_zip(path, [*f.items(), (SUMS, raw if n == SUMS else sums(f))])
    yield "in a folder", lambda: write_folder(path.with_suffix(""), {**members, "data.pkl": raw})


def test_case_48_nothing_is_ever_unpickled(members, tmp_path, monkeypatch):
    marker, path = tmp_path / "marker", tmp_path / "crafted.zip"
    pickle.loads(pickle.dumps(Payload(marker))).close()
    assert marker.exists(), "the payload works"
    marker.unlink()
    made = list(pickles(Payload(marker), path, members))
    for name, make in made:
        make()
        target = path if path.exists() else path.with_suffix("")
        with monkeypatch.context() as patch:
            for function in ("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load"):
                patch.setattr(function, lambda *a, f=function, **k: pytest.fail(f"{f} was called"))
            refused(target)
            with pytest.raises(xg.CheckpointError):
                xg.inspect_checkpoint(target)
        assert not marker.exists(), name
        path.unlink(missing_ok=True)
    assert len(made) == 10
