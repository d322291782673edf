"""Any hospital's own images: a CSV that says of each where it lies, what it shows, and where it comes from."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from .. import digest
from ..dataset import Card, Dataset, Opened, read_image
from ..errors import UserError
from ..fetch import Source
from ..files import read_table

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


class Manifest(Dataset):
    """A table with the columns path, label, site and, if known, patient; images of any format that Pillow reads.

    `path` is relative to the table. `label` is 0, 1, ... in the order of `classes`, or a class's name. Images are
    brought to `size` by scaling the shorter side and cropping the centre.
    """

    words = frozenset({"title", "licence", "citation", "caveat"})
    table: Path = Field(description="the CSV, from the working folder; or inside the archive, if there is one")
    archive: str | None = Field(None, description="tar or zip with table and images, looked up in the mirror directory")
    url: str | None = Field(None, description="where to get the archive, if it is not in the mirror")
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$", description="of the archive")
    size: int = Field(96, ge=8, le=2048, description="side of the square images, pixels")
    title: str = Field("Own images", description="what the page calls them")
    licence: str = Field("not stated", description="of the images")
    citation: str = Field("", description="of the images")
    caveat: str = Field("", description="what a reader must know before believing a number")

    def card(self) -> Card:
        source = self.url or self.archive or str(self.table)
        return Card(self.title, "", source, self.licence, self.citation, self.caveat)

    def inputs(self) -> Sequence[Path]:
        return () if self.archive else (self.table,)

    def fingerprint(self) -> str:
        """Of name, size and time of change of each image, so that one put in another's place is noticed."""
        if self.archive:
            return ""
        try:
            with self.table.open(newline="", encoding="utf-8-sig") as file:
                images = [self.table.parent / (row.get("path") or "") for row in csv.DictReader(file)]
            return digest.of([[str(i), (s := i.stat()).st_size, s.st_mtime_ns] for i in images if i.is_file()])
        except (OSError, ValueError, csv.Error):
            return ""  # what is wrong with the table is said when it is opened

    def sources(self) -> Sequence[Source]:
        return [Source(self.url, self.archive, sha256=self.sha256, unpack=True)] if self.archive else []

    def _folder(self, raw: Path) -> Path:
        """Where the archive is unpacked."""
        return raw / self.sources()[0].unpacked_name

    def open(self, raw: Path) -> Opened:
        table = self._folder(raw) / self.table if self.archive else self.table
        rows = read_rows(table)
        if len(rows.columns) == 1 and ";" in rows.columns[0]:
            raise UserError(table, "has semicolons between its columns", "separate them with commas")
        for column in ("path", "label", "site"):
            if column not in rows:
                raise UserError(table, f"no column {column!r}", f"it has {', '.join(map(str, rows))}")
            if (empty := rows[column].isna()).any():
                raise UserError(
                    f"{table}, row {int(empty.to_numpy().argmax()) + 2}", f"{column} is empty", "fill it in"
                )
        samples = rows.assign(
            sample=rows["path"].astype(str),
            site=rows["site"].astype(str),
            label=self._labels(rows["label"], table),
            patient=rows["patient"].astype(str).where(rows["patient"].notna(), None) if "patient" in rows else None,
        )
        files = [table.parent / p for p in samples["path"]]
        for n, file in enumerate(files):
            if not file.is_file():
                raise UserError(f"{table}, row {n + 2}", f"no such image: {file}", "restore it, or remove the row")
        return Opened(samples, lambda i: self._square(read_image(files[i])))

    def _labels(self, given: pd.Series, table: Path) -> pd.Series:
        names = {str(k): k for k in range(len(self.classes))} | {c: k for k, c in enumerate(self.classes)}
        labels = given.astype(str).str.removesuffix(".0").map(names)
        if (wrong := labels.isna()).any():
            at = int(wrong.to_numpy().argmax())
            raise UserError(
                f"{table}, row {at + 2}",
                f"label {str(given.iloc[at])!r} is none of the {len(self.classes)} classes ({', '.join(self.classes)})",
                "name all classes in dataset.classes, or correct the row",
            )
        return labels.astype("int64")

    def _square(self, image: np.ndarray) -> np.ndarray:
        if image.shape[:2] == (self.size, self.size):
            return image
        import numpy as np
        from PIL import Image, ImageOps

        return np.asarray(ImageOps.fit(Image.fromarray(image), (self.size, self.size), Image.Resampling.LANCZOS))


def read_rows(table: Path) -> pd.DataFrame:
    """A table of own images, all cells as text, the names of columns in small letters.

    Raises UserError where it is no table, or a column stands twice.
    """
    rows = read_table(table, text=True)
    rows.columns = [str(c).strip().casefold() for c in rows.columns]
    if rows.columns.has_duplicates:
        twice = rows.columns[rows.columns.duplicated()][0]
        raise UserError(table, f"the column {twice!r} stands twice", "rename one of them")
    return rows
