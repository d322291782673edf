"""Numbers of training images of runs and the shape of an image, as far as data and partition exist."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..core.errors import UserError
from ..data.prepared import read_partition
from ..io.paths import Paths
from ..study.run import Run
from ..transforms import shape_after

Shape = tuple[int, ...]


class SampleCounts:
    """Counts of images in a project folder. Each file is read once."""

    def __init__(self, paths: Paths) -> None:
        self._samples: Callable[[str], Counter[tuple[str, str]]] = functools.cache(
            lambda p: _samples(paths.partition(p))
        )
        self._shape: Callable[[str], Shape] = functools.cache(lambda d: _shape(paths.data_files(d).images))

    def shape(self, run: Run) -> Shape:
        """Return the shape of the network's input: (channels, height, width) or (features,); () where unknown."""
        return shape_after(run.transforms, run.data.dataset.shape or self._shape(run.data.id))

    def training(self, run: Run) -> dict[str, int]:
        """Return the number of training images of each internal site; empty where unknown."""
        samples = self._samples(run.partition_id)
        if samples:
            return {site: samples[site, "train"] for site in run.partition.internal}
        return {}


def _samples(partition: Path) -> Counter[tuple[str, str]]:
    """Count the samples by site and split. Empty if the file does not exist or cannot be read."""
    try:
        table = read_partition(partition) if partition.exists() else {"site": (), "split": ()}
    except UserError:
        return Counter()
    return Counter(zip(table["site"], table["split"], strict=True))


def _shape(images: Path) -> Shape:
    """Read the shape of one image, channels first. Empty if the file does not exist or cannot be read."""
    try:
        *space, channels = np.load(images, mmap_mode="r").shape[1:]
    except (OSError, ValueError, EOFError):  # the last for an empty file
        return ()
    return channels, *space
