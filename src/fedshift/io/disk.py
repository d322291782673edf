"""Safe writing: a file is there whole or not at all, and one process at a time works in a folder."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ..core.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of the operating system for a full disk and for a full quota."""
PROBES = 10
"""Number of tries to take a lock, 0.1 s apart: a process that only checks whether a lock is held takes it for a
moment."""


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of writing the file `path` inside the block, such as of a full disk, into UserError.

    An error about another file than `path` and its temporary file passes unchanged, unless the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            remedy = "free some space and start again: no half-written file was left"
            raise UserError(path, "no space left on the disk", remedy) from error
        if isinstance(error.filename, str | bytes):
            file = Path(os.fsdecode(error.filename))
            if file != path and not file.name.startswith(f".{path.name}{_mark()}"):
                raise
        problem = f"cannot be written: {error.strerror or error}"
        raise UserError(path, problem, "check the path and its permissions, or choose another folder") from error


def require_writable(folder: Path) -> None:
    """Raise UserError unless files can be written into `folder` or, if it is missing, the nearest folder above it."""
    folder = existing(folder)
    if not folder.is_dir():
        remedy = "move the file away, or choose another folder"
        raise UserError(folder, "is a file, and a folder is needed here", remedy)
    probe = _temporary(folder / "probe")
    try:
        # some bytes, since an empty file can be made on a full disk
        probe.write_bytes(b"\0" * 4096)
    except OSError as error:
        error.filename = str(folder)
        with disk_errors(folder):
            raise
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def try_lock(file: IO[Any], shared: bool = False) -> bool:
    """Try to lock an open file without waiting, and return whether that worked. Closing the file frees the lock.

    Several processes can hold a `shared` lock. Raises OSError if the file system has no locks.
    """
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` inside the block. The system releases it when the process dies.

    Raises UserError where another process holds it, and where the file system has no locks.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8")
    with file:
        try:
            for _ in range(PROBES):
                if try_lock(file):
                    break
                time.sleep(0.1)
            else:
                raise UserError(path.parent, "another process is at work here", "wait for it, or stop it")
        except OSError as error:
            raise _no_locks(path, error) from error
        yield


def _no_locks(path: Path, error: OSError) -> UserError:
    problem = f"its file system has no locks: {error.strerror}"
    return UserError(path.parent, problem, "mount it with flock, or choose another disk")


@contextlib.contextmanager
def in_turn(path: Path, wait: Callable[[], object]) -> Iterator[None]:
    """Hold the lock file `path` inside the block, and remove it afterwards.

    If another process or thread holds it, call `wait` once, such as to print a line, and then wait for the lock. Raises
    UserError if the file system has no locks.
    """
    import fcntl

    while True:
        with disk_errors(path):
            file = path.open("w", encoding="utf-8")
        try:
            if not try_lock(file):
                wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            # who held the lock may have removed its file, and a third process may hold a new one
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    break
        except OSError as error:
            file.close()
            raise _no_locks(path, error) from error
        file.close()
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())


def require_space(folder: Path, needed_bytes: float) -> None:
    """Raise UserError where the disk that holds (or will hold) `folder` has too little free space."""
    free = shutil.disk_usage(existing(folder)).free
    if free < needed_bytes:
        unit, size = ("GB", 1e9) if needed_bytes >= 1e8 else ("MB", 1e6)
        problem = f"needs {needed_bytes / size:.2f} {unit} of disk space, {free / size:.2f} {unit} are free"
        raise UserError(folder, problem, "free some space or choose another disk")


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
    """Rename the finished file `temporary` to `path`, and wait until both its content and its name are on the disk."""
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only this user can read. Raises FileExistsError if `path` exists.

    Where it cannot be written whole, as on a full disk, it is removed.
    """
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        try:
            file.write(content)
            file.flush()
        except BaseException:
            path.unlink()
            raise


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. The file replaces `path` if the block succeeds, and is removed if not."""
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
    """Yield an empty folder to fill. It replaces the folder `path` if the block succeeds, and is removed if not."""
    path = Path(path)
    new = _temporary(path)
    old = _temporary(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, glob.escape(path.name))
        new.mkdir()
        try:
            yield new
            # one call for what may be half a million files
            os.sync()
            # a folder cannot be renamed onto a full one: the old one steps aside
            if path.exists():
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
    """Remove the temporary files in `folder` that killed processes of this host left.

    `name` is a pattern of the names of the files that they would have become; by default all.
    """
    mark = _mark()
    for entry in list(folder.glob(f".{name}{glob.escape(mark)}*")):
        pid = entry.name.rpartition(mark)[2].partition("-")[0]
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            _remove(entry)
        except (ValueError, PermissionError):
            continue
