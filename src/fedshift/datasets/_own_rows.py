"""The table of a user's own images: reading, checks, and one row for each chosen frame of a scan."""

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
"""Which frames of a file are read: all, or positions from 0 (the first frame) to 1 (the last one)."""
LOST = "no such image"
EMPTY = "the file is empty"
FILE_FAULTS = (LOST, EMPTY)
"""Faults of an image file that are found without reading it."""
Role = Literal["path", "mask", "valid", "label", "site", "patient", "spacing_y", "spacing_x"]
ROLES = get_args(Role)
"""Columns of a table with a fixed meaning. The setting `columns` of a study may give them other names."""
MASKS = ("mask", "valid")
"""Columns with paths of masks: of the structures in an image, and of its field of view."""


def burnt_in_warnings(found: ScanRows) -> Iterator[str]:
    """Yield one warning if the headers of scans in `found` say that pixels show text that may identify the patient."""
    sites = found.rows["site"][found.rows["path"].isin(found.burnt_in)]
    if len(sites):
        at = ", ".join(f"{number:,} at {site}" for site, number in sites.value_counts(sort=False).items())
        yield (
            f"headers of {len(sites):,} images ({at}) say that their pixels show text which may identify the patient "
            "(BurnedInAnnotation): look at them, and cover it or leave them out"
        )


def left_out_facts(texts: pd.Series) -> Iterator[str]:
    """Yield one sentence that counts the images left out because of their labels. `texts` are these labels."""
    if len(texts):
        each = ", ".join(f"{number:,} {quoted(str(text))}" for text, number in texts.value_counts().items())
        yield f"{counted(len(texts), 'image')} left out because of the label: {each}"


def further_columns(samples: pd.DataFrame) -> tuple[str, ...]:
    """Return the columns of a table of own images that have no fixed meaning, such as the scanner."""
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

    `columns` maps a name of ROLES to the table's column that gets this name; a column that has the name already is left
    out. `needed` are columns that must exist. Raises UserError for an unreadable file, a column that appears twice, a
    row with more cells than the header, and a missing column of `columns` or `needed`; if any are needed, also for a
    table without rows, with `remedy`. With a list `faults`, errors about needed columns and about the encoding are
    appended to the list instead of raised.
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
    """Return rows with each column `columns[name]` renamed to `name`, in place of any column with that name already."""
    named = {role: headed(name) for role, name in columns.items()}
    rest = rows.drop(columns=[*{*named.values(), *named} & {*rows}])
    return rest.assign(**{role: rows[name] for role, name in named.items()})


def headed(name: str) -> str:
    """Return the name of a column in lower case and without blanks at its ends, so that `Path ` is found as `path`."""
    return name.strip().casefold()


def label_texts(cells: pd.Series) -> pd.Series:
    """Return labels as text; `1.0` and `1,0`, as spreadsheets write whole numbers, are `1`. Empty cells stay empty."""
    texts = {cell: re.sub(r"^(\d+)[.,]0$", r"\1", str(cell).strip()) for cell in cells.dropna().unique()}
    return cells.map(texts).astype(object).where(cells.notna(), None)


def place(table: Path, wrong: pd.Series) -> str:
    """Return the table and the line of the first row where `wrong` is True, such as `images.csv, line 7`."""
    return f"{table}, {wrong.index.name} {wrong.idxmax()}"


def empty_cells(table: Path, cells: pd.Series) -> list[UserError]:
    """Return a list of one error if the column `cells` has empty cells, else an empty list."""
    empty = cells.isna()
    if not empty.any():
        return []
    return [UserError(place(table, empty), f"{cells.name} is empty{in_more_rows(int(empty.sum()))}", "fill it in")]


def in_more_rows(rows: int) -> str:
    """Return the end of an error message about one row that says in how many more rows the same error occurs.

    `rows` counts all such rows, the first one included. Return '' for one row.
    """
    if rows < 2:
        return ""
    return ", as in one more row" if rows == 2 else f", as in {rows - 1:,} more rows"


