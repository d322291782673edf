"""Rows of a table of own images: read, checked, and with a row for each chosen frame of a scan."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..core.errors import UserError, require_none, shortened
from ..core.spelling import counted, folded, quoted
from ..io.images import PLAIN, is_nifti, is_scan, located, open_scan
from ..io.scan import NO_WINDOW, Reading, Scan
from ..io.tables import read_texts
from ._base import SAMPLE_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

Slices = tuple[float, ...] | Literal["all"]
"""Places in a file with several frames, from 0 (the first frame) to 1 (the last one)."""
LOST = "no such image"
EMPTY = "the file is empty"
FILE_FAULTS = (LOST, EMPTY)
"""Faults of an image file that show without reading it."""
Role = Literal["path", "mask", "valid", "label", "site", "patient", "spacing_y", "spacing_x"]
ROLES = get_args(Role)
"""Columns of a table that have a meaning. A study may name others in their place."""
MASKS = ("mask", "valid")
"""Columns that name a mask of an image: of its structures, and of the field of view."""


def burnt_in_warnings(found: ScanRows) -> Iterator[str]:
    """Yield a warning of images whose header says that their pixels may name the patient."""
    sites = found.rows["site"][found.rows["path"].isin(found.burnt_in)]
    if len(sites):
        at = ", ".join(f"{number:,} at {site}" for site, number in sites.value_counts(sort=False).items())
        yield (
            f"headers of {len(sites):,} images ({at}) say that their pixels show text which may identify the patient "
            "(BurnedInAnnotation): look at them, and cover it or leave them out"
        )


def left_out_facts(texts: pd.Series) -> Iterator[str]:
    """Yield a sentence about the images that `labels` leaves out, given their labels."""
    if len(texts):
        each = ", ".join(f"{number:,} {quoted(str(text))}" for text, number in texts.value_counts().items())
        yield f"{counted(len(texts), 'image')} left out because of the label: {each}"


def further_columns(samples: pd.DataFrame) -> tuple[str, ...]:
    """Return the columns of a table of own images that only the user knows the meaning of, such as the scanner."""
    known = ("path", *SAMPLE_COLUMNS, *(MASKS if "mask" in samples else ()))
    return tuple(name for name in map(str, samples) if name not in known)


def read_rows(
    table: Path,
    needed: Sequence[str] = (),
    remedy: str = "",
    columns: Mapping[Any, str] = MappingProxyType({}),
    encoding: str = "utf-8",
    faults: list[UserError] | None = None,
) -> pd.DataFrame:
    """Read a table of own images: all cells as text, column names in lower case, rows numbered as by `read_texts`.

    `columns` gives columns of the table by the names that they are to have. A column that has such a name itself, and
    another is taken in its place, is left out. Raises UserError for an unreadable file, a column that appears twice, a
    row with more cells than the header, and a column of `columns` that is missing; where columns are `needed`, also for
    one of these and, with `remedy`, for a table without rows. With a list of `faults`, missing columns and another
    encoding are added to it instead.
    """
    try:
        rows = read_texts(table, headed, encoding)
    except UserError as error:
        if faults is None or not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        faults.append(error)
        rows = read_texts(table, headed, "latin-1")  # every byte is a letter of it
    header = f"it has {', '.join(map(str, rows))}"
    require_none(
        UserError(table, f"no column {name!r}, which dataset.columns.{role} names", header)
        for role, name in columns.items()
        if headed(name) not in rows
    )
    rows = renamed(rows, columns)
    missing = [UserError(table, f"no column {name!r}", header) for name in needed if name not in rows]
    if faults is None:
        require_none(missing)
    else:
        faults += missing
    if needed and rows.empty:
        raise UserError(table, "has no rows below its header", remedy)
    return rows


def renamed(rows: pd.DataFrame, columns: Mapping[Any, str]) -> pd.DataFrame:
    """Return rows of a table whose column `columns[name]` is called `name`; see `read_rows`."""
    named = {role: headed(name) for role, name in columns.items()}
    rest = rows.drop(columns=[*{*named.values(), *named} & {*rows}])
    return rest.assign(**{role: rows[name] for role, name in named.items()})


def headed(name: str) -> str:
    """Return the name under which a column is known, for its head in a table."""
    return name.strip().casefold()


def label_texts(cells: pd.Series) -> pd.Series:
    """Return labels as texts; numbers that a spreadsheet has written as decimals are whole: `1.0` and `1,0` are `1`."""
    texts = {cell: re.sub(r"^(\d+)[.,]0$", r"\1", str(cell).strip()) for cell in cells.dropna().unique()}
    return cells.map(texts).astype(object).where(cells.notna(), None)


def place(table: Path, wrong: pd.Series) -> str:
    """Return the place of the first row that `wrong` marks, such as `images.csv, line 7`."""
    return f"{table}, {wrong.index.name} {wrong.idxmax()}"


def empty_cells(table: Path, cells: pd.Series) -> list[UserError]:
    """Return an error for a column with empty cells."""
    empty = cells.isna()
    if not empty.any():
        return []
    return [UserError(place(table, empty), f"{cells.name} is empty{in_more_rows(int(empty.sum()))}", "fill it in")]


def in_more_rows(rows: int) -> str:
    """Return the end of a message about the first of some rows."""
    if rows < 2:
        return ""
    return ", as in one more row" if rows == 2 else f", as in {rows - 1:,} more rows"


def file_faults(
    table: Path, folder: Path, paths: pd.Series, remedy: str, kinds: Sequence[str] = FILE_FAULTS
) -> list[UserError]:
    """Return an error for each path, relative to `folder`, whose file has a fault of one of some kinds.

    `remedy` says what to do about a lost or an empty file.
    """
    found = {path: _file_fault(folder, path) for path in paths.unique().tolist()}
    faults = {path: problem for path, problem in found.items() if problem in kinds}

    def fault(path: str) -> UserError:
        file, _ = located(folder, path)
        better = _other_name(file) if faults[path] == LOST else ""
        return UserError(place(table, paths == path), f"{faults[path]}: {file}", better or remedy)

    # One line says it of all paths that a program of Windows has written.
    written = [path for path, problem in faults.items() if problem == LOST and "\\" in path]
    folded_lines = []
    if written:
        first = fault(written[0])
        folded_lines = [
            UserError(first.where, f"{first.what}{in_more_rows(int(paths.isin(written).sum()))}", first.remedy)
        ]
        faults = {path: problem for path, problem in faults.items() if path not in set(written)}
    return [*folded_lines, *shortened(map(fault, faults), len(faults), table)]


def _file_fault(folder: Path, cell: str) -> str:
    """Return what is wrong with the file that a cell names; an empty text if nothing."""
    # Texts, and one call of the system: pathlib would take five times as long, and there may be a million images.
    file: Path | str = located(folder, cell)[0] if "#" in cell else os.path.join(folder, cell)  # noqa: PTH118
    try:
        found = os.stat(file)  # noqa: PTH116
    except (OSError, ValueError):
        return "" if Path(file).is_file() else LOST
    if not stat.S_ISREG(found.st_mode):
        return LOST
    return "" if found.st_size else EMPTY


def shared_patients(table: Path, patients: pd.Series) -> list[UserError]:
    """Return an error for each row with the patient of an earlier one."""
    remedy = "correct it, or remove dataset.one_image_a_patient"
    return _repeated(
        table, patients, lambda row, first: f"patient {quoted(patients[row])} is that of {first} too", remedy
    )


def _repeated(table: Path, values: pd.Series, problem: Callable[[int, str], str], remedy: str) -> list[UserError]:
    """Return an error for each row whose value is in an earlier one; `problem` says it, given the row and its place."""
    again = values[values.duplicated() & values.notna()]

    def fault(row: int) -> UserError:
        first = place(table, values == values[row])
        return UserError(f"{table}, {values.index.name} {row}", problem(row, first), remedy)

    return shortened(map(fault, again.index), len(again), table)


def _other_name(file: Path) -> str:
    """Return how the name of a lost image is spelt in its folder; an empty text if it is not there at all."""
    if "\\" in str(file):
        return "write / between folders"
    with contextlib.suppress(OSError, ValueError):
        names = [other.name for other in file.parent.iterdir() if folded(other.name) == folded(file.name)]
        if names:
            return f"its folder has {quoted(min(names))}: spaces, case and the Unicode form count"
    return ""


def repeated_images(table: Path, paths: pd.Series) -> list[UserError]:
    """Return an error for each row whose image is in an earlier row, even as `a.png` and `./a.png`.

    Such an image could be in the training and in the test data.
    """
    import pandas as pd

    folder = table.parent.absolute()
    absolute = [os.path.normpath(os.path.join(folder, path)) for path in paths.tolist()]  # noqa: PTH118 - many, as above
    files = pd.Series(absolute, index=paths.index, dtype=object)
    return _repeated(table, files, lambda row, first: f"{paths[row]!r} is the image of {first}", "list it once")


@dataclass(frozen=True)
class ScanRows:
    """Rows with a row for each chosen frame of a scan, and findings in the headers of their files.

    Attributes
    ----------
    rows : the rows; `path` names the frame where `slices` chose it, and `mask` the same slice of a mask volume
    faults : problems by their first row: its label in the index, the error, and the number of rows that have it
    facts : a line for each kind of scans: how many files, and of which size
    burnt_in : paths of images whose header says that their pixels show text which may identify the patient
    left_out : a sentence about the images that are left out because of their labels, if there are any
    """

    rows: pd.DataFrame
    faults: tuple[tuple[int, UserError, int], ...]
    facts: tuple[str, ...]
    burnt_in: frozenset[str]
    left_out: tuple[str, ...] = ()


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
    for row, cell in zip(paths.index.to_list(), paths.to_list(), strict=True):
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


@dataclass
class _Headers:
    """The headers of scans, each read once."""

    folder: Path
    reading: Reading
    remedy: str
    scans: dict[Path, Scan | UserError] = field(default_factory=dict)

    def read(self, cell: str) -> tuple[Scan | None, int | None]:
        """Return the scan that a cell names, None for another file, and the number of the frame, if it names one."""
        if cell.lower().endswith(PLAIN):
            return None, None  # told by its name: a table may list a million images
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

    def slice_of(mask: Any, cell: str, path: str) -> Any:
        """Return the mask of a frame that a cell stands for: that slice, where both files are volumes."""
        volumes = path != cell and isinstance(mask, str) and is_nifti(mask) and is_nifti(cell)
        return mask + path.removeprefix(cell) if volumes else mask

    cells = rows["path"].repeat(chosen.map(len).tolist())
    return exploded.assign(mask=[*map(slice_of, exploded["mask"], cells, exploded["path"])])


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
