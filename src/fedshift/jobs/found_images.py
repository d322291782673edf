"""Inspection of a user's folder or table of images before there is a study: columns, labels, sites, sizes, masks.

A folder of scans becomes a table with a row for each file, with pseudonyms for patients and no other names.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from ..core.console import track
from ..core.errors import UserError, did_you_mean, require_none, shortened
from ..core.spelling import PLACEHOLDERS, counted, folded
from ..datasets._own_rows import MASKS, ROLES, renamed
from ..io.dicom import CODES, DEVICE, PERSON, SERIES, read_header
from ..io.identity import Pseudonyms
from ..io.images import NIFTI, PLAIN, is_scan, located, open_scan
from ..io.scan import Reading
from ..io.tables import read_texts, write_table
from ..io.text import FORMULA
from .image_files import images_of

if TYPE_CHECKING:
    from pydicom import Dataset


COLUMNS = ("path", "label", "site", "patient", "series", *CODES, *DEVICE)
"""Columns of the table that `write_scan_table` writes."""
KIND = ("SOPClassUID", "SOPInstanceUID")
"""Header elements with the class and the UID of a DICOM file; they are never written."""
CODE = re.compile(r"[A-Z0-9_ ]{1,16}")
"""Pattern of what DICOM allows for a code (its value representation CS)."""
IMAGES = ("Enhanced US Volume Storage",)
"""DICOM classes of images whose names do not say that they are images."""
LOCALISER = "left out: localisers, since there are other images"
SCREENSHOT = "left out: secondary captures, such as screenshots, since there are other images"
KEYS = ("patient", "study")
"""Columns of which a table of labels has exactly one: the id of a patient; the UID or the accession number of a
study."""
SOUND = "get it again, or leave it out"


@dataclass
class Listed:
    """The rows of a table of scans, each with a cell for each of COLUMNS, and what its reader should know.

    `counts` maps a trait of files, in the words of the report, to the number of files that have it; `faults` names
    files that cannot be read; and `unused` is the number of labels that belong to no file.
    """

    rows: list[tuple[str, ...]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[UserError] = field(default_factory=list)
    unused: int = 0

    def report(self) -> Iterator[str]:
        """Yield the lines of a report on the table: numbers of files, patients and labels, and what was left out."""
        patients = len({row[3] for row in self.rows} - {""})
        labelled = sum(bool(row[1]) for row in self.rows)
        yield f"{len(self.rows):,} files of {patients:,} patients; {labelled:,} have a label"
        if self.unused:
            yield f"{self.unused:,} labels have a patient or a study that no file has"
        for trait, number in self.counts.items():
            yield f"{counted(number, 'file')} {trait}"
        yield from map(str, shortened(self.faults, len(self.faults), "other files"))


def write_scan_table(folder: Path, site: str, out: Path, key: Path, labels: Path | None = None) -> Listed:
    """Write a table of all scans and images below a folder to `out`, and return its rows and a report.

    `key` is the file with the secret of the pseudonyms, which is made if it does not exist. `labels` is a CSV with the
    columns label, and patient or study. Of DICOM headers, the elements of DEVICE and CODES are written; the ids of
    patient and series become pseudonyms. The patient of other files is the name of the first folder below `folder`, or
    a volume's own name. Raises UserError if `out` exists, for a folder without scans, and for faults of `labels`.
    """
    if out.exists() or out.is_symlink():
        raise UserError(out, "is there already, perhaps with labels", "name a file that is not there, or move this one")
    if not folder.is_dir():
        raise UserError(folder, "no such folder")
    if not site.strip():
        raise UserError("--site", "is empty", "name the hospital or the scanner, as the study will")
    labelled = _Labels(labels) if labels else None
    paths = sorted(images_of(folder))
    if not paths:
        raise UserError(
            folder, "holds neither scans nor images", f"name a folder with DICOM files, {', '.join((*NIFTI, *PLAIN))}"
        )
    pseudonyms = Pseudonyms.read(key)
    listed = Listed()
    seen, found = set[str](), list[_Row]()
    for path in track(paths, "read", len(paths), "headers"):
        try:
            found += _row(folder, path, listed.counts, labelled, seen)
        except UserError as fault:
            listed.faults.append(fault)
    if any(not row.beside for row in found):
        listed.counts.update(row.beside for row in found if row.beside)
        found = [row for row in found if not row.beside]
    for row in found:
        # a letter in front, or a spreadsheet would take 123e45 for a number
        patient = f"p{pseudonyms('patient', folded(row.patient))}" if row.patient else ""
        series = f"s{pseudonyms('series', row.series)}" if row.series else ""
        path = Path(os.path.relpath(row.file, out.parent)).as_posix()
        if FORMULA.match(path):  # a spreadsheet would run it
            path = f"./{path}"
        listed.rows.append((path, row.label, site, patient, series, *row.device))
    if not listed.rows:
        raise UserError(folder, "holds no image that can be read", next(listed.report()))
    if labelled:
        listed.unused = len(labelled.labels.keys() - labelled.used)
    write_table(out, pd.DataFrame(listed.rows, columns=list(COLUMNS)))
    return listed


class _Row(NamedTuple):
    """A file as its header describes it, before the ids of patient and series become pseudonyms.

    `device` are the cells of CODES and DEVICE. `beside` says why the file is left out if there are other images, such
    as a screenshot; "" for an ordinary image.
    """

    file: Path
    label: str = ""
    patient: str = ""
    series: str = ""
    device: tuple[str, ...] = ("",) * len(CODES | DEVICE)
    beside: str = ""


def _class(header: Dataset) -> str:
    """Return the DICOM standard's name of a file's class, such as CT Image Storage; "" for a class of another maker."""
    from pydicom.uid import UID

    uid = UID(_text(header, "SOPClassUID"))
    return "" if uid.name == uid else str(uid.name)


def _row(folder: Path, path: str, counts: Counter[str], labels: _Labels | None, seen: set[str]) -> Iterator[_Row]:
    """Yield the row of the file `path` below `folder`; none for a file without an image, and for a copy.

    `counts` counts traits of files, for the report, and `seen` holds the SOPInstanceUIDs of earlier files: both are
    updated.
    """
    file = folder / path
    name = file.name.lower()
    if name.endswith((*PLAIN, *NIFTI)):
        above, _, _ = path.rpartition("/")
        patient = above.partition("/")[0]
        if not patient and name.endswith(NIFTI):
            patient = file.name[: -len(".nii.gz" if name.endswith(".gz") else ".nii")]
        if not patient:
            counts["in no folder of a patient: the cell patient is empty"] += 1
        yield _Row(file, labels.of(patient=patient) if labels else "", patient)
        return
    wanted = ("Rows", "BurnedInAnnotation", SERIES, *KIND, *PERSON, *CODES.values(), *DEVICE.values())
    header = read_header(file, wanted, SOUND)
    if "Rows" not in header:
        counts["left out: without an image (a report, a plan, an index)"] += 1
        return
    kind = _class(header)
    # Classes of other makers than the standard are taken for images, since no name says what they are.
    if kind.endswith("Storage") and "Image Storage" not in kind and kind not in IMAGES:
        counts[f"left out: {kind}, no image"] += 1
        return
    uid = _text(header, "SOPInstanceUID")
    if uid and uid in seen:
        counts["left out: copies of others, with the same SOPInstanceUID"] += 1
        return
    seen.add(uid)
    patient, study, accession = (_text(header, element) for element in PERSON)
    if folded(patient) in PLACEHOLDERS:
        counts["whose patient's number stands for nobody (unknown, 0, ...): the cell patient is empty"] += 1
        patient = ""
    elif not patient:
        counts["without a patient's number: the cell patient is empty"] += 1
    elif patient.casefold() in path.casefold():
        counts["with the patient's number in the path, which the table holds: rename them before you share it"] += 1
    if header.get("BurnedInAnnotation") == "YES":
        counts["with text in the pixels that may identify the patient (BurnedInAnnotation): look at them"] += 1
    label = labels.of(patient=patient, study=study, accession=accession) if labels else ""
    device = [_code(header, element) for element in CODES.values()]
    device += [_text(header, element) for element in DEVICE.values()]
    beside = SCREENSHOT if "Secondary Capture" in kind else ""
    if "LOCALIZER" in [str(part) for part in header.get("ImageType") or ()]:
        beside = LOCALISER
    yield _Row(file, label, patient, _text(header, SERIES), tuple(device), beside)


def _text(header: Dataset, element: str) -> str:
    """Return the text of a header's element in one line; "" if the header has none."""
    return " ".join(str(header.get(element) or "").replace("\0", " ").split())


