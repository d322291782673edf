"""What is resampled as a whole: all samples of a patient, or all versions of an image."""

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


def clusters(samples: Samples, data: str) -> Clusters:
    """Return the source image of each sample where sites show the same images; otherwise its patient."""
    try:
        table = samples(data)
    except UserError:
        return Clusters(pd.Series(dtype=object), shared=False)
    shared = "base" in table
    known = table.set_index("sample")["base" if shared else "patient"].astype(object)
    return Clusters(known.where(known.isna(), known.astype(str)), shared)
