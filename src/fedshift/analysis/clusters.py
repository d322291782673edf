"""Samples that depend on each other and are resampled as a whole: those of a patient, or those that show one image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ..core.errors import UserError
from .predictions import Samples


class Clusters(NamedTuple):
    """The cluster of each sample, missing where unknown; and whether several sites hold samples of one cluster."""

    by_sample: pd.Series
    shared: bool

    def of(self, samples: pd.Index) -> np.ndarray:
        """Return the cluster of each sample (n,). A sample without a known cluster stands alone."""
        return self.by_sample.reindex(samples).fillna(samples.to_series()).to_numpy()

    def at_sites(self, rows: pd.DataFrame) -> np.ndarray:
        """Return the cluster (n,) of each row, which has the columns sample and site.

        Patients of two sites are two, also if they have one name, unless sites share images.
        """
        cluster = self.of(pd.Index(rows["sample"])).astype(str)
        return np.asarray(cluster if self.shared else rows["site"].to_numpy() + "/" + cluster, dtype=object)


def clusters(samples: Samples, data: str) -> Clusters:
    """Return the source image of each sample where sites show the same images; otherwise its patient."""
    try:
        table = samples(data)
    except UserError:
        return Clusters(pd.Series(dtype=object), shared=False)
    shared = "base" in table
    known = table.set_index("sample")["base" if shared else "patient"].astype(object)
    return Clusters(known.where(known.isna(), known.astype(str)), shared)