def _code(header: Dataset, element: str) -> str:
    """Return the codes of a header's element, such as `ORIGINAL/PRIMARY/AXIAL`; "" if one of them is no code."""
    value = header.get(element) or ""
    codes = [value] if isinstance(value, str) else [str(code) for code in value]
    return "/".join(codes) if all(CODE.fullmatch(code) for code in codes) else ""


class _Labels:
    """Labels of patients or studies, from a user's table. No message repeats a cell, since cells name people."""

    def __init__(self, table: Path) -> None:
        rows = read_texts(table, lambda name: name.strip().casefold())
        keys = [name for name in KEYS if name in rows]
        if "label" not in rows or len(keys) != 1:
            problem = f"needs the column label and one of {' and '.join(KEYS)}"
            raise UserError(table, problem, f"it has {', '.join(map(str, rows))}")
        self.key = keys[0]
        rows = rows[rows[self.key].notna() & rows["label"].notna()]
        names = rows[self.key].map(folded)
        twice = names[names.duplicated()]
        require_none(
            UserError(f"{table}, {rows.index.name} {line}", f"its {self.key} stands in an earlier row", "list it once")
            for line in twice.index
        )
        self.labels = dict(zip(names, rows["label"].str.strip(), strict=True))
        self.used = set[str]()

    def of(self, patient: str = "", study: str = "", accession: str = "") -> str:
        """Return the label of an image by the ids of its patient or study; "" if the table has none."""
        names = (patient,) if self.key == "patient" else (study, accession)
        for name in map(folded, names):
            if name in self.labels:
                self.used.add(name)
                return self.labels[name]
        return ""


