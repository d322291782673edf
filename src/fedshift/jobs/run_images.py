"""The prepared images of a run's partition, opened by site with the transforms of the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..core.errors import UserError, did_you_mean
from ..data.prepared import Prepared, read_partition
from ..data.samples import MappedSamples, Statistics, at_site, site_statistics
from ..io import identity
from ..io.paths import Paths

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from ..study.run import Run
    from ..transforms import Transform


class RunImages:
    """The prepared images of a run's partition with their labels, by site, with the run's transforms.

    Statistics of a site that transforms need are computed once. Raises UserError if the prepared data or the partition
    cannot be read, or belong to another run.
    """

    def __init__(self, run: Run, paths: Paths, device: torch.device | str) -> None:
        self.run, self.device = run, device
        self.prepared = Prepared(paths.data(run.data.id))
        self.partition = read_partition(paths.partition(run.partition_id))
        files = paths.data_files(run.data.id)
        for file in (files.samples, files.card):
            identity.require(file, data=run.data.id)
        identity.require(paths.partition(run.partition_id), partition=run.partition_id)
        self.labels = self.prepared.samples["label"].to_numpy()
        self._statistics: dict[str, Statistics] = {}

    def by_site(self, split: str, sites: Iterable[str]) -> dict[str, pd.DataFrame]:
        """Return the rows of the partition in a split, such as test, by site; a site without such rows is left out."""
        chosen = self.partition[self.partition["split"] == split]
        return {site: rows for site in sites if len(rows := chosen[chosen["site"] == site])}

    def samples(self, part: pd.DataFrame, clients: Sequence[Statistics] = ()) -> MappedSamples:
        """Return the images and labels of `part`, rows of the partition at one site, with the run's transforms.

        `clients` are the statistics that other clients sent, for transforms of training images.
        """
        transforms = self.run.transforms
        if len(part):
            transforms = at_site(transforms, self.statistics(str(part["site"].iloc[0])), clients)
        return self._opened(self.prepared.rows(part), transforms)

    def spacing(self, part: pd.DataFrame) -> np.ndarray | None:
        """Return the millimetres between rows and columns of the images in `part` (n, 2); None if they are unknown."""
        spacing = self.prepared.spacing
        return None if spacing is None else spacing[self.prepared.rows(part)]

    def statistics(self, site: str) -> Statistics:
        """Return the statistics of a site that transforms use: of its training images, or else of all its images."""
        if site not in self._statistics:
            part = self.partition[self.partition["site"] == site]
            train = part[part["split"] == "train"]
            rows = self.prepared.rows(train if len(train) else part)
            self._statistics[site] = site_statistics(self.run.transforms, partial(self._opened, rows))
        return self._statistics[site]

    def outside(self, site: str) -> MappedSamples:
        """Return all images of a site that is not in the partition, with the run's transforms.

        Raises UserError if the dataset has no such site.
        """
        sites = self.prepared.samples["site"].to_numpy()
        rows = np.flatnonzero(sites == site)
        if not len(rows):
            raise UserError("training.select_at", f"unknown site {site!r}", did_you_mean(site, {*sites}))
        statistics = site_statistics(self.run.transforms, partial(self._opened, rows))
        return self._opened(rows, at_site(self.run.transforms, statistics))

    def _opened(self, rows: np.ndarray, transforms: Sequence[Transform]) -> MappedSamples:
        data = self.prepared
        return MappedSamples(data.images, rows, self.labels[rows], transforms, self.device, data.masks)
