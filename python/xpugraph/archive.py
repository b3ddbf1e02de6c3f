# SPDX-License-Identifier: MIT
"""The files of a checkpoint: a folder or a zip with a fixed set of members and their sha256 sums, replaced atomically.

Nothing is ever extracted, no name from inside a file becomes a path, and nothing is unpickled. A folder or zip with any
other member is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import stat
import struct
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from .errors import CheckpointError

MANIFEST, WEIGHTS, SUMS = "manifest.json", "weights.safetensors", "sha256sums.txt"
MEMBERS = (MANIFEST, WEIGHTS, SUMS)

_MOST_BYTES = {MANIFEST: 64 << 20, SUMS: 4096}  # of what is parsed by Python
_EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
_AT_FDCWD = -100
# What zipfile raises on damaged files; RuntimeError is its word for encrypted ones.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    RuntimeError,
    OverflowError,
    struct.error,
)


# ---- writing -------------------------------------------------------------------------------------------------------


def check_target(path: Path, folder: bool) -> None:
    """Refuses what no checkpoint may take the place of.

    Raises:
        CheckpointError: For a zip: `path` is a folder or a device. For a folder: it is a file, or a folder that is
            neither empty nor a checkpoint.
    """
    if not folder:
        if path.is_dir():
            raise CheckpointError(f"{path} is a folder; give folder=True to save into it, or another path")
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is no plain file; it is left as it is")
        if path.exists() and not _begins_as_ours(path):
            raise CheckpointError(f"{path} is a file that is no checkpoint; it is left as it is")
        return
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file; a folder cannot take its place")
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    if foreign := names - set(MEMBERS):
        raise CheckpointError(
            f"{path} is a folder with other things in it, such as {min(foreign)}; it is left as it is"
        )
    if names and (missing := set(MEMBERS) - names):
        raise CheckpointError(f"{path} is no checkpoint's folder: it lacks {min(missing)}; it is left as it is")


def _begins_as_ours(path: Path) -> bool:
    """Whether a file is empty or begins as `write_zip` begins one, damaged later on or not."""
    with open(path, "rb") as file:
        head = file.read(30 + len(MANIFEST))
    return not head or (head.startswith(b"PK\3\4") and head.endswith(MANIFEST.encode("ascii")))


def write_zip(path: Path, members: Mapping[str, bytes]) -> None:
    """Writes a zip, not compressed, over whatever file is there.

    Raises:
        CheckpointError: See check_target.
        OSError: It cannot be written; what was there is whole.
    """
    check_target(path, folder=False)
    path = _real(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for member, data in _with_sums(members).items():
                    # The same content makes the same file: no time of its own.
                    archive.writestr(zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0)), data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_folder(path: Path, members: Mapping[str, bytes]) -> None:
    """Writes a folder; one that is there is exchanged in one step.

    Raises:
        CheckpointError: See check_target; or the file system cannot exchange folders.
        OSError: It cannot be written; what was there is whole.
    """
    check_target(path, folder=True)
    path = _real(path)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        for member, data in _with_sums(members).items():
            with open(temporary / member, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        temporary.chmod(0o777 & ~_umask())
        _sync_folder(temporary)
        if path.is_dir() and any(path.iterdir()):
            _exchange(temporary, path)
        else:
            temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # what was not put in place, or what was there before


def _real(path: Path) -> Path:
    """Where a path leads, so that links stay and their targets are replaced; makes the folder it is in."""
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _with_sums(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """The members and, in the format of sha256sum, their sums."""
    lines = [f"{hashlib.sha256(data).hexdigest()}  {member}\n" for member, data in members.items()]
    return {**members, SUMS: "".join(lines).encode("ascii")}


def _exchange(a: Path, b: Path) -> None:
    """Two paths become each other in one step."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _EXCHANGE)
        error = os.strerror(ctypes.get_errno())
    except AttributeError:
        done, error = -1, "the C library has no renameat2"
    if done != 0:
        raise CheckpointError(
            f"{b} cannot be replaced in one step ({error}); remove it first, or save a zip (folder=False)"
        )


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# ---- reading -------------------------------------------------------------------------------------------------------