WORDS: Mapping[str, Sequence[str]] = {
    "path": ("path", "pfad", "filename", "file", "datei", "image", "bild", "img"),
    "mask": ("mask", "maske", "segmentation", "annotation"),
    "valid": ("valid", "fov", "field of view", "sichtfeld"),
    "site": (
        *("site", "hospital", "klinik", "clinic", "center", "centre", "zentrum", "institution", "institut", "standort"),
        *("krankenhaus", "haus", "lab", "scanner", "device", "manufacturer"),
    ),
    "patient": ("patient", "pat", "subject", "person", "proband", "case", "fall", "pid"),
    "label": (
        *("label", "class", "klasse", "diagnosis", "diagnose", "befund", "target", "histology", "histologie"),
        *("finding", "grade", "outcome", "dx"),
    ),
}
"""Words in the names of columns, in English and German, by what the column holds; the first are the surest."""
MASK_WORDS = ("mask", "masks", "maske", "masken", "seg", "segmentation", "labels", "manual", "gt", "annotation")
"""Names of folders, and ends of names of files, that hold masks."""
IMAGE_WORDS = ("image", "images", "bild", "bilder", "img")
"""Names of folders that hold the images to which masks belong."""
FIELD_WORDS = ("fov", "field_of_view")
"""Names of folders that hold masks of the field of view."""
MOST_CLASSES = 20
"""A column or a level of folders with more values holds no classes, and one with more than MOST_SITES no sites."""
MOST_SITES = 50
LOOKED_AT = 200
"""The most files whose size is read, evenly spread over the table, and the most folders that are searched for
images."""
MASKS_READ = 30
"""The most masks whose values are read."""
FALLBACK = "windows-1252"
"""The encoding of a CSV that is not UTF-8: that of Excel in western Europe and America."""
Choose = Callable[[str, Sequence[str], str], str]
"""Function that asks the user a question: it takes the question, the possible answers and the default, and returns the
answer, or the default if nobody can be asked."""


