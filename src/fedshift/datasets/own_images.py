"""A hospital's own images: a CSV that gives path, label and site of each image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from ..core import digest
from ..core.errors import UserError
from ..io.download import Source
from ..io.images import read_image
from ..io.tables import read_texts
from ._base import Card, Dataset, Opened

if TYPE_CHECKING:
    import pandas as pd


class OwnImages(Dataset):
    """A table with the columns path, label, site and, if known, patient; images of any format that Pillow reads.

    `path` is relative to the table. `label` is 0, 1, ... in the order of `classes`, or the name of a class. Images are
    rotated according to their EXIF orientation. Then the shorter side is scaled to `size` and the centre is cropped.
    """

    aliases = ("manifest",)
    documentation_fields = frozenset({"title", "licence", "citation", "caveat"})
    table: Path = Field(
        description="path of the CSV, from the working folder, or from the top of the archive if there is one"
    )
    archive: str | None = Field(None, description="tar or zip file with table and images, in the mirror directory")
    url: str | None = Field(None, description="address of the archive, used if the mirror does not have it")
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$", description="SHA-256 checksum of the archive")
    size: int = Field(96, ge=8, le=2048, description="side of the square images, in pixels")
    title: str = Field("Own images", description="title on the page")
    licence: str = Field("not stated", description="licence of the images")
    citation: str = Field("", description="citation of the images")
    caveat: str = Field("", description="warning that readers need before they trust a number")

    def card(self) -> Card:
        source = self.url or self.archive or str(self.table)
        return Card(self.title, "", source, self.licence, self.citation, self.caveat)

    def inputs(self) -> Sequence[Path]:
        return () if self.archive else (self.table,)

    def fingerprint(self) -> str:
        """Return a digest of path, size and modification time of each image, so that a replaced image is noticed."""
        if self.archive:
            return ""
        try:
            images = [self.table.parent / path for path in read_rows(self.table)["path"].dropna()]
            return digest.of([[str(i), (s := i.stat()).st_size, s.st_mtime_ns] for i in images if i.is_file()])
        except (OSError, ValueError, KeyError):
            return ""  # opening the table raises an error that explains

    def sources(self) -> Sequence[Source]:
        return [Source(self.url, self.archive, sha256=self.sha256, unpack=True)] if self.archive else []

    def _folder(self, raw: Path) -> Path:
        """Return the folder of the unpacked archive."""
        return raw / self.sources()[0].unpacked_name

    def open(self, raw: Path) -> Opened:
        table = self._folder(raw) / self.table if self.archive else self.table
        rows = read_rows(table)
        for column in ("path", "label", "site"):
            if column not in rows:
                raise UserError(table, f"no column {column!r}", f"it has {', '.join(map(str, rows))}")
            require_filled(table, rows[column])
        samples = rows.assign(
            sample=rows["path"].astype(str),
            site=rows["site"].astype(str),
            label=self._labels(rows["label"], table),
            patient=rows["patient"].astype(str).where(rows["patient"].notna(), None) if "patient" in rows else None,
        )
        require_images(table, table.parent, samples["path"])
        files = [table.parent / path for path in samples["path"]]
        _require_once(table, samples["path"])
        return Opened(samples.reset_index(drop=True), lambda i: self._square(read_image(files[i], own=True)))

    def _labels(self, cells: pd.Series, table: Path) -> pd.Series:
        names = {str(k): k for k in range(len(self.classes))} | {c: k for k, c in enumerate(self.classes)}
        labels = cells.astype(str).str.removesuffix(".0").map(names)
        if (wrong := labels.isna()).any():
            raise UserError(
                place(table, wrong),
                f"label {str(cells[wrong].iloc[0])!r} is none of the {len(self.classes)} classes "
                f"({', '.join(self.classes)})",
                "name all classes in dataset.classes, or correct the row",
            )
        return labels.astype("int64")

    def _square(self, image: np.ndarray) -> np.ndarray:
        if image.shape[:2] == (self.size, self.size):
            return image
        from PIL import Image, ImageOps

        return np.asarray(ImageOps.fit(Image.fromarray(image), (self.size, self.size), Image.Resampling.LANCZOS))


def read_rows(table: Path) -> pd.DataFrame:
    """Read a table of own images: all cells as text, column names in lower case, rows numbered as by `read_texts`.

    Raises UserError if the file is no table, a column appears twice, or a row has more cells than the header.
    """
    return read_texts(table, lambda name: name.strip().casefold())


def place(table: Path, wrong: pd.Series) -> str:
    """Return the place of the first row that `wrong` marks, such as `images.csv, line 7`."""
    return f"{table}, {wrong.index.name} {wrong.idxmax()}"


def require_filled(table: Path, cells: pd.Series) -> None:
    """Raise UserError for an empty cell of a column."""
    if (empty := cells.isna()).any():
        raise UserError(place(table, empty), f"{cells.name} is empty", "fill it in")


def require_images(table: Path, folder: Path, paths: pd.Series) -> None:
    """Raise UserError for a path, relative to `folder`, without a file."""
    for path in paths.unique():
        if not (folder / path).is_file():
            remedy = "write / between folders" if "\\" in path else "restore it, or remove the row"
            raise UserError(place(table, paths == path), f"no such image: {folder / path}", remedy)


def _require_once(table: Path, paths: pd.Series) -> None:
    """Raise UserError for an image that appears twice, even as `a.png` and `./a.png`.

    Such an image could be in the training and in the test data.
    """
    folder = table.parent.absolute()
    files = paths.map(lambda path: os.path.normpath(folder / path))
    if (twice := files.duplicated()).any():
        path, file = paths[twice].iloc[0], files[twice].iloc[0]
        raise UserError(place(table, twice), f"{path!r} is the image of {place(table, files == file)}", "list it once")
