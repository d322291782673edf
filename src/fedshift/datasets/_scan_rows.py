"""Rows of a table that name scans: which frames they stand for, and what the headers of their files say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..core.errors import UserError
from ..core.spelling import counted
from ..io.images import is_nifti, is_scan, located, open_scan
from ..io.scan import NO_WINDOW, Reading, Scan

if TYPE_CHECKING:
    import pandas as pd

Slices = tuple[float, ...] | Literal["all"]
"""Places in a file with several frames, from 0 (the first frame) to 1 (the last one)."""


@dataclass(frozen=True)
class ScanRows:
    """Rows with a row for each chosen frame of a scan, and findings in the headers of their files.

    Attributes
    ----------
    rows : the rows; `path` names the frame where `slices` chose it, and `mask` the same slice of a mask volume
    faults : problems by their first row: its label in the index, the error, and the number of rows that have it
    facts : a line for each kind of scans: how many files, and of which size
    burnt_in : paths of images whose header says that their pixels show text which may identify the patient
    """

    rows: pd.DataFrame
    faults: tuple[tuple[int, UserError, int], ...]
    facts: tuple[str, ...]
    burnt_in: frozenset[str]


def scan_rows(rows: pd.DataFrame, folder: Path, slices: Slices | None, reading: Reading, remedy: str) -> ScanRows:
    """Read the header of each scan that `path` of a row names, from `folder`, and choose its frames.

    A row whose file has a fault stays as it is: reading its image raises the error.
    """
    headers = _Headers(folder, reading, remedy)
    frames = dict[str, list[str]]()
    first = dict[str, tuple[int, UserError]]()
    numbers = Counter[str]()
    burnt_in = set[str]()
    paths = rows["path"].dropna()
    for row, cell in zip(paths.index.to_list(), paths, strict=True):
        try:
            scan, named = headers.read(cell)
            if scan is None:
                continue
            frames[cell] = [*_chosen(scan, cell, named, slices)]
            if scan.burnt_in:
                burnt_in.update(frames[cell])
            number = scan.number(named if frames[cell] == [cell] else 1, reading)
            if NO_WINDOW in first and not scan.in_window(reading):
                # the first such file has told what to write: a frame is read for that
                numbers[NO_WINDOW] += 1
                continue
            scan.require(number, reading)
        except UserError as error:
            first.setdefault(error.what, (row, error))
            numbers[error.what] += 1
    if any(named != [cell] for cell, named in frames.items()):
        rows = _exploded(rows, frames)
    faults = tuple((row, error, numbers[what]) for what, (row, error) in first.items())
    return ScanRows(rows, faults, tuple(headers.facts()), frozenset(burnt_in))


class _Headers:
    """The headers of scans, each read once."""

    def __init__(self, folder: Path, reading: Reading, remedy: str) -> None:
        self.folder = folder
        self.reading = reading
        self.remedy = remedy
        self.scans = dict[Path, Scan | UserError]()

    def read(self, cell: str) -> tuple[Scan | None, int | None]:
        """Return the scan that a cell names, None for another file, and the number of the frame, if it names one."""
        file, named = located(self.folder, cell)
        if file not in self.scans:
            if not is_scan(file) or not file.is_file() or not file.stat().st_size:
                return None, named  # a lost or an empty file is a fault of all kinds of files
            try:
                self.scans[file] = open_scan(file, self.reading, self.remedy)
            except UserError as error:
                self.scans[file] = error
        scan = self.scans[file]
        if isinstance(scan, UserError):
            raise scan
        return scan, named

    def facts(self) -> Iterator[str]:
        """Yield how many scans of each kind there are, with the least and the largest size and the most frames."""
        sound = [scan for scan in self.scans.values() if isinstance(scan, Scan)]
        for kind in sorted({scan.kind for scan in sound}):
            scans = [scan for scan in sound if scan.kind == kind]
            sizes = sorted({scan.size for scan in scans}, key=lambda size: (size[0] * size[1], size))
            span = " to ".join(f"{width}x{height}" for height, width in dict.fromkeys([sizes[0], sizes[-1]]))
            text = f"{counted(len(scans), f'{kind} file')} of {span} pixels"
            most = max(scan.frames for scan in scans)
            if most > 1:
                text += f", with up to {most} frames"
            yield text


def _exploded(rows: pd.DataFrame, frames: Mapping[str, list[str]]) -> pd.DataFrame:
    """Return rows with a row for each of the `frames` that a path stands for."""
    chosen = rows["path"].map(lambda cell: frames.get(cell, [cell]))
    exploded = rows.assign(path=chosen).explode("path")
    if "mask" not in rows:
        return exploded
    cells = zip(exploded["mask"], rows["path"].repeat(chosen.map(len).tolist()), exploded["path"], strict=True)
    return exploded.assign(mask=[_slice_of(mask, cell, path) for mask, cell, path in cells])


def _slice_of(mask: Any, cell: str, path: str) -> Any:
    """Return the mask of a frame `path` that a cell stands for: that slice, where both files are volumes."""
    if path != cell and isinstance(mask, str) and is_nifti(mask) and is_nifti(cell):
        return mask + path.removeprefix(cell)
    return mask


def _chosen(scan: Scan, cell: str, named: int | None, slices: Slices | None) -> Iterator[str]:
    """Yield the paths of the images that a cell stands for."""
    if named is not None or slices is None or scan.frames == 1:
        yield cell
        return
    numbers: Iterable[int] = range(1, scan.frames + 1)
    if slices != "all":
        # places are rounded to the nearest frame, and a frame is taken once
        numbers = dict.fromkeys(1 + int(place * (scan.frames - 1) + 0.5) for place in slices)
    yield from (f"{cell}#{number}" for number in numbers)
