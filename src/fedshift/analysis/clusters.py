"""Samples that depend on each other: those of one patient, or those that show one image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ..core.errors import UserError
from ..io.paths import Paths
from ..io.tables import read_table


class Clusters(NamedTuple):
    """The cluster of each sample, missing where unknown; and whether several sites hold samples of one cluster."""

    by_sample: pd.Series
    shared: bool

    def of(self, rows: pd.DataFrame) -> np.ndarray:
        """Return the cluster (n,) of each row, which has the columns sample and site.

        A sample of unknown patient stands alone. Patients of two sites are two, unless sites share images.
        """
        cluster = self.by_sample.reindex(rows["sample"])
        known = cluster.where(cluster.notna(), rows["sample"].to_numpy()).astype(str).to_numpy()
        return np.asarray(known if self.shared else rows["site"].to_numpy() + "/" + known, dtype=object)


def clusters(paths: Paths, data: str) -> Clusters:
    """Return the source image of each sample where sites show the same images; otherwise its patient."""
    try:
        samples = read_table(paths.data_files(data).samples)
    except UserError:
        return Clusters(pd.Series(dtype=object), shared=False)
    shared = "base" in samples
    known = samples.astype({"sample": str}).set_index("sample")["base" if shared else "patient"].astype(object)
    return Clusters(known.where(known.isna(), known.astype(str)), shared)