class Archive:
    """A checkpoint's files, read and compared with their sums. Reads a member only when asked for it.

    A context manager. All files are opened at once, so that a save meanwhile leaves it what it was.

    Raises (from the constructor and from ``read``):
        CheckpointError: There is no checkpoint, or it is damaged, or not made by xpugraph; says what is wrong.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._zip: zipfile.ZipFile | None = None
        self._files: dict[str, BinaryIO] = {}
        with contextlib.ExitStack() as stack:
            try:
                if path.is_dir():
                    self._open_folder(stack)
                elif path.is_file():
                    self._open_zip(stack)
                else:
                    raise CheckpointError(f"{path} does not exist, or is neither a file nor a folder")
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {error}") from error
            self._sums = self._read_sums()
            self._stack = stack.pop_all()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, member: str) -> bytes:
        """The bytes of one member, whose sum is right."""
        data = self._bytes(member)
        if hashlib.sha256(data).hexdigest() != self._sums.get(member):
            raise CheckpointError(f"{self._path}: {member} is damaged or was changed: its sha256 is not that of {SUMS}")
        return data

    def _open_folder(self, stack: contextlib.ExitStack) -> None:
        handle = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._check_names(sorted(os.listdir(handle)))
            for member in MEMBERS:
                path = self._path / member
                if not stat.S_ISREG(os.stat(member, dir_fd=handle, follow_symlinks=False).st_mode):
                    raise CheckpointError(f"{path} is a link or no plain file; it is not followed")
                flags = os.O_RDONLY | os.O_NOFOLLOW
                self._files[member] = stack.enter_context(os.fdopen(os.open(member, flags, dir_fd=handle), "rb"))
        finally:
            os.close(handle)

    def _open_zip(self, stack: contextlib.ExitStack) -> None:
        try:
            file = stack.enter_context(open(self._path, "rb"))
            self._zip_bytes = os.fstat(file.fileno()).st_size
            self._zip = stack.enter_context(zipfile.ZipFile(file))
        except _ZIP_ERRORS as error:
            raise CheckpointError(
                f"{self._path} is no checkpoint of xpugraph, or is cut short ({error}); pickles are never read"
            ) from error
        self._check_names(self._zip.namelist())

    def _check_names(self, names: list[str]) -> None:
        for name in names:
            if name.endswith(".pkl") or "/data/" in name:
                raise CheckpointError(f"{self._path}: it holds {name!r}: a pickle, as torch.save makes; it is not read")
            if name not in MEMBERS:
                raise CheckpointError(
                    f"{self._path}: it holds {name!r}; a checkpoint has {', '.join(MEMBERS)} and no other"
                )
        for member in MEMBERS:
            if names.count(member) != 1:
                raise CheckpointError(f"{self._path}: {member} is missing or there twice")

    def _read_sums(self) -> dict[str, str]:
        text = self._bytes(SUMS).decode("ascii", errors="replace")
        sums = {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}
        if text != "".join(f"{digest}  {name}\n" for name, digest in sums.items()):
            raise CheckpointError(f"{self._path}: {SUMS} is damaged or cut short")
        return sums

    def _bytes(self, member: str) -> bytes:
        try:
            if self._zip is None:
                file = self._files[member]
                self._check_size(member, os.fstat(file.fileno()).st_size)
                file.seek(0)
                return file.read()
            info = self._zip.getinfo(member)
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise CheckpointError(f"{self._path}: {member} is compressed or encrypted, which xpugraph never writes")
            self._check_size(member, max(info.file_size, info.compress_size))
            return self._zip.read(info)
        except CheckpointError:
            raise
        except _ZIP_ERRORS as error:
            raise CheckpointError(f"{self._path}: {member} cannot be read ({error}); the file is damaged") from error

    def _check_size(self, member: str, size: int) -> None:
        limit = _MOST_BYTES.get(member)
        if limit is not None and size > limit:
            raise CheckpointError(f"{self._path}: {member} has {size:,} bytes; more than {limit:,} are not read")
        if self._zip is not None and size > self._zip_bytes:
            raise CheckpointError(f"{self._path}: {member} is said to have {size:,} bytes, more than the file")