@dataclass
class Found:
    """What was found in a user's table of images, or in a folder of images, which has then been listed in a table.

    `rows` are the table's, with the names of ROLES for columns that have a meaning, such as site; `columns` maps these
    roles to the table's own names where they differ. `folder` is the folder to which paths are relative, if it is not
    the table's. `told` are lines for the user. `sides` are the lengths of the shorter sides of some images, in
    ascending order, `kinds` the number of files with each ending, and `colours` says whether one is in colours. `masks`
    are the values in masks.
    """

    table: Path
    rows: pd.DataFrame
    columns: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    encoding: str = "utf-8"
    sides: list[int] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    colours: bool = False
    masks: tuple[int | str, ...] = ()
    told: list[str] = field(default_factory=list)

    @property
    def base(self) -> Path:
        """The folder to which paths in the table are relative."""
        return self.folder or self.table.parent


def find(source: Path, given: Mapping[str, str], choose: Choose) -> Found:
    """Inspect a user's table of images, and find the columns with paths, sites, patients, labels and masks.

    `given` maps such a role to the column that the user has named, and `choose` asks the user about the others. Raises
    UserError for a table that cannot be read, and if no column names images or sites.
    """
    rows, encoding = _read(source)
    columns = _named_columns(rows, given, source)
    base = _images_below(rows, columns, source.parent)
    for role in ("path", "site", "patient", "label"):
        if role not in columns and not (role == "label" and "mask" in columns):
            _ask_column(role, rows, columns, source, choose)
    wanted = {role: head for role, head in columns.items() if head.strip().casefold() != role}
    named = renamed(rows.rename(columns=lambda head: head.strip().casefold()), columns)
    found = Found(source, named, wanted, None if base == source.parent else base, encoding)
    coded = "" if encoding == "utf-8" else f"; not UTF-8, read as {encoding}: look at letters such as ä and é"
    found.told.append(f"{source}: {len(rows):,} rows, {len(rows.columns)} columns{coded}")
    _look(found)
    for role in ROLES:
        if role in columns:
            found.told.append(f"  {role:8} is column {columns[role]!r}: {_values(found.rows[role], role)}")
    for head in rows:
        if head not in columns.values():
            found.told.append(f"  kept     column {head!r}: {_values(rows[head], '')}")
    return found


def _read(source: Path) -> tuple[pd.DataFrame, str]:
    """Return the rows of a table under the names of its columns, and the encoding of a CSV: UTF-8, or else FALLBACK."""
    try:
        return read_texts(source, str.strip), "utf-8"
    except UserError as error:
        if isinstance(error.__cause__, UnicodeDecodeError):
            return read_texts(source, str.strip, FALLBACK), FALLBACK
        raise


def _named_columns(rows: pd.DataFrame, given: Mapping[str, str], source: Path) -> dict[str, str]:
    """Return the names of columns by role, such as site: those that are `given`, and those that names and cells reveal.

    Raises UserError for a given column that the table does not have.
    """
    columns = dict[str, str]()
    every = [str(head) for head in rows]
    for role, name in given.items():
        heads = [head for head in every if folded(head) == folded(name)]
        if not heads:
            raise UserError(source, f"no column {name!r}", did_you_mean(name, every))
        columns[role] = heads[0]
    files = [head for head in every if head not in columns.values() and _names_files(rows[head])]
    # whole words first: label is no lab
    for whole, role in itertools.product((True, False), ("path", "mask", "valid", "label", "patient", "site")):
        free = [head for head in (files if role in ("path", *MASKS) else every) if head not in columns.values()]
        if role in columns or not free:
            continue
        ranks = {head: _rank(head, role, whole) for head in free}
        best = min(free, key=ranks.__getitem__)
        if math.isfinite(ranks[best]) or (role == "path" and len(free) == 1 and not whole):
            columns[role] = best
    return columns


