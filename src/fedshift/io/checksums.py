"""Recorded checksums: beside each result lies a hidden file that says which bytes it had when it was written.

The first line of `.NAME.sha256` is that of the program `sha256sum`, which can check it too. A remark below holds the
size, the times and the inode that the file had when it was last read whole. No program can write into a file, or put
another one in its place, without a change of these: a large file is read whole only where they changed. A disk that
loses bits by itself changes none of them; `damage` with `whole` reads every byte.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from shlex import quote

from ..core import digest
from ..core.errors import UserError, require_none, shortened
from .contents import stamp
from .guards import irregular
from .paths import checksum
from .text import write_text

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
    if names:
        call = " ".join([call, "--forcerun", *names])
    return f"make it again: {call}"


_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""The SHA-256 of no bytes."""


def _write(file: Path, sha256: str, when_read: str) -> None:
    text = f"{sha256}  {file.name}\n"
    if when_read:
        text += f"# {when_read}\n"
    write_text(checksum(file), text)


def _read(file: Path) -> tuple[str, str]:
    """Return the recorded checksum of a file, and its stamp. Raises UserError where there is none."""
    place = checksum(file)
    try:
        found = _RECORD.fullmatch(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        found = None
    if not found or found[2] != file.name:
        raise UserError(place, f"{place.name} is not a record of a checksum", "make the file again")
    return found[1], found[3] or ""


def _stamp(file: Path) -> str:
    return " ".join(map(str, stamp(file)))
