"""What a run says of new images, in numbers: classes, confidence and, where labels are known, metrics."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..analysis.statistics import bootstrap, by_cluster, interval
from ..analysis.values import NAN, Value
from ..core import registry
from ..core.rng import stream
from ..jobs.apply import Applied
from ..metrics import Metric
from ..study.declaration import Study

GROUPS = 5_000
"""More patients than that are first put together at random, in so many groups: an interval is then as wide."""


class Outcome:
    """The numbers of a run on new images.

    Attributes
    ----------
    table : a row an image: predicted, p0, p1, ..., confidence (the probability of the predicted class), site, label
        and cluster, a number for the patient or, where that is unknown, the image; listed twice, it is one
    sites : in their order; none where they are not known
    unit : what intervals resample: patients, or images where no patient is known
    """

    def __init__(self, applied: Applied) -> None:
        given = applied.table
        self.classes = applied.run.data.dataset.classes
        self.columns = [f"p{k}" for k in range(len(self.classes))]
        patient = (
            given["patient"].where(given["patient"].notna(), given["path"]) if "patient" in given else given["path"]
        )
        self.table = given.drop(columns=["path", "patient"], errors="ignore").assign(
            confidence=given[self.columns].max(axis=1), cluster=pd.factorize(patient)[0]
        )
        self.unit = "patients" if "patient" in given else "images"
        self.twice = int(given["path"].duplicated().sum())
        self.sites = list(given["site"].unique()) if "site" in given else []
        self.labelled = int(given["label"].notna().sum()) if "label" in given else 0
        self.metrics: list[Metric] = [registry.build("metric", m) for m in Study.model_fields["metrics"].default]

    def at(self, site: str | None) -> pd.DataFrame:
        """The rows of a site, or of all."""
        return self.table if site is None else self.table[self.table["site"] == site]

    def counts(self, column: str = "predicted", site: str | None = None) -> np.ndarray:
        """Images of each class (classes,), as predicted or as labelled."""
        return np.bincount(self.at(site)[column].dropna().to_numpy(dtype=int), minlength=len(self.classes))

    def scores(self, site: str | None = None) -> list[Value]:
        """Each metric on the labelled images, with its interval; without a value where there are none."""
        rows = self.at(site)
        rows = rows[rows["label"].notna()]
        if rows.empty:
            return [Value()] * len(self.metrics)
        label, probability = rows["label"].to_numpy(dtype=int), rows[self.columns].to_numpy(dtype=float)
        groups = _groups(rows["cluster"].to_numpy(), site)
        found = []
        for metric in self.metrics:
            each, low, high = metric.per_sample(label, probability), NAN, NAN
            if each is not None:
                sums, counts = by_cluster(pd.DataFrame(each.reshape(len(rows), -1)), groups)
                draws = bootstrap(sums.to_numpy(), counts.to_numpy(), stream("bootstrap", site))
                low, high = interval(draws.mean(axis=1))
            found.append(Value(mean=metric.value(label, probability), low=low, high=high, n=len(rows)))
        return found


def _groups(cluster: np.ndarray, site: str | None) -> np.ndarray:
    """What is resampled as one: clusters or, of very many, groups of them."""
    _, code = np.unique(cluster, return_inverse=True)
    return stream("groups", site).permutation(code.max() + 1)[code] % GROUPS
