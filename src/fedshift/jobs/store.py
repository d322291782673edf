"""The store of finished runs: they come back without training when Snakemake has deleted their files.

Snakemake deletes the outputs of a job before it starts the job again, also where the job then refuses to work. Each
finished run is therefore kept a second time, in `results/store/RUN/INPUTS`. INPUTS is a digest of everything that the
training depends on: run, code, checksums of the data, and partition. Snakemake does not know this folder.

Files of up to COPIED bytes are copied. Larger ones are hard links, which take no space: they outlive the removal and
the replacement of the other name, but not a program that writes into the file itself. Where a disk has no hard links,
they are copied too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.console import say
from ..io import checksums, identity
from ..io.disk import atomic, disk_errors
from ..io.paths import Paths, RunFiles, checksum
from ..io.text import write_json

COPIED = 1 << 20
"""Bytes up to which a file is copied: this costs little, and a copy survives whatever happens to the other file."""


@dataclass(frozen=True)
class Kept:
    """A finished run in the store: the run's files in `folder`, with their recorded checksums."""

    folder: Path

    @property
    def run(self) -> str:
        """The id of the run."""
        return self.folder.parent.name

    @property
    def files(self) -> RunFiles:
        """The files of the run in the store."""
        return RunFiles(self.folder)

    @property
    def size(self) -> int:
        """The bytes that the removal of this entry frees: hard links to files that have another name count nothing."""
        stats = [file.stat() for file in self.folder.iterdir()]
        return sum(about.st_size for about in stats if about.st_nlink == 1)

    def damage(self) -> dict[Path, str]:
        """Return what is wrong with each file that is missing, damaged or has no recorded checksum."""
        faults = {file: checksums.damage(file) for file in self.files.trained}
        for file, fault in faults.items():
            if not fault and not checksums.recorded(file):
                faults[file] = "has no checksum"
        return {file: fault for file, fault in faults.items() if fault}

    def keep(self, files: RunFiles) -> None:
        """Keep the files of a finished run, whose checksums are recorded. A full disk does not lose the run."""
        try:
            for file in files.trained:
                twin(file, self.folder / file.name)
        except (OSError, ValueError) as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            say(f"the run is finished, but could not be kept a second time in {self.folder}: {error}")

    def restore(self, files: RunFiles) -> bool:
        """Put the files of the run back into its folder, and return whether that was possible."""
        if not self.folder.is_dir():
            return False
        faults = self.damage() or {self.files.model: identity.differs(self.files.model, run=self.run)}
        for file, fault in faults.items():
            if fault:
                say(f"{file} {fault}: this kept run is not used")
                return False
        with disk_errors(files.folder):
            for file in self.files.trained:
                twin(file, files.folder / file.name)
                os.utime(files.folder / file.name)
        say(f"nothing of this run's inputs has changed: it comes back from {self.folder} without training")
        return True

    def remove(self) -> None:
        """Remove this entry."""
        shutil.rmtree(self.folder)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()


def kept(paths: Paths, run: str = "*") -> Iterator[Kept]:
    """Yield the entries of the store: all, or those of one run."""
    for folder in sorted(paths.store.glob(f"{run}/*/")):
        yield Kept(folder)


def superseded(paths: Paths) -> Iterator[Kept]:
    """Yield the entries of runs that have been trained again since, from other data or with other code.

    A run without files in results/runs has not: its entry may be all that is left of it.
    """
    for entry in kept(paths):
        current = paths.run_files(entry.run).manifest
        if current.exists() and not _same(current, entry.files.manifest):
            yield entry


def write_manifest(paths: Paths, run: str, manifest: dict[str, Any]) -> None:
    """Write the manifest of a finished run anew, in its folder and in the store, and record its checksum."""
    current = paths.run_files(run).manifest
    entries = [entry for entry in kept(paths, run) if _same(current, entry.files.manifest)]
    checksum(current).unlink(missing_ok=True)  # a kill between the next two lines leaves no record, not a wrong one
    write_json(current, manifest)
    checksums.record(current)
    for entry in entries:
        twin(current, entry.files.manifest)


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


def twin(file: Path, other: Path) -> None:
    """Make `other` a file with the content of `file`: a copy, or a hard link of a large file where the disk has these.

    The checksum that is recorded for `file` is recorded for `other` too.
    """
    if not (other.exists() and file.samefile(other)):
        with atomic(other) as temporary:
            if file.stat().st_size <= COPIED or not _linked(file, temporary):
                shutil.copyfile(file, temporary)
    elif checksums.recorded(other):  # a kill may have left a link without a record
        return
    checksums.copy_record(file, other)


def _linked(file: Path, other: Path) -> bool:
    """Make a hard link if the disk has these, and return whether it has."""
    try:
        other.hardlink_to(file)
    except OSError:
        return False
    return True
