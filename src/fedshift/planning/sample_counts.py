"""How much a run trains on and is tested with, as far as data and partition are there to tell."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path

from ..core.errors import UserError
from ..io.paths import Paths
from ..io.tables import read_table
from ..study.run import Run
from ..transforms import shape_after

Shape = tuple[int, ...]


class Amounts:
    """Counts of a project folder, each file read once."""

    def __init__(self, paths: Paths) -> None:
        self._samples: Callable[[str], Counter[tuple[str, str]]] = functools.cache(
            lambda p: _samples(paths.partition(p))
        )
        self._shape: Callable[[str], Shape] = functools.cache(lambda d: _shape(paths.data(d) / "images.npy"))

    def shape(self, run: Run) -> Shape:
        """(channels, height, width), or (features,), of what goes into the network; empty where not known."""
        return shape_after(run.transforms, run.data.dataset.shape or self._shape(run.data.id))

    def values(self, run: Run) -> int:
        """Numbers in an image that goes into the network; 0 where not known."""
        shape = self.shape(run)
        return prod(shape) if shape else 0

    def trained(self, run: Run) -> float:
        """Images that all clients together train on in a round, an image twice in two epochs; 0 where not known."""
        samples, how, sites = self._samples(run.partition_id), run.training, run.partition.internal
        if not samples:
            return 0.0
        each = [samples[site, "train"] for site in sites]
        each = [how.local_steps * how.batch_size if how.local_steps else how.local_epochs * n for n in each]
        each = [max(each)] * len(each) if how.equal_steps else each
        return sum(each) * how.clients_in_round(len(sites)) / len(sites)

    def tested(self, run: Run) -> int:
        """Test images of all sites; 0 where not known."""
        samples = self._samples(run.partition_id)
        return sum(samples[site, "test"] for site in run.tested)


def _samples(partition: Path) -> Counter[tuple[str, str]]:
    """By site and split; none before the partition is made, or where it cannot be read."""
    try:
        table = read_table(partition, ["site", "split"]) if partition.exists() else {"site": (), "split": ()}
    except UserError:
        return Counter()
    return Counter(zip(table["site"], table["split"], strict=True))


def _shape(images: Path) -> Shape:
    import numpy as np

    try:
        *space, channels = np.load(images, mmap_mode="r").shape[1:]
    except (OSError, ValueError, EOFError):  # the last for an empty file
        return ()
    return channels, *space
