"""Numbers of training and test images of runs, as far as data and partition exist."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from math import prod
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

    def values(self, run: Run) -> int:
        """Return how many numbers one input of the network has; 0 where unknown."""
        shape = self.shape(run)
        return prod(shape) if shape else 0

    def trained(self, run: Run) -> float:
        """Return how many images all clients together train on in a round, counted in each epoch; 0 where unknown."""
        samples, training, sites = self._samples(run.partition_id), run.training, run.partition.internal
        if not samples:
            return 0.0
        each = [samples[site, "train"] for site in sites]
        if training.local_steps:
            usual = [float(training.local_steps * training.batch_size)] * len(sites)
        else:
            usual = [float(training.local_epochs) * images for images in each]
        usual = [max(usual)] * len(usual) if training.equal_steps else usual
        phases = [phase.epochs for phase in run.algorithm.phases() if not phase.finishes]
        total = sum(
            images if epochs is None else epochs * one
            for images, one in zip(usual, each, strict=True)
            for epochs in phases
        )
        return total * training.clients_in_round(len(sites)) / len(sites)

    def training(self, run: Run) -> dict[str, int]:
        """Return the number of training images of each internal site; empty where unknown."""
        samples = self._samples(run.partition_id)
        return {site: samples[site, "train"] for site in run.partition.internal} if samples else {}

    def predicted(self, run: Run) -> int:
        """Return the number of images that an inference predicts; 0 where unknown.

        They are the test images of all sites and, with two classes, the validation images of internal sites.
        """
        samples = self._samples(run.partition_id)
        at_home = run.partition.internal if len(run.data.dataset.classes) == 2 else ()
        return sum(samples[site, "test"] for site in run.tested) + sum(samples[site, "val"] for site in at_home)


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
