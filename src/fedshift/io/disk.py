"""The disk: what is written is there whole or not at all, and one process at a time is at work in a folder."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ..core.errors import UserError

PROBES = 10
"""Times a lock is asked for, a tenth of a second apart: who only looks whether it is held has it for a moment."""


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns a full disk (or quota) into a UserError about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        remedy = "free some space and start again: nothing was half written"
        raise UserError(path, "no space left on the disk", remedy) from error


def try_lock(file: IO[Any], shared: bool = False) -> bool:
    """Whether the lock of an open file could be had at once; it is held until the file is closed.

    Raises OSError where the file system has no locks.
    """
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(file: IO[Any]) -> bool:
    """The same, asked for several times."""
    for _ in range(PROBES):
        if try_lock(file):
            return True
        time.sleep(0.1)
    return False


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file `path`; a UserError where another process does. The system frees it when a process dies."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8")
    with file:
        try:
            held = _lock(file)
        except OSError as error:
            remedy = "mount it with flock, or choose another disk"
            raise UserError(path.parent, f"its file system has no locks: {error.strerror}", remedy) from error
        if not held:
            raise UserError(path.parent, "another process is at work here", "wait for it, or stop it")
        yield


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())


def require_space(folder: Path, needed_bytes: float) -> None:
    """UserError where the disk that holds (or will hold) `folder` has too little room."""
    free = shutil.disk_usage(existing(folder)).free
    if free < needed_bytes:
        unit, size = ("GB", 1e9) if needed_bytes >= 1e8 else ("MB", 1e6)
        what = f"needs {needed_bytes / size:.2f} {unit} of disk space, {free / size:.2f} {unit} are free"
        raise UserError(folder, what, "free some space or choose another disk")


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}{_mark()}{os.getpid()}-{secrets.token_hex(4)}{path.suffix}")


def _mark() -> str:
    return f".tmp-{socket.gethostname()}-"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def commit(temporary: Path, path: Path) -> None:
    """Moves a finished file into place, durably."""
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which replaces `path` if the block succeeds and vanishes if not."""
    path = Path(path)
    temporary = _temporary(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            commit(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """The same for a folder: an empty one to fill, which then replaces `path`."""
    path = Path(path)
    new, old = _temporary(path), _temporary(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, glob.escape(path.name))
        new.mkdir()
        try:
            yield new
            os.sync()  # one call for what may be half a million files
            if path.exists():  # a folder cannot be renamed onto a full one: the old one steps aside
                path.rename(old)
            new.rename(path)
            _sync(path.parent)
        finally:
            if old.exists() and not path.exists():
                old.rename(path)
            _remove(new)
            _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sweep(folder: Path, name: str = "*") -> None:
    """Removes the temporaries in `folder` (all, or those for the target `name`) of killed processes of this host."""
    mark = _mark()
    for entry in list(folder.glob(f".{name}{glob.escape(mark)}*")):
        pid = entry.name.rpartition(mark)[2].partition("-")[0]
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            _remove(entry)
        except (ValueError, PermissionError):
            continue
