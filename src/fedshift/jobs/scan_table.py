"""The table of a folder of scans: a row for each file, with pseudonyms for patients and no other names."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from ..core.console import Progress
from ..core.errors import UserError, require_none, shortened
from ..core.spelling import PLACEHOLDERS, counted, folded
from ..io.dicom import CODES, DEVICE, PERSON, SERIES, read_header
from ..io.images import NIFTI, PLAIN
from ..io.pseudonyms import Pseudonyms
from ..io.tables import read_texts, write_table
from ..io.text import FORMULA
from .image_files import images_of

if TYPE_CHECKING:
    from pydicom import Dataset

COLUMNS = ("path", "label", "site", "patient", "series", *CODES, *DEVICE)
"""Columns of the table that is written."""
KIND = ("SOPClassUID", "SOPInstanceUID")
"""Elements that say what a file is; they are never written."""
CODE = re.compile(r"[A-Z0-9_ ]{1,16}")
"""What DICOM allows for a code (its value representation CS)."""
IMAGES = ("Enhanced US Volume Storage",)
"""Classes of images of which the name does not say it."""
LOCALISER = "left out: localisers, since there are other images"
SCREENSHOT = "left out: secondary captures, such as screenshots, since there are other images"
KEYS = ("patient", "study")
"""Columns of which a table of labels has one: the number of a patient; the UID or the accession number of a study."""
SOUND = "get it again, or leave it out"


@dataclass
class Listed:
    """The rows of a table, and counts of what a reader should know.

    Attributes
    ----------
    rows : cells of COLUMNS
    counts : how many files have a trait, in the words of the report
    faults : files that cannot be read
    unused : number of labels that belong to no file
    """

    rows: list[tuple[str, ...]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[UserError] = field(default_factory=list)
    unused: int = 0

    def report(self) -> Iterator[str]:
        """Yield what was listed and what was not, a line each."""
        patients = len({row[3] for row in self.rows} - {""})
        labelled = sum(bool(row[1]) for row in self.rows)
        yield f"{len(self.rows):,} files of {patients:,} patients; {labelled:,} have a label"
        if self.unused:
            yield f"{self.unused:,} labels have a patient or a study that no file has"
        for trait, number in self.counts.items():
            yield f"{counted(number, 'file')} {trait}"
        yield from map(str, shortened(self.faults, len(self.faults), "other files"))


def write_scan_table(folder: Path, site: str, out: Path, key: Path, labels: Path | None = None) -> Listed:
    """Write the table of all scans and images below a folder, and return what is in it.

    `key` is the file with the secret of the pseudonyms, which is made if it is not there. `labels` is a CSV with the
    columns label, and patient or study. Of DICOM headers, what DEVICE and CODES name is written; the numbers of patient
    and series become pseudonyms. The patient of other files is the first folder below `folder`, or a volume's own name.
    Raises UserError for a table that is there already, a folder without scans, and faults of `labels`.
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
        raise UserError(folder, "holds neither scans nor images", f"DICOM files, {', '.join((*NIFTI, *PLAIN))}")
    pseudonyms = Pseudonyms.read(key)
    listed = Listed()
    seen, found = set[str](), list[_Row]()
    with Progress("read", len(paths), "headers") as bar:
        for path in paths:
            try:
                found += _row(folder, path, listed.counts, labelled, seen)
            except UserError as fault:
                listed.faults.append(fault)
            bar.update(1)
    if any(not row.beside for row in found):
        listed.counts.update(row.beside for row in found if row.beside)
        found = [row for row in found if not row.beside]
    for row in found:
        # a letter in front, or a spreadsheet would take 123e45 for a number
        patient = f"p{pseudonyms('patient', folded(row.patient))}" if row.patient else ""
        series = f"s{pseudonyms('series', row.series)}" if row.series else ""
        listed.rows.append((_from(out, row.file), row.label, site, patient, series, *row.device))
    if not listed.rows:
        raise UserError(folder, "holds no image that can be read", next(listed.report()))
    if labelled:
        listed.unused = len(labelled.labels.keys() - labelled.used)
    write_table(out, pd.DataFrame(listed.rows, columns=list(COLUMNS)))
    return listed


class _Row(NamedTuple):
    """A file as its header tells it, before the numbers of patient and series become pseudonyms.

    `device` are the cells of CODES and DEVICE; `beside` says what the file is where it is meant beside others.
    """

    file: Path
    label: str = ""
    patient: str = ""
    series: str = ""
    device: tuple[str, ...] = ("",) * len(CODES | DEVICE)
    beside: str = ""


def other_than_image(header: Dataset) -> str:
    """Return what a DICOM file with pixels holds in the place of an image, such as a dose; empty for an image.

    Classes of other makers than the standard are taken for images, since no name says what they are.
    """
    name = _class(header)
    standard = name.endswith("Storage") and name not in IMAGES
    return name if standard and "Image Storage" not in name else ""


def _is_beside(header: Dataset) -> str:
    """Return what an image is that others are meant beside: a screenshot or a localiser; empty for others."""
    if "LOCALIZER" in [str(part) for part in header.get("ImageType") or ()]:
        return LOCALISER
    return SCREENSHOT if "Secondary Capture" in _class(header) else ""


def _class(header: Dataset) -> str:
    """Return the standard's name of the class of a file; empty where the standard does not know it."""
    from pydicom.uid import UID

    uid = UID(_text(header, "SOPClassUID"))
    return "" if uid.name == uid else str(uid.name)


def _row(folder: Path, path: str, counts: Counter[str], labels: _Labels | None, seen: set[str]) -> Iterator[_Row]:
    """Yield the row of a file; nothing for a DICOM file without an image, or a copy.

    `seen` holds the SOPInstanceUIDs so far.
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
    if other := other_than_image(header):
        counts[f"left out: {other}, no image"] += 1
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
    yield _Row(file, label, patient, _text(header, SERIES), tuple(device), _is_beside(header))


def _text(header: Dataset, element: str) -> str:
    """Return the text of an element in one line; empty where there is none."""
    return " ".join(str(header.get(element) or "").replace("\0", " ").split())


def _code(header: Dataset, element: str) -> str:
    """Return the codes of an element, such as `ORIGINAL/PRIMARY/AXIAL`; empty where one of them is no code."""
    value = header.get(element) or ""
    codes = [value] if isinstance(value, str) else [str(code) for code in value]
    return "/".join(codes) if all(CODE.fullmatch(code) for code in codes) else ""


def _from(out: Path, file: Path) -> str:
    """Return the path of a file from the table. A spreadsheet does not take it for a formula."""
    path = Path(os.path.relpath(file, out.parent)).as_posix()
    return f"./{path}" if FORMULA.match(path) else path


class _Labels:
    """Labels of patients or studies, from a CSV. No message repeats a cell: they name people."""

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
        """Return the label of an image; empty where the table has none."""
        names = (patient,) if self.key == "patient" else (study, accession)
        for name in map(folded, names):
            if name in self.labels:
                self.used.add(name)
                return self.labels[name]
        return ""
