"""A hospital's own images: a CSV that gives path, label and site of each image."""

from __future__ import annotations

import codecs
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image, ImageOps
from pydantic import Field, field_validator, model_validator

from ..core.errors import UserError, did_you_mean, require_none, shortened
from ..core.spelling import folded, unified
from ..core.units import IGNORED, SPACING
from ..io.dicom import DicomSegments
from ..io.download import Source
from ..io.images import ANEW, is_nifti, is_scan, located, open_scan, read_image, shorter_side
from ..io.paths import one_spelling
from ..io.scan import Percentiles, Reading, Scan, Spacing, Window
from ..io.text import tell_outside
from ._base import Card, Dataset, Examined, Opened
from ._mask_files import (
    FIELD,
    field_faults,
    is_segmentation,
    mask_faults,
    read_classes,
    read_segments,
    read_slice,
    spacing_faults,
    stated_spacing,
)
from ._own_rows import (
    FILE_FAULTS,
    LOST,
    MASKS,
    Role,
    ScanRows,
    Slices,
    burnt_in_warnings,
    empty_cells,
    file_faults,
    further_columns,
    in_more_rows,
    label_texts,
    left_out_facts,
    place,
    read_rows,
    repeated_images,
    scan_rows,
    shared_patients,
)

if TYPE_CHECKING:
    import pandas as pd

Classes = dict[int | str, int | Literal["ignore"]]
"""The class of each grey value or colour of masks."""
TABLE = "table"
"""Name of the table in `own_files`; all other names are paths of images and masks."""
KEPT = 2
"""Number of scans that are kept open, so that their next slice is read faster."""
SCANS = ("window", "slices", "axis", "volume", "neighbours", "spacing")
"""Names of the settings that say how scans, and images with 16 bits and more, are read."""


