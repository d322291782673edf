"""Samples that depend on each other and count together: those of a patient, or those that show one image."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pandas as pd

from ..core.errors import UserError
from .estimates import Group
from .predictions import Samples


class Clusters:
    """The cluster of each sample of a dataset: its patient or, where sites show the same images, its source image.

    Parameters
    ----------
    data : the id of the data
    by_sample : the cluster by the name of the sample, missing where unknown; such a sample stands alone
    shared : whether several sites hold samples of one cluster
    """

    def __init__(self, data: str, by_sample: pd.Series, shared: bool) -> None:
        self.data = data
        self.by_sample = by_sample
        self.shared = shared
        self._numbers: dict[Group, dict[str, int]] = defaultdict(dict)
        self._known: dict[tuple[int, str], tuple[pd.Index, np.ndarray]] = {}

    def group(self, site: str) -> Group:
        """Return the group of the clusters of a site. Patients of two sites are two, also if they have one name."""
        return self.data, "" if self.shared else site

    def of(self, samples: pd.Index, site: str) -> np.ndarray:
        """Return the number of the cluster of each sample of a site (n,).

        Numbers count from 0 in each group, in the order in which clusters are asked for. For the same `samples` the
        same array is returned, so do not change it.
        """
        key = id(samples), site
        if key not in self._known:
            names = self.by_sample.reindex(samples).fillna(samples.to_series()).astype(str)
            numbers = self._numbers[self.group(site)]
            found = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=int)
            self._known[key] = samples, found  # as long as the object is kept, no other one has its id
        return self._known[key][1]


def clusters(samples: Samples, data: str) -> Clusters:
    """Return the clusters of prepared data; every sample stands alone where its table cannot be read."""
    try:
        table = samples(data)
    except UserError:
        return Clusters(data, pd.Series(dtype=object), shared=False)
    shared = "base" in table
    groups = table.set_index("sample")["base" if shared else "patient"].astype(object)
    return Clusters(data, groups.where(groups.isna(), groups.astype(str)), shared)