def _rank(head: str, role: str, whole: bool) -> float:
    """Return the rank of a column's name for a role, such as site: the lower, the surer; inf if it does not fit.

    The rank is the place of the word in WORDS. With `whole`, the word must be a whole word of the name; without, a word
    of three letters or more may be its beginning.
    """
    parts = re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", head).casefold())
    ranks = (
        number
        for number, word in enumerate(WORDS[role])
        if word in parts or (not whole and len(word) > 2 and any(part.startswith(word) for part in parts))
    )
    return min(ranks, default=math.inf)


def _names_files(cells: pd.Series) -> bool:
    """Return whether most cells look like names of image files."""
    named = cells.dropna().head(LOOKED_AT).str.contains(r"\.[A-Za-z]\w{1,4}(?:\.gz)?(?:#\d+)?$", regex=True)
    return bool(named.mean() > 0.5)  # False for no cells


def _ask_column(role: str, rows: pd.DataFrame, columns: dict[str, str], source: Path, choose: Choose) -> None:
    """Ask the user which column of a table holds a role, such as the site, and add it to `columns`.

    Raises UserError if no column does, and a study needs the role.
    """
    most = {"site": MOST_SITES, "label": MOST_CLASSES}.get(role, len(rows))
    free = [str(h) for h in rows if h not in columns.values() and 2 <= rows[h].nunique() <= most]
    none = "none of them"
    guess = min(free, key=lambda head: rows[head].drop_duplicates().size) if role == "label" and free else none
    answer = choose(f"which column holds the {role}?", [*free, none], guess) if free else none
    if answer != none:
        columns[role] = answer
    elif role != "patient":
        there = f"it has {', '.join(map(str, rows))}"
        raise UserError(source, f"no column seems to hold the {role}", f"{there}; say --column {role}=NAME")


def _images_below(rows: pd.DataFrame, columns: Mapping[str, str], top: Path) -> Path:
    """Return the folder to which paths in a table are relative: `top`, the table's own folder, or one below it."""
    if "path" not in columns:
        return top
    cells = rows[columns["path"]].dropna().head(20)
    folders = [top, *itertools.islice(_folders(top), LOOKED_AT)]
    hits = [sum(located(folder, cell)[0].is_file() for cell in cells) for folder in folders]
    return folders[hits.index(max(hits))]


def _folders(top: Path) -> Iterator[Path]:
    for place, names, _ in os.walk(top):
        names[:] = sorted(name for name in names if not name.startswith("."))
        yield from (Path(place) / name for name in names)


def _values(cells: pd.Series, role: str) -> str:
    """Return the content of a column in words: its values if they are few, or their number, and how many are empty."""
    counts = cells.value_counts()
    text = f"{len(counts):,} values"
    if role not in ("path", "patient", "mask") and len(counts) <= MOST_CLASSES:
        text = ", ".join(f"{value} {number:,}" for value, number in counts.items())
    empty = int(cells.isna().sum())
    return text + (f", {empty:,} empty" if empty else "")