class OwnImages(Dataset):
    """Your own images, listed in a table of path, label, site and patient: any format that Pillow reads, DICOM, NIfTI.

    The table is a CSV with any delimiter, Excel or Parquet; `patient` may be empty or missing. If its columns have
    other names, `columns` lists them, and `labels` maps texts in the column of labels to classes: the file itself stays
    as it is. Further columns, such as the scanner, are kept with the samples; `subgroups` of a study may name them.
    `path` is relative to the table. `label` is 0, 1, ... in the order of `classes`, or the name of a class. Images are
    rotated according to their EXIF orientation. Then the shorter side is scaled to `size` and the centre is cropped.
    Scans are DICOM and NIfTI files. Their values, and the values of grey images with 16 bits and more, become 8 bits by
    a `window`. `cine.dcm#12` and `brain.nii.gz#57` name a frame or a slice, from 1.

    For segmentation, set `masks` and add a column mask. A mask is an image file of the size of its image, with a value
    for each class, a slice of a NIfTI volume, such as `brain_seg.nii.gz#57`, or a DICOM SEG, whose numbers of segments
    are the values. The column label is then not needed. A column valid may name a mask of the field of view: pixels
    with 0 in it have no loss and no score.
    Distances of edges are in millimetres if the size of a pixel is known: from the headers of scans, or else from
    columns spacing_y and spacing_x with the millimetres between rows and between columns of the image file.
    """

    aliases = ("manifest",)
    documentation_fields = frozenset({"title", "licence", "citation", "caveat"})
    reading_fields = frozenset(
        {"skip_unreadable", "masks", "folder", "one_image_a_patient", "columns", "labels", "encoding", *SCANS}
    )
    later_fields = reading_fields
    table: Path = Field(
        description="path of the table, from the folder of the study, or from the top of the archive if there is one"
    )
    folder: Path | None = Field(
        None, description="folder that paths of images are relative to; default: the folder of the table"
    )
    columns: dict[Role, str] = Field(
        {},
        description="names of columns that are called otherwise in the table, such as {path: Datei, site: Klinik, "
        "patient: PatID, label: Befund}",
    )
    labels: dict[str, str | None] = Field(
        {},
        description="the class of each text in the column of labels, such as {gutartig: benign, '1': tumour}; null "
        "leaves its images out, and '' stands for empty cells; default: the names and the numbers of classes",
    )
    encoding: str = Field("utf-8", description="encoding of a CSV that is not UTF-8, such as windows-1252")
    moved_from: Path | None = Field(
        None, description="earlier path of the table, if its folder was moved: results of the earlier path stay valid"
    )
    archive: str | None = Field(None, description="tar or zip file with table and images, in the mirror directory")
    url: str | None = Field(None, description="address of the archive, used if the mirror does not have it")
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$", description="SHA-256 checksum of the archive")
    size: int = Field(96, ge=8, le=2048, description="side of the square images, in pixels")
    skip_unreadable: bool = Field(
        False, description="leave out images that are lost or cannot be read; the page counts them"
    )
    window: Window | Percentiles | None = Field(
        None,
        description="values that become black and white, such as [-160, 240], in scans and in images with 16 bits and "
        "more; {percentiles: [1, 99]} takes percentiles of each file; without it DICOM files use their own window",
    )
    slices: Slices | None = Field(
        None,
        description="frames read from files with several: all, or positions from 0, the first, to 1, the last, such as "
        "[0.4, 0.5, 0.6]; not needed if each path names a frame; of masks that are volumes the same slices are read",
    )
    axis: Literal["axial", "coronal", "sagittal"] = Field("axial", description="how NIfTI volumes are cut into slices")
    volume: int | None = Field(None, ge=1, description="number, from 1, of the volume to read from a file with several")
    neighbours: bool = Field(False, description="whether the frames before and after become first and last channel")
    spacing: float | None = Field(
        None,
        gt=0,
        description="millimetres per pixel to which scans are scaled; their centre is then cut out, or black is added",
    )
    masks: Classes | None = Field(
        None,
        description="for segmentation: the class of each value of the masks, such as {0: 0, 255: 1}, or of each "
        "colour, such as {'#000000': 0, '#ff0000': 1}; pixels with the class ignore have no loss and no score",
    )
    one_image_a_patient: bool = Field(
        False,
        description="whether each row shows a different patient, as in many sets of X-rays: rows without a patient "
        "then count as one patient each, and a patient in two rows is an error",
    )
    title: str = Field("Own images", description="title on the page")
    licence: str = Field("not stated", description="licence of the images")
    citation: str = Field("", description="citation of the images")
    caveat: str = Field("", description="warning that readers need before they trust a number")

    @field_validator("labels", mode="before")
    @classmethod
    def _texts(cls, labels: Any) -> Any:
        # YAML reads 0: benign as a number
        return {str(k): v for k, v in labels.items()} if isinstance(labels, Mapping) else labels

    @field_validator("encoding")
    @classmethod
    def _known(cls, encoding: str) -> str:
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise ValueError(f"{encoding!r} is no encoding; try utf-8, windows-1252 or windows-1250") from None
        return encoding

    @model_validator(mode="after")
    def _labels_name_classes(self) -> OwnImages:
        for text, name in self.labels.items():
            if name is not None and name not in self.classes:
                problem = f"label {text!r} means {name!r}, which is no class"
                raise UserError("labels", problem, did_you_mean(name, self.classes))
        return self

    @field_validator("window")
    @classmethod
    def _rising(cls, window: Window | Percentiles | None) -> Window | Percentiles | None:
        if isinstance(window, tuple) and not window[0] < window[1]:
            raise ValueError("the first value must be less than the second: [LOW, HIGH]")
        return window

    @field_validator("masks")
    @classmethod
    def _values(cls, masks: Classes | None) -> Classes | None:
        if masks is not None:
            # JSON, in which a run is stored, has texts as keys
            masks = {int(k) if isinstance(k, str) and re.fullmatch(r"-?\d+", k) else k: masks[k] for k in masks}
        for value in masks or ():
            if isinstance(value, str) and not re.fullmatch("#[0-9a-fA-F]{6}", value):
                raise ValueError(f"{value!r} is neither a grey value nor a colour such as '#ff0000'")
        if len({type(value) for value in masks or ()}) > 1:
            raise ValueError("give grey values or colours, not both")
        return masks

    @property
    def has_masks(self) -> bool:
        return self.masks is not None

    @property
    def has_one_image_a_patient(self) -> bool:
        return self.one_image_a_patient

    @field_validator("slices")
    @classmethod
    def _places(cls, slices: Slices | None) -> Slices | None:
        if isinstance(slices, tuple) and not (slices and all(0 <= place <= 1 for place in slices)):
            raise ValueError("places in a file run from 0, the first frame, to 1, the last one: [0.5] is the middle")
        return slices

    def identity(self) -> dict[str, Any]:
        """Return the settings that influence results, from which ids are made; see `Plugin.identity`.

        The path of the table is in one spelling; if `moved_from` is set, that earlier path stands for it. The setting
        `folder` is left out.
        """
        settings = super().identity()
        del settings["moved_from"]
        if self.archive:
            return settings
        settings.pop("folder", None)  # images count by their content
        return settings | {"table": one_spelling(self.moved_from or self.table)}

    def located(self, folder: Path) -> OwnImages:
        if self.archive:
            return self
        paths = {"table": self.table, "moved_from": self.moved_from, "folder": self.folder}
        placed = {name: Path(os.path.normpath(folder / path)) for name, path in paths.items() if path}
        return self.model_copy(update=placed)

    def card(self) -> Card:
        source = self.url or self.archive or str(self.table)
        return Card(self.title, "", source, self.licence, self.citation, self.caveat)

    def inputs(self) -> Sequence[Path]:
        return () if self.archive else (self.table,)

    def own_files(self) -> dict[str, Path]:
        """Return the table and, by their paths in the table, the files of images and masks; empty for an archive."""
        if self.archive:
            return {}
        rows, _ = self._kept_rows(self.table)
        columns = ("path", *MASKS) if self.has_masks else ("path",)
        cells = [cell for column in columns if column in rows for cell in rows[column].dropna().unique()]
        files = {cell: located(self._folder(Path()), cell) for cell in cells}
        # all frames of a file are one file, under the name before the number
        named = {cell if k is None else cell.rpartition("#")[0]: file for cell, (file, k) in files.items()}
        return named | {TABLE: self.table}

    def sources(self) -> Sequence[Source]:
        return [Source(self.url, self.archive, sha256=self.sha256, unpack=True)] if self.archive else []

    def _table(self, raw: Path) -> Path:
        """Return the path of the table, inside the unpacked archive if the dataset has one."""
        return raw / self.sources()[0].unpacked_name / self.table if self.archive else self.table

    def _folder(self, raw: Path) -> Path:
        """Return the folder that paths of images in the table are relative to."""
        if self.folder and not self.archive:
            return self.folder
        return self._table(raw).parent / (self.folder or "")

    def open(self, raw: Path) -> Opened:
        # only lost files are looked for here: preparation reads all, and names those that it cannot read together
        found, faults = self._examined(raw, (LOST,))
        require_none(faults)
        folder = self._folder(raw)
        scans, volumes = (functools.lru_cache(maxsize=KEPT)(opener) for opener in (self._scan, self._volume))
        segments = functools.lru_cache(maxsize=KEPT)(DicomSegments.opened)
        samples = found.rows.astype({"label": "int64"}).reset_index(drop=True)
        shapes: dict[str, tuple[int, int]] = {}
        numbers: dict[int | str, int] = {
            value: IGNORED if number == "ignore" else number for value, number in (self.masks or {}).items()
        }

        def image(path: str) -> np.ndarray:
            read = self._image(folder, path, scans)
            if self.has_masks:
                shapes[path] = read.shape[0], read.shape[1]
            return read

        def classes(path: str, cell: str, values: dict[int | str, int], others: int | None = None) -> np.ndarray:
            # a preparation that goes on has not read the images of before
            if path not in shapes:
                image(path)
            shape = shapes[path]
            file, number = located(folder, cell)
            scan, frame = located(folder, path)
            if is_segmentation(file):
                opened = scans(scan)
                read = read_segments(segments(file), opened, opened.number(frame, self._reading), values, others)
            elif is_nifti(file.name):
                # the pixels that the file of a scan has: the image may have been scaled until they are square
                stored = scans(scan).size if is_scan(scan) else shape
                read = read_slice(volumes(file), number, stored[::-1], values, others)
            else:
                read = read_classes(file, shape[::-1], values, self._anew, number, others)
            if read.size != shape[::-1]:
                read = read.resize(shape[::-1], Image.Resampling.NEAREST)
            return self._square(np.asarray(read), Image.Resampling.NEAREST)

        def mask(row: int) -> np.ndarray:
            path, valid = samples["path"][row], samples["valid"][row] if "valid" in samples else None
            inside = classes(path, samples["mask"][row], numbers)
            # no number of a class is larger than that of what is ignored
            return np.maximum(inside, classes(path, valid, FIELD, others=0)) if isinstance(valid, str) else inside

        return Opened(
            samples,
            lambda i: self._square(image(samples["path"][i])),
            self.skip_unreadable,
            lambda i: self._shorter_side(folder, samples["path"][i]) / self.size,
            tuple(name for name in further_columns(samples) if not (self.has_masks and name in SPACING)),
            (*burnt_in_warnings(found), *found.left_out),
            mask if self.has_masks else None,
            (lambda i: self._spacing_of(folder, samples.iloc[i], scans)) if self.has_masks else None,
        )

    def _spacing_of(self, folder: Path, row: pd.Series, scans: Callable[[Path], Scan]) -> Spacing | None:
        """Return the millimetres between rows and columns of the prepared image of a row of the table.

        None if neither the header of a scan nor the row states them. `scans` opens a scan.
        """
        file, number = located(folder, row["path"])
        spacing: Spacing | None = None
        if is_scan(file):
            size, spacing = scans(file).shown(number, self._reading)
            side = min(size)
        else:
            side = shorter_side(file, number)
        if spacing is None:
            spacing = stated_spacing([row.get(column) for column in SPACING])
        if spacing is None:
            return None
        # With `spacing`, squares are cut out without scaling.
        scale = 1 if self.spacing is not None else side / self.size
        return spacing[0] * scale, spacing[1] * scale

    @property
    def _reading(self) -> Reading:
        return Reading(self.window, self.axis, self.volume, self.neighbours, self.spacing)

    def _scans(self, rows: pd.DataFrame, folder: Path) -> ScanRows:
        """Return the rows with one row for each chosen frame of a scan, and findings in the headers of scans."""
        return scan_rows(rows, folder, self.slices, self._reading, self._remedy)

    def _scan(self, file: Path) -> Scan:
        return open_scan(file, self._reading, self._remedy)

    def _volume(self, file: Path) -> Scan:
        """Open a file as a volume of masks."""
        return open_scan(file, replace(self._reading, mask=True), self._anew)

    def _image(self, folder: Path, cell: str, scans: Callable[[Path], Scan] | None = None) -> np.ndarray:
        """Read the image that a cell of the table names, (height, width, 3), uint8, before it becomes square.

        `scans` opens a scan, with a cache; by default it is `_scan`, without one.
        """
        file, number = located(folder, cell)
        if is_scan(file):
            return (scans or self._scan)(file).image(number, self._reading)
        for setting, wanted in (("spacing", self.spacing is not None), ("neighbours", self.neighbours)):
            if wanted:
                raise UserError(file, f"is not a scan, and dataset.{setting} needs scans", f"remove {setting}")
        return read_image(file, own=True, remedy=self._remedy, window=self.window, page=number)

    def _shorter_side(self, folder: Path, cell: str) -> int:
        """Return the pixels along the shorter side of an image; 0 if they are unknown."""
        file, number = located(folder, cell)
        if not is_scan(file):
            return shorter_side(file, number)
        try:
            return min(self._scan(file).size)
        except UserError:
            return 0

    @property
    def _anew(self) -> str:
        """The remedy in errors about masks that cannot be read. No setting leaves such images out."""
        return ANEW if self.archive else "get it again, or remove its row"

    @property
    def _remedy(self) -> str:
        """The remedy in errors about images that cannot be read."""
        first = ANEW if self.archive else "get it again, remove its row"
        return f"{first}, or leave it out: dataset.skip_unreadable: true"

    def examine(self, raw: Path) -> Examined:
        found, faults = self._examined(raw, FILE_FAULTS)
        where = f"{self._table(raw)}, {found.rows.index.name}"
        scans = [
            UserError(f"{where} {row}", f"{error.what}{in_more_rows(number)}: {error.where}", error.remedy)
            for row, error, number in (() if self.skip_unreadable else found.faults)
        ]
        facts = (*found.facts, *found.left_out)
        return Examined(found.rows, [*faults, *scans], facts, tuple(burnt_in_warnings(found)))

    def _examined(self, raw: Path, kinds: Sequence[str]) -> tuple[ScanRows, list[UserError]]:
        """Return the table's rows as samples, one for each chosen frame, and all faults of cells and files.

        `kinds` are the faults of files that are looked for, of FILE_FAULTS. Raises UserError for a table that cannot be
        read, has no rows, or lacks a column that the setting `columns` names.
        """
        table, folder = self._table(raw), self._folder(raw)
        columns = ("path", "mask", "site") if self.has_masks else ("path", "label", "site")
        early = list[UserError]()
        rows, left_out = self._kept_rows(table, columns, early)
        lacking = [name for name in columns if name not in rows]
        rows = rows.assign(**dict.fromkeys(lacking))
        if self.has_masks:
            # Preparation says where a structure is: before it, no image has any.
            rows["label"] = "0"
        label, faults = self._labels(rows["label"], table)
        samples = rows.assign(
            site=rows["site"].astype(str).where(rows["site"].notna(), None),
            label=label,
            patient=rows["patient"].astype(str).where(rows["patient"].notna(), None) if "patient" in rows else None,
        )
        filled = [name for name in ("path", "label", "site") if name not in lacking]
        empty = [fault for column in filled for fault in empty_cells(table, rows[column])]
        paths = rows["path"].dropna()
        if self.one_image_a_patient:
            samples["patient"] = samples["patient"].fillna(samples["path"])
            faults += shared_patients(table, unified(samples["patient"]))
        tell_outside(table, paths.to_list())
        unfit = file_faults(table, folder, paths, self._remedy, () if self.skip_unreadable else kinds)
        found = self._scans(samples, folder)
        if self.has_masks:
            faults += [] if "mask" in lacking else mask_faults(table, folder, found.rows, self._volume)
            faults += spacing_faults(table, rows)
            faults += field_faults(table, folder, rows) if "valid" in rows else []
        samples = found.rows.assign(sample=found.rows["path"].astype(str))
        found = replace(found, rows=samples, left_out=tuple(left_out_facts(left_out)))
        return found, [*early, *empty, *faults, *unfit, *repeated_images(table, paths)]

    def _kept_rows(
        self, table: Path, needed: Sequence[str] = (), faults: list[UserError] | None = None
    ) -> tuple[pd.DataFrame, pd.Series]:
        """Return the table's rows, with column names of ROLES, and the labels of rows that `labels` leaves out.

        `needed`, `faults` and the errors that are raised are as in `read_rows`.
        """
        rows = read_rows(table, needed, "list each image in a row", self.columns, self.encoding, faults)
        if self.has_masks or "label" not in rows or not self._unused:
            return rows, rows.iloc[:0, 0]
        texts = label_texts(rows["label"]).fillna("")
        left_out = texts.isin(self._unused)
        return rows[~left_out], texts[left_out]

    @property
    def _unused(self) -> list[str]:
        """The labels that the setting `labels` maps to null: their images are left out."""
        return [text for text, name in self.labels.items() if name is None]

    def _labels(self, cells: pd.Series, table: Path) -> tuple[pd.Series, list[UserError]]:
        """Return the class number of each label in `cells`, missing for an unknown one, and errors for wrong labels."""
        names = {c: k for k, c in enumerate(self.classes)}
        stated = {text: names[name] for text, name in self.labels.items() if name is not None}
        known = {str(k): k for k in range(len(self.classes))} | names | stated
        texts = label_texts(cells)
        if "" in self.labels:
            texts, cells = texts.fillna(""), cells.fillna("")
        cells = cells.where(~texts.isin(self._unused))
        labels = texts.map(known)
        wrong = labels.isna() & cells.notna()
        if not wrong.any():
            return labels, []
        usual = self._usual(set(texts.dropna()))
        rows = [(str(value), cells.eq(value)) for value in cells[wrong].unique()]

        def fault(value: str, where: pd.Series) -> UserError:
            problem = f"label {value!r} is none of the {len(self.classes)} classes ({', '.join(self.classes)})"
            meant = (f"write {name!r}" for name in self.classes if folded(name) == folded(value))
            return UserError(place(table, where), problem + in_more_rows(int(where.sum())), next(meant, usual))

        return labels, shortened((fault(value, where) for value, where in rows), len(rows), table)

    def _usual(self, values: set[str]) -> str:
        """Return the remedy for labels that name no class. `values`, all labels of the table, may be counted from 1."""
        last = len(self.classes) - 1
        if str(last + 1) in values and values <= {str(k + 1) for k in range(last + 1)}:
            runs = f"labels run from {min(map(int, values))} to {last + 1} here, and must run from 0 to {last}"
            return f"{runs}: write 0 for {self.classes[0]}, and so on, or the names of classes"
        return f"write 0 to {last} or the name of a class, or name all classes in dataset.classes"

    def _square(self, image: np.ndarray, resampling: int | None = None) -> np.ndarray:
        """Return the central square of an image (height, width, ...), scaled to `size` pixels.

        `resampling` is Pillow's filter, by default Lanczos. With `spacing` nothing is scaled: `size` pixels are cut
        out, and black is added where the image ends.
        """
        if image.shape[:2] == (self.size, self.size):
            return image
        if self.spacing is not None:
            # a box that is larger than the image adds black
            top, left = ((side - self.size) // 2 for side in image.shape[:2])
            return np.asarray(Image.fromarray(image).crop((left, top, left + self.size, top + self.size)))
        chosen = Image.Resampling.LANCZOS if resampling is None else resampling
        return np.asarray(ImageOps.fit(Image.fromarray(image), (self.size, self.size), chosen))
