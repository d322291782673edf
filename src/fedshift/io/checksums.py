"""SHA-256 checksums of files: recorded beside each result, and cached for a user's own images.

Beside each result lies a hidden file, `.NAME.sha256`, with the checksum that the result had when it was written. Its
first line is that of the program `sha256sum`, which can check it too. A remark below holds the size, the times and the
inode that the file had when it was last read whole. No program can write into a file, or put another one in its place,
without a change of one of these: a large file is read whole only where they changed. A disk that loses bits by itself
changes none of them; `damage` with `whole` reads every byte.
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
"""Size in bytes from which a file is not read again if its size, times and inode are those of its last check."""
MISSING = "is missing"
"""What `damage` returns for a file that does not exist."""
_RECORD = re.compile(r"([0-9a-f]{64})  ([^\n]+)\n(?:# (\d+ \d+ \d+ \d+)\n)?")


def record(*files: Path) -> None:
    """Write the checksum of each file, which was just written, into the hidden file beside it."""
    for file in files:
        # before the file is read, so that a later change of it cannot go unseen
        before = _stamp(file)
        _write(file, digest.of_file(file), before)


def copy_record(file: Path, copy: Path) -> None:
    """Record the checksum of `file` for its `copy` too, without reading either. Raises UserError if `file` has none."""
    _write(copy, _read(file)[0], "")


def recorded(file: Path) -> bool:
    """Return True if a checksum of the file was recorded, in the hidden file beside it."""
    return checksum(file).exists()


def checksum_of(file: Path) -> str:
    """Return the first 16 hex digits of the recorded checksum of a file; "" where none was recorded."""
    return _read(file)[0][:16] if recorded(file) else ""


def damage(file: Path, whole: bool = False) -> str:
    """Return the fault of a file in words (missing, empty, or another checksum than recorded); "" if it is sound.

    A file without a recorded checksum counts as sound, since an earlier version wrote it. A large file with the size,
    times and inode of its last check is read only with `whole`.
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
    """Raise UserErrors if an existing file is not as its recorded checksum says.

    `call` returns the Snakemake command that makes the file again when `--forcerun FILE` is added; errors name it.
    Files that do not exist pass: the code that reads them knows what that means.
    """
    damages = {file: damage(file) for file in files if file.exists()}
    faults = [UserError(file, problem, remedy([file], call())) for file, problem in damages.items() if problem]
    require_none(shortened(faults, len(faults), "results"))


def remedy(files: Iterable[Path], call: str) -> str:
    """Return the advice to make `files` again with the Snakemake command `call`; with `--forcerun` if any are given."""
    names = [quote(str(file)) for file in files]
    return f"make it again: {' '.join([call, '--forcerun', *names] if names else [call])}"


_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""The SHA-256 checksum of an empty file."""


def _write(file: Path, sha256: str, when_read: str) -> None:
    write_text(checksum(file), f"{sha256}  {file.name}\n" + (f"# {when_read}\n" if when_read else ""))


def _read(file: Path) -> tuple[str, str]:
    """Return a file's recorded checksum, and its size, times and inode at the last check ("" if there was none).

    Raises UserError if no checksum was recorded, or the record cannot be read.
    """
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
"""Number of files that `contents` reads at the same time."""
MANY = 1 << 30
"""Bytes to read from which `contents` prints why this call takes longer than the next one."""
SETTLED = 2_000_000_000
"""Nanoseconds that must have passed since the last change of a file before its digest is cached.

A file system counts time in steps: a file that changes twice within one step has equal times before and after.
"""


def contents(files: Mapping[str, Path], memory: Path | None = None) -> dict[str, str]:
    """Return the SHA-256 digest of each file by its name; files that do not exist are left out.

    `memory` is a cache file, which keeps the digests for the next call, with size, times and inode of each file. A
    digest is taken from it only if all four are unchanged: a program can set the modification time of a file that it
    wrote, but not the time at which its entry on the disk changed. A lost or damaged cache only costs time.
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
    """Return the digests in a cache file of `contents` by the names of the files, whether or not they still hold."""
    return {name: sha256 for name, (_, sha256) in _remembered(memory).items()}


def stamp(file: Path) -> list[int]:
    """Return a file's size, times of modification and change (ns), and inode: any change of it changes one of them."""
    about: os.stat_result = file.stat()
    return [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]


def _remembered(memory: Path | None) -> dict[str, Any]:
    """Return the entries of a cache file, {name: [stamp, digest]}; {} without a cache file, and for a damaged one."""
    try:
        if not memory:
            return {}
        entries = json.loads(memory.read_text(encoding="utf-8"))
        return {name: [[*map(int, found)], str(sha256)] for name, (found, sha256) in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