def file_faults(
    table: Path, folder: Path, paths: pd.Series, remedy: str, kinds: Sequence[str] = FILE_FAULTS
) -> list[UserError]:
    """Return an error for each path, relative to `folder`, whose file has a fault of one of the `kinds`.

    `paths` is a column of the table. `remedy` says what to do about a missing or an empty file. All paths written with
    the backslashes of Windows share one error.
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
    """Return LOST or EMPTY for the file that a cell names, relative to `folder`; '' if the file is sound."""
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
    """Return an error for each row whose patient appears in an earlier row too. `patients` is a column of the table."""
    remedy = "correct it, or remove dataset.one_image_a_patient"
    return _repeated(
        table, patients, lambda row, first: f"patient {quoted(patients[row])} is that of {first} too", remedy
    )


def _repeated(table: Path, values: pd.Series, problem: Callable[[int, str], str], remedy: str) -> list[UserError]:
    """Return an error for each row whose value appears in an earlier row too.

    `problem(row, first)` words the error, from the row's number and the place of the value's first row.
    """
    again = values[values.duplicated() & values.notna()]

    def fault(row: int) -> UserError:
        first = place(table, values == values[row])
        return UserError(f"{table}, {values.index.name} {row}", problem(row, first), remedy)

    return shortened(map(fault, again.index), len(again), table)


def _other_name(file: Path) -> str:
    """Return a remedy for a missing image: the file in its folder whose name differs in case, spaces or Unicode form.

    For a path with backslashes, it is to write / between folders. Return '' if the folder has no such file.
    """
    if "\\" in str(file):
        return "write / between folders"
    with contextlib.suppress(OSError, ValueError):
        names = [other.name for other in file.parent.iterdir() if folded(other.name) == folded(file.name)]
        if names:
            return f"its folder has {quoted(min(names))}: spaces, case and the Unicode form count"
    return ""


def repeated_images(table: Path, paths: pd.Series) -> list[UserError]:
    """Return an error for each row whose image is listed in an earlier row too, even as `a.png` and `./a.png`.

    Such an image could be in the training and in the test data.
    """
    import pandas as pd

    folder = table.parent.absolute()
    absolute = [os.path.normpath(os.path.join(folder, path)) for path in paths.tolist()]  # noqa: PTH118 - many, as above
    files = pd.Series(absolute, index=paths.index, dtype=object)
    return _repeated(table, files, lambda row, first: f"{paths[row]!r} is the image of {first}", "list it once")


@dataclass(frozen=True)
class ScanRows:
    """The rows of a table, with one row for each chosen frame of a scan, and findings in the headers of scans.

    Attributes
    ----------
    rows : the rows; `path` names the frame where `slices` chose it, and `mask` the same slice of a mask volume
    faults : each problem once: the index label of the first row that has it, the error, and the number of such rows
    facts : a line for each format of scans: the number of files, and their sizes
    burnt_in : paths of images whose header says that their pixels show text which may identify the patient
    left_out : a sentence about the images that are left out because of their labels, if there are any
    """

    rows: pd.DataFrame
    faults: tuple[tuple[int, UserError, int], ...]
    facts: tuple[str, ...]
    burnt_in: frozenset[str]
    left_out: tuple[str, ...] = ()


def scan_rows(rows: pd.DataFrame, folder: Path, slices: Slices | None, reading: Reading, remedy: str) -> ScanRows:
    """Read the header of each scan in the column path, relative to `folder`, and make a row for each chosen frame.

    `remedy` says what to do about a scan that cannot be read. A row whose file has a fault stays as it is: reading its
    image raises the error.
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
    """A cache of opened scans, or of the errors that opening them raised, by file: each header is read once."""

    folder: Path
    reading: Reading
    remedy: str
    scans: dict[Path, Scan | UserError] = field(default_factory=dict)

    def read(self, cell: str) -> tuple[Scan | None, int | None]:
        """Return the scan that a cell such as `cine.dcm#12` names, and the number of the frame, None without one.

        The scan is None for a file that is no scan, is missing or is empty. Raises UserError for a damaged header.
        """
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
        """Yield a line for each format of scans: number of files, smallest and largest size, most frames of a file."""
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
    """Return the rows with one row for each frame of a scan. `frames` maps a cell of the column path to its frames."""
    chosen = rows["path"].map(lambda cell: frames.get(cell, [cell]))
    exploded = rows.assign(path=chosen).explode("path")
    if "mask" not in rows:
        return exploded

    def slice_of(mask: Any, cell: str, path: str) -> Any:
        """Return the path of a frame's mask: the same slice of `mask` if `mask` and `cell` are both NIfTI volumes."""
        volumes = path != cell and isinstance(mask, str) and is_nifti(mask) and is_nifti(cell)
        return mask + path.removeprefix(cell) if volumes else mask

    cells = rows["path"].repeat(chosen.map(len).tolist())
    return exploded.assign(mask=[*map(slice_of, exploded["mask"], cells, exploded["path"])])


def _chosen(scan: Scan, cell: str, named: int | None, slices: Slices | None) -> Iterator[str]:
    """Yield the paths of the frames chosen by `slices`, such as `brain.nii.gz#57`.

    Yield the cell itself if it names a frame (`named`), if the scan has one frame, or without `slices`.
    """
    if named is not None or slices is None or scan.frames == 1:
        yield cell
        return
    numbers: Iterable[int] = range(1, scan.frames + 1)
    if slices != "all":
        # places are rounded to the nearest frame, and a frame is taken once
        numbers = dict.fromkeys(1 + int(place * (scan.frames - 1) + 0.5) for place in slices)
    yield from (f"{cell}#{number}" for number in numbers)
