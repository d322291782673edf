"""Digests of the contents of many files, which are remembered so that a file is read again only after a change."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core import digest
from ..core.console import say
from ..core.errors import UserError
from .text import write_text

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
    before = _read(memory)
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
    return {name: sha256 for name, (_, sha256) in _read(memory).items()}


def stamp(file: Path) -> list[int]:
    """Return size, times of modification and of change, in nanoseconds, and inode of a file.

    Every change that goes through the file system changes one of them.
    """
    about: os.stat_result = file.stat()
    return [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]


def _read(memory: Path | None) -> dict[str, Any]:
    """Return the entries of a memory, by name; an empty mapping without a memory, and for one that is damaged."""
    try:
        if not memory:
            return {}
        entries = json.loads(memory.read_text(encoding="utf-8"))
        return {name: [[*map(int, found)], str(sha256)] for name, (found, sha256) in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
