"""A prepared dataset, as training and prediction read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from ..core.errors import UserError
from ..io.arrays import map_array
from ..io.paths import DataFiles
from ..io.tables import read_table
from ..io.text import read_json

if TYPE_CHECKING:
    import numpy as np


class Prepared:
    """The images of a prepared dataset, memory-mapped, with its table of samples and its data card.

    Parameters
    ----------
    folder : where `fedshift prepare` wrote the dataset

    Raises UserError where a file is missing or cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, files = folder, DataFiles(folder)
        self.card = read_json(files.card)
        self.samples = read_table(files.samples)
        self.images = map_array(files.images)
        self.classes: tuple[str, ...] = tuple(self.card["classes"])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width) of images, (features,) of vectors."""
        *space, channels = self.images.shape[1:]
        return channels, *space

    def rows(self, part: pd.DataFrame) -> np.ndarray:
        """Return the rows (n,) of the array that hold the samples of a part of a partition, in its order.

        Raises UserError for a sample that this dataset does not have.
        """
        rows = pd.Index(self.samples["sample"]).get_indexer(part["sample"])
        if (rows < 0).any():
            lost = part["sample"].iloc[int((rows < 0).argmax())]
            what = f"sample {lost!r} of the partition is not in this dataset"
            raise UserError(self.folder, what, "delete the file of the partition and run the study again")
        return rows
