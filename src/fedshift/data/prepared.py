"""A prepared dataset, as training and prediction read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError
from ..core.spelling import AS_WRITTEN, unified
from ..core.units import SPACING
from ..io.arrays import map_array
from ..io.paths import DataFiles
from ..io.tables import read_table
from ..io.text import read_json, require_columns, require_object, require_unique

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

AGAIN = "remove its folder, and run the study again"
SAMPLES = {"sample": "text", "site": "text", "label": "whole numbers", "patient": "anything"}
PARTITION = {"sample": "text", "site": "text", "role": "text", "split": "text"}
"""Columns of samples.parquet and of a partition's table, each with the kind of value that it must hold."""


def read_card(path: Path) -> dict[str, Any]:
    """Return the data card of a prepared dataset: its card.json, with classes, checksums and provenance.

    Raises UserError for a file that is no data card.
    """
    needed = {"classes": "a list of texts", "checksums": "a mapping", "synthetic": "true or false"}
    optional = {"sites": "a mapping", "code": "text", "unreadable": "a whole number"}
    return require_object(path, read_json(path), needed, optional, AGAIN)


def read_samples(path: Path) -> pd.DataFrame:
    """Return samples.parquet of a prepared dataset, a table with one row for each image.

    Patient ids that differ only in spelling become one, so that splits and intervals treat them as one patient. If
    there are any, the column AS_WRITTEN holds the ids as the file spells them. Raises UserError for a file that is no
    such table.
    """
    table = _read(path, SAMPLES, AGAIN)
    written = table["patient"]
    patient = unified(written)
    return table if patient is written else table.assign(**{AS_WRITTEN: written, "patient": patient})


def persons(samples: pd.DataFrame) -> pd.Series:
    """Return an id of the person behind each row of `samples`: the patient or, if unknown, the image itself."""
    known = samples["patient"].notna()
    return samples["patient"].astype(object).where(known, "image " + samples["sample"].astype(str))


def read_partition(path: Path) -> pd.DataFrame:
    """Return the table of a partition: the site, role (internal or external) and split of each sample.

    Raises UserError for a file that is no such table.
    """
    return _read(path, PARTITION, "remove it, and run the study again")


def _read(path: Path, kinds: dict[str, str], remedy: str) -> pd.DataFrame:
    table = read_table(path)
    require_columns(path, table, kinds, remedy)
    require_unique(path, table, ["sample"], remedy)
    return table


class Prepared:
    """The images of a prepared dataset, memory-mapped, with its table of samples and its data card.

    Parameters
    ----------
    folder : where `fedshift prepare` wrote the dataset

    Raises UserError where a file is missing or cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = DataFiles(folder)
        self.card = read_card(files.card)
        self.samples = read_samples(files.samples)
        self.images = map_array(files.images)
        self.masks = map_array(files.masks) if files.masks.exists() else None
        self.classes: tuple[str, ...] = tuple(self.card["classes"])
        if self.images.ndim not in (2, 4) or self.images.dtype not in ("uint8", "float32"):
            problem = f"is an array {self.images.shape} of {self.images.dtype}, and no images or vectors"
            raise UserError(files.images, problem, AGAIN)
        if len(self.images) != len(self.samples):
            problem = f"has {len(self.images)} images, but samples.parquet has {len(self.samples)} rows"
            raise UserError(files.images, problem, AGAIN)
        if self.masks is not None and (self.masks.shape != self.images.shape[:3] or self.masks.dtype != "uint8"):
            problem = f"is an array {self.masks.shape} of {self.masks.dtype}, and no masks of these images"
            raise UserError(files.masks, problem, AGAIN)
        if not self.samples["label"].between(0, len(self.classes) - 1).all():
            raise UserError(files.samples, f"has labels beyond the {len(self.classes)} classes of card.json", AGAIN)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width) of images, (features,) of vectors."""
        *space, channels = self.images.shape[1:]
        return channels, *space

    @property
    def spacing(self) -> np.ndarray | None:
        """The pixel spacing of each image in millimetres, (n, 2): between rows, between columns; None if unknown."""
        if not set(SPACING) <= set(self.samples):
            return None
        return self.samples[list(SPACING)].to_numpy(dtype=float)

    def rows(self, part: pd.DataFrame) -> np.ndarray:
        """Return the position (n,) in `images` of each sample in `part`, a table of some rows of a partition.

        Raises UserError for a sample that this dataset does not have.
        """
        import pandas as pd

        rows = pd.Index(self.samples["sample"]).get_indexer(part["sample"])
        if (rows < 0).any():
            lost = part["sample"].iloc[int((rows < 0).argmax())]
            problem = f"sample {lost!r} of the partition is not in this dataset"
            raise UserError(self.folder, problem, "delete the file of the partition and run the study again")
        return rows
