"""Samples that depend on each other and are resampled as a whole: those of a patient, or those that show one image."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..core.errors import UserError
from .predictions import Samples


class Clusters:
    """The cluster of each sample.

    Parameters
    ----------
    by_sample : the cluster by the name of the sample, missing where unknown
    shared : whether several sites hold samples of one cluster
    """

    def __init__(self, by_sample: pd.Series, shared: bool) -> None:
        self.by_sample, self.shared = by_sample, shared
        self._known: dict[int, tuple[pd.Index, np.ndarray]] = {}

    def of(self, samples: pd.Index) -> np.ndarray:
        """Return the cluster of each sample (n,): the same array for the same object, so do not change it.

        A sample without a known cluster stands alone.
        """
        if id(samples) not in self._known:
            found = self.by_sample.reindex(samples).fillna(samples.to_series()).to_numpy()
            self._known[id(samples)] = samples, found  # kept, the object keeps its id
        return self._known[id(samples)][1]

    def at_sites(self, rows: pd.DataFrame) -> np.ndarray:
        """Return the cluster (n,) of each row, which has the columns sample and site; see `at_site`."""
        return self.at_site(pd.Index(rows["sample"]), rows["site"].to_numpy())

    def at_site(self, samples: pd.Index, site: str | np.ndarray) -> np.ndarray:
        """Return the cluster (n,) of each sample of a site, or of sites (n,).

        Patients of two sites are two, also if they have one name, unless sites share images.
        """
        cluster = self.of(samples).astype(str).astype(object)
        return cluster if self.shared else np.asarray(site + "/" + cluster)


def clusters(samples: Samples, data: str) -> Clusters:
    """Return the source image of each sample where sites show the same images; otherwise its patient."""
    try:
        table = samples(data)
    except UserError:
        return Clusters(pd.Series(dtype=object), shared=False)
    shared = "base" in table
    known = table.set_index("sample")["base" if shared else "patient"].astype(object)
    return Clusters(known.where(known.isna(), known.astype(str)), shared)
