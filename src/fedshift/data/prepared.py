"""From raw files to arrays that can be memory-mapped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UserError
from ..io.arrays import map_array
from ..io.tables import read_table
from ..io.text import read_json

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


class Prepared:
    """A prepared dataset: its images, memory-mapped, with labels and card."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.card = read_json(folder / "card.json")
        self.samples = read_table(folder / "samples.parquet")
        self.images = map_array(folder / "images.npy")
        self.classes: tuple[str, ...] = tuple(self.card["classes"])

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height, width; of vectors, how many features."""
        *space, channels = self.images.shape[1:]
        return channels, *space

    def rows(self, part: pd.DataFrame) -> np.ndarray:
        """The rows of some samples of a partition."""
        import pandas as pd

        found = pd.Index(self.samples["sample"]).get_indexer(part["sample"])
        if (found < 0).any():
            lost = part["sample"].iloc[int((found < 0).argmax())]
            raise UserError(self.folder, f"sample {lost!r} of the partition is not there", "make the partition anew")
        return found