def _look(found: Found) -> None:
    """Add to `found` endings, sizes and colours of images, values of masks, and the number of missing files.

    Only some of many files are read.
    """
    cells = found.rows["path"].dropna()
    files = [located(found.base, cell)[0] for cell in cells.unique()]
    found.kinds = Counter(_ending(file) for file in files)
    lost = sum(not file.is_file() for file in files)
    sides = found.sides
    for file in files[:: -(-len(files) // LOOKED_AT) or 1]:
        try:
            if is_scan(file):
                sides.append(min(open_scan(file, Reading(), "").size))
                continue
            with Image.open(file) as image:
                sides.append(min(image.size))
                found.colours |= image.mode not in ("1", "L", "I", "I;16", "F", "LA")
        except (OSError, ValueError, Image.DecompressionBombError):
            continue
    sides.sort()
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in found.kinds.most_common())
    seen = f"shorter side {sides[0]} to {sides[-1]} pixels" if sides else "none could be read"
    found.told.append(f"  images   {kinds}; {seen}" + (f"; {lost:,} are not there" if lost else ""))
    if found.folder:
        found.told.append(f"           their paths count from {found.folder}")
    if "mask" in found.rows:
        found.masks = _mask_values(found)


def _ending(file: Path) -> str:
    name = file.name.lower()
    return next((ending for ending in NIFTI if name.endswith(ending)), file.suffix.lower()).lstrip(".") or "no ending"


def _mask_values(found: Found) -> tuple[int | str, ...]:
    """Return the sorted values of some masks that are pictures, as numbers or as colours `#rrggbb`; () for scans."""
    from ..datasets._mask_files import mask_values

    cells = found.rows["mask"].dropna().unique()
    values = set[int]()
    coloured = False
    for cell in cells[:: -(-len(cells) // MASKS_READ) or 1]:
        file, _ = located(found.base, cell)
        with contextlib.suppress(UserError):  # the check of the study names it
            content, coloured = mask_values(file, coloured=coloured)
            values |= set(np.unique(content).tolist())
    return tuple(f"#{value:06x}" if coloured else value for value in sorted(values))


def list_folder(folder: Path, out: Path, key: Path, labels: Path | None, choose: Choose) -> Found:
    """Write the table of a folder of images or scans to `out`, and return what was found in it.

    Names of folders give site and class, and the patient if no header does; `choose` asks the user about them. `key`
    and `labels` are those of `write_scan_table`. Raises UserError as that function does, and if neither folders nor
    `labels` give a class.
    """
    listed = write_scan_table(folder, folder.resolve().name, out, key, labels)
    rows = read_texts(out)
    paths = [os.path.relpath(out.parent / path, folder) for path in rows["path"]]
    rows = rows.assign(path=[Path(path).as_posix() for path in paths])
    rows, told = _with_masks(rows)
    scans = rows["manufacturer"].notna() | rows["model"].notna()
    placed = _levels(rows, bool(scans.all()), choose)
    if "site" not in placed and rows["model"].nunique() > 1 and rows["model"].notna().all():
        placed["site"] = rows["model"]
        told.append("the scanner's model stands for the site")
    if "mask" not in rows and rows["label"].isna().all() and "label" not in placed:
        problem = "no folder names a class, and no header does"
        raise UserError(folder, problem, "give --labels CSV, with the columns label and patient, or label and study")
    # a header knows its patient better than a folder does
    patient = placed.pop("patient", pd.Series(None, index=rows.index, dtype=object))
    rows = rows.assign(**placed, patient=rows["patient"].where(scans, patient))
    if "mask" in rows:
        rows = rows.drop(columns="label")
    rows = rows.dropna(axis="columns", how="all")
    write_table(out, rows)
    found = Found(out, rows, folder=folder.resolve())
    found.told += [f"{folder}: {line}" for line in (*itertools.islice(listed.report(), 1, None), *told)]
    _look(found)
    for role in (role for role in ROLES if role in rows):
        found.told.append(f"  {role:8} {_values(rows[role], role)}")
    return found


def _with_masks(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of images, with the masks that belong to them by name, and lines on what was left out.

    Masks are those of structures (column mask) and of the field of view (column valid). Images without masks are
    dropped. Without any mask, return all rows.
    """
    kinds = rows["path"].map(_kind)
    if not kinds.eq("mask").any():
        return rows, []
    keys = rows["path"].map(_bare)
    masks = dict(zip(keys[kinds == "mask"], rows["path"][kinds == "mask"], strict=True))
    images = rows[kinds == "image"]
    images = images.assign(mask=keys[kinds == "image"].map(masks))
    told = []
    if kinds.eq("field").any():
        fields = dict(zip(keys[kinds == "field"], rows["path"][kinds == "field"], strict=True))
        images = images.assign(valid=keys[kinds == "image"].map(fields))
        number = counted(int(images["valid"].notna().sum()), "mask")
        told.append(f"{number} of the field of view: outside nothing counts")
    if alone := int(images["mask"].isna().sum()):
        told.append(f"{counted(alone, 'image')} without a mask left out")
    return images[images["mask"].notna()], told


def _kind(path: str) -> str:
    """Return the kind of a file, `image`, `mask` or `field` (of view), by the names of its folders and its own."""
    *folders, name = Path(path.casefold()).parts
    if set(folders) & set(FIELD_WORDS):
        return "field"
    ends = name.partition(".")[0].replace("-", "_").split("_")[1:]
    return "mask" if {*folders, *ends} & set(MASK_WORDS) else "image"


def _bare(path: str) -> tuple[str, ...]:
    """Return the parts of a path that an image and its masks share: without ending and words such as mask or images."""
    *folders, name = Path(path.casefold()).parts
    stem = [part for part in name.partition(".")[0].replace("-", "_").split("_") if part not in MASK_WORDS]
    kinds = (*MASK_WORDS, *IMAGE_WORDS, *FIELD_WORDS)
    return (*(folder for folder in folders if folder not in kinds), "_".join(stem))


def _levels(rows: pd.DataFrame, scans: bool, choose: Choose) -> dict[str, pd.Series]:
    """Return the site, the label and the patient of each row, by role, as far as the names of folders give them.

    `scans` says that all files are scans, whose headers know the patient. `choose` asks the user what each level of
    folders names.
    """
    folders = [Path(path).parts[:-1] for path in rows["path"]]
    depth = max(map(len, folders))
    table = pd.DataFrame([[*parts, *[""] * (depth - len(parts))] for parts in folders], index=rows.index)
    levels = [table[k] for k in range(depth) if table[k].nunique() > 1]
    if scans:
        # a level with a folder for each patient says no more than the headers
        people = rows["patient"]
        levels = [k for k in levels if k.groupby(people).nunique().max() > 1 or k.nunique() < people.nunique()]
    labelled = rows["label"].notna().any()
    if labelled:
        # nor does one whose folders hold a class each say more than the labels
        label = rows["label"]
        levels = [k for k in levels if not (k + "/" + label).nunique() == k.nunique() == label.nunique()]
    roles = _roles_of(levels, bool("mask" in rows or labelled))
    named = ["site", *([] if labelled else ["label"]), "patient", "nothing"]
    placed = dict[str, pd.Series]()
    for level, role in zip(levels, roles, strict=True):
        shown = ", ".join(map(str, level.unique()[:6]))
        answer = choose(f"what do the folders {shown}{', ...' * (level.nunique() > 6)} name?", named, role)
        if answer != "nothing" and answer not in placed:
            placed[answer] = level
    if "patient" in placed:
        # two folders of one name may be two people
        above = placed.get("site")
        placed["patient"] = placed["patient"] if above is None else above + "/" + placed["patient"]
    return placed


def _roles_of(levels: Sequence[pd.Series], known: bool) -> list[str]:
    """Return what each level of folders seems to name: site, label, patient or nothing.

    `known` says that classes are known from elsewhere. A level whose names come again below several folders of the
    first level crosses the first level: the one of the two with fewer names holds the classes, and the lower one if
    they have as many.
    """
    if not levels:
        return []
    roles = ["nothing"] * len(levels)
    counts = [level.nunique() for level in levels]
    rest = list(range(len(levels)))
    if known:
        roles[rest.pop(0)] = "site"
    else:
        crossed = [k for k in rest[1:] if levels[0].groupby(levels[k]).nunique().gt(1).mean() > 0.5]
        crossed = [k for k in crossed if counts[k] <= MOST_CLASSES]
        if crossed:
            other = crossed[0]
            label, site = (other, 0) if counts[other] <= counts[0] else (0, other)
            roles[label], roles[site] = "label", "site"
            rest = [k for k in rest if k not in (0, other)]
        elif counts[0] <= MOST_CLASSES:
            roles[rest.pop(0)] = "label"
    if rest:
        roles[rest[0]] = "patient"
    return roles
