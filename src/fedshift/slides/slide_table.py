"""The table of slides: which files they are, whose, and what is known about them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UserError, require_none
from ..datasets._own_rows import empty_cells, read_rows
from .pyramid import LEAST, MOST
from .squares import CLASSES

if TYPE_CHECKING:
    import pandas as pd

NEEDED = ("slide", "site", "patient")
KNOWN = (*NEEDED, "annotation", "mpp", "label")
WRITTEN = ("path", "label", "site", "patient", "slide", "x", "y", "mpp", "tumour_fraction", "tissue_fraction", "weight")
"""Columns of the table of patches, before the further columns of the table of slides."""
RESERVED = (*WRITTEN, "sample", "base")
"""Names that a further column cannot have: the table of patches, or the dataset that reads it, has such a column."""


@dataclass(frozen=True)
class Slide:
    """A row of the table of slides. `where` is its place, and `further` holds its further columns."""

    where: str
    path: Path
    annotation: Path | None
    site: str
    patient: str
    mpp: float | None
    label: str
    further: dict[str, str]

    @property
    def name(self) -> str:
        """Return the name of the slide's file, without its ending."""
        return self.path.stem

    @property
    def key(self) -> str:
        """Return the name that no other slide of the table has."""
        return f"{self.site}/{self.patient}/{self.name}"


def read_slides(table: Path) -> tuple[list[Slide], list[UserError]]:
    """Return the rows of a table of slides whose cells can be used, and an error for each fault of the others.

    Raises UserErrors for an unreadable file, and one without rows or without a column that it needs.
    """
    rows = read_rows(table, NEEDED, "list each slide in a row")
    further = [name for name in map(str, rows) if name not in KNOWN]
    require_none(
        UserError(table, f"the column {name!r} has a name that the table of patches needs", "rename it")
        for name in further
        if name in RESERVED
    )
    faults = [fault for name in NEEDED for fault in empty_cells(table, rows[name])]
    slides = list[Slide]()
    for line, cells in _filled(rows):
        where = f"{table}, {rows.index.name} {line}"
        wrong = list(_faults(where, cells))
        faults += wrong
        if not wrong:
            slides.append(_slide(where, table.parent, cells, further))
    return slides, [*faults, *_repeated(slides)]


def _filled(rows: pd.DataFrame) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows that have a slide, a site and a patient: the line of each, and its cells; empty ones are ''."""
    complete = rows[rows[list(NEEDED)].notna().all(axis=1)]
    for line, cells in zip(complete.index, complete.fillna("").to_dict("records"), strict=True):
        yield int(line), {str(name): str(cell) for name, cell in cells.items()}


def _faults(where: str, cells: dict[str, str]) -> Iterator[UserError]:
    for column in ("site", "patient"):
        if any(mark in cells[column] for mark in "/\\\0") or cells[column].startswith("."):
            problem = f"{column} {cells[column]!r} cannot be the name of a folder"
            yield UserError(where, problem, "leave out / and \\, and dots in front")
    size = cells.get("mpp", "")
    if size and not LEAST <= _number(size) <= MOST:
        problem = f"mpp {size!r} is not a number of micrometres between {LEAST} and {MOST:.0f}"
        yield UserError(where, problem, "write a number such as 0.25, or nothing if the slide's file has it")
    label = cells.get("label", "")
    if label not in ("", *CLASSES):
        yield UserError(where, f"label {label!r} is none of {', '.join(CLASSES)}", "write one of them, or nothing")
    elif label != "normal" and not cells.get("annotation"):
        problem = "has no annotation, and no label normal: nobody knows which of its tissue is tumour"
        yield UserError(where, problem, "name its annotation, or write label normal if it is free of tumour")


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _slide(where: str, folder: Path, cells: dict[str, str], further: Sequence[str]) -> Slide:
    annotation = cells.get("annotation", "")
    mpp = cells.get("mpp", "")
    return Slide(
        where,
        folder / cells["slide"],
        folder / annotation if annotation else None,
        cells["site"],
        cells["patient"],
        float(mpp) if mpp else None,
        cells.get("label", ""),
        {name: cells[name] for name in further},
    )


def _repeated(slides: Sequence[Slide]) -> Iterator[UserError]:
    """Yield an error for each slide whose file, or whose name beside its site and patient, is in an earlier row."""
    files = dict[Path, str]()
    keys = dict[str, str]()
    for slide in slides:
        first = files.setdefault(slide.path.resolve(), slide.where)
        if first != slide.where:
            yield UserError(slide.where, f"{slide.path} is the slide of {first}", "list it once")
        elif (first := keys.setdefault(slide.key.casefold(), slide.where)) != slide.where:
            yield UserError(slide.where, f"site, patient and file name {slide.key} are those of {first}", "rename one")
