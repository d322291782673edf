"""Checksums of files: recorded beside each result, and remembered of a user's own files.

Beside each result lies a hidden file that says which bytes it had when it was written.

The first line of `.NAME.sha256` is that of the program `sha256sum`, which can check it too. A remark below holds the
size, the times and the inode that the file had when it was last read whole. No program can write into a file, or put
another one in its place, without a change of these: a large file is read whole only where they changed. A disk that
loses bits by itself changes none of them; `damage` with `whole` reads every byte.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shlex import quote
from typing import Any

from ..core import digest
from ..core.console import say
from ..core.errors import UserError, require_none, shortened
from .paths import checksum
from .text import irregular, write_text

LARGE = 1 << 24
"""Bytes from which a file is not read whole if its size, times and inode are those of its last check."""
MISSING = "is missing"
"""Fault of a file that is not there."""
_RECORD = re.compile(r"([0-9a-f]{64})  ([^\n]+)\n(?:# (\d+ \d+ \d+ \d+)\n)?")


def record(*files: Path) -> None:
    """Record the checksums of files that were just written."""
    for file in files:
        # before the file is read, so that a later change of it cannot go unseen
        before = _stamp(file)
        _write(file, digest.of_file(file), before)


def copy_record(file: Path, copy: Path) -> None:
    """Record for a copy of a file what is recorded for the file, without reading either. Raises UserError for none."""
    _write(copy, _read(file)[0], "")


def recorded(file: Path) -> bool:
    """Return whether a checksum of a file was recorded."""
    return checksum(file).exists()


def checksum_of(file: Path) -> str:
    """Return the first 16 hex digits of the recorded checksum of a file; "" where none was recorded."""
    return _read(file)[0][:16] if recorded(file) else ""


def damage(file: Path, whole: bool = False) -> str:
    """Return how a file differs from what was recorded when it was written: a few words, or "" where it does not.

    A file without a record is taken as it is: an earlier version wrote it. With `whole`, large files are read too.
    """
    if not file.is_file():
        return irregular(file) or MISSING
    if not recorded(file):
        return ""
    try:
        expected, earlier = _read(file)
    except UserError as error:
        return f"has no readable checksum: {error.what}"
    now = _stamp(file)
    size = file.stat().st_size
    if not size and expected != _EMPTY:
        return "is empty, and was not when it was written"
    if earlier == now and size >= LARGE and not whole:
        return ""
    if digest.of_file(file) != expected:
        return "is damaged or was changed: its SHA-256 checksum is not the one recorded when it was written"
    if earlier != now and size >= LARGE:
        # on a disk that can only be read, the next job reads the whole file again
        with contextlib.suppress(OSError, UserError):
            _write(file, expected, now)
    return ""


def require(files: Iterable[Path], call: Callable[[], str] = lambda: "the same call of Snakemake with") -> None:
    """Raise UserErrors for files that are there and are not as recorded; each names the `call` that makes it again.

    Files that are absent are left to their reader, which knows what that means.
    """
    damages = {file: damage(file) for file in files if file.exists()}
    faults = [UserError(file, problem, remedy([file], call())) for file, problem in damages.items() if problem]
    require_none(shortened(faults, len(faults), "results"))


def remedy(files: Iterable[Path], call: str) -> str:
    """Return the words that tell how to make files again by a call of Snakemake, which is forced if any are named."""
    names = [quote(str(file)) for file in files]
    return f"make it again: {' '.join([call, '--forcerun', *names] if names else [call])}"


_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""The SHA-256 of no bytes."""


def _write(file: Path, sha256: str, when_read: str) -> None:
    write_text(checksum(file), f"{sha256}  {file.name}\n" + (f"# {when_read}\n" if when_read else ""))


def _read(file: Path) -> tuple[str, str]:
    """Return the recorded checksum of a file, and its stamp. Raises UserError where there is none."""
    place = checksum(file)
    try:
        found = _RECORD.fullmatch(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        found = None
    if not found or found[2] != file.name:
        problem = f"{place.name} is not a record of a checksum"
        raise UserError(place, problem, f"make {file.name} again, with the command that wrote it")
    return found[1], found[3] or ""


def _stamp(file: Path) -> str:
    return " ".join(map(str, stamp(file)))


THREADS = 8
"""Number of files that are read at the same time."""
MANY = 1 << 30
"""Bytes to read from which a line says why this call takes longer than the next one."""
SETTLED = 2_000_000_000
"""Nanoseconds since its last change after which a file is remembered.

A file system counts time in steps: a file that changes twice within one step has equal times before and after.
"""


def contents(files: Mapping[str, Path], memory: Path | None = None) -> dict[str, str]:
    """Return the SHA-256 digest of each file by its name; files that do not exist are left out.

    `memory` is a file that keeps the digests for the next call, with size, times and inode of each file. A digest is
    taken from there only if all four are the same: a program can set the modification time of a file that it has
    changed, but not the time of the change of its entry. A memory that is lost or cannot be read costs time alone.
    """
    stamps = {name: stamp(file) for name, file in files.items() if file.is_file()}
    before = _remembered(memory)
    kept = {name: digest for name, (found, digest) in before.items() if stamps.get(name) == found}
    changed = [name for name in stamps if name not in kept]
    size = sum(stamps[name][0] for name in changed)
    if size >= MANY:
        say(f"reading {len(changed):,} files of your own ({size / 1e9:.1f} GB) to see whether they have changed")
    with ThreadPoolExecutor(THREADS) as pool:
        fresh = dict(zip(changed, pool.map(lambda name: digest.of_file(files[name]), changed), strict=True))
    digests = {name: kept.get(name) or fresh[name] for name in stamps}
    settled = time.time_ns() - SETTLED
    entries = {
        name: [found, digests[name]]
        for name, found in stamps.items()
        if max(found[1:3]) < settled and stamp(files[name]) == found
    }
    if memory and entries != before:
        # on a disk that can only be read, the next call reads all again
        with contextlib.suppress(OSError, UserError):
            write_text(memory, json.dumps(entries))
    return digests


def remembered(memory: Path) -> dict[str, str]:
    """Return the digests in a memory by the names of the files, whether or not they still hold."""
    return {name: sha256 for name, (_, sha256) in _remembered(memory).items()}


def stamp(file: Path) -> list[int]:
    """Return size, times of modification and of change (ns), and inode: any change of a file changes one of them."""
    about: os.stat_result = file.stat()
    return [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]


def _remembered(memory: Path | None) -> dict[str, Any]:
    """Return the entries of a memory, by name; an empty mapping without a memory, and for one that is damaged."""
    try:
        if not memory:
            return {}
        entries = json.loads(memory.read_text(encoding="utf-8"))
        return {name: [[*map(int, found)], str(sha256)] for name, (found, sha256) in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
