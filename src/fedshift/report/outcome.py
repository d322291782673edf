"""The predictions of a run on new images in numbers: classes, confidence and, where labels are known, metrics."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..analysis.auc import logit_interval
from ..analysis.statistics import bootstrap, by_cluster, interval, wilson
from ..analysis.values import NAN, Value
from ..core import registry
from ..core.rng import stream
from ..jobs.apply import Applied
from ..metrics import Metric
from ..study.declaration import Study

GROUPS = 5_000
"""More patients are first put into this many groups at random. The interval of their mean is then as wide."""


class Outcome:
    """The predictions of a run on new images in numbers.

    Attributes
    ----------
    table : a row for each image: predicted, p0, p1, ..., confidence (the probability of the predicted class), site,
        label and cluster, a number for the patient or, where that is unknown, the image. Rows of one image share it
    sites : names in their order; empty where they are not known
    unit : the unit that intervals resample: patients, or images where no patient is known
    """

    def __init__(self, applied: Applied) -> None:
        table = applied.table
        self.classes = applied.run.data.dataset.classes
        self.columns = [f"p{k}" for k in range(len(self.classes))]
        patient = (
            table["patient"].where(table["patient"].notna(), table["path"]) if "patient" in table else table["path"]
        )
        self.table = table.drop(columns=["path", "patient"], errors="ignore").assign(
            confidence=table[self.columns].max(axis=1), cluster=pd.factorize(patient)[0]
        )
        self.unit = "patients" if "patient" in table else "images"
        self.twice = int(table["path"].duplicated().sum())
        self.sites = list(table["site"].unique()) if "site" in table else []
        self.labelled = int(table["label"].notna().sum()) if "label" in table else 0
        self.metrics: list[Metric] = [registry.build("metric", m) for m in Study.model_fields["metrics"].default]

    def at(self, site: str | None) -> pd.DataFrame:
        """Return the rows of a site, or all rows."""
        return self.table if site is None else self.table[self.table["site"] == site]

    def counts(self, column: str = "predicted", site: str | None = None) -> np.ndarray:
        """Return the number of images of each class (classes,), as predicted or as labelled."""
        return np.bincount(self.at(site)[column].dropna().to_numpy(dtype=int), minlength=len(self.classes))

    def scores(self, site: str | None = None) -> list[Value]:
        """Return each metric on the labelled images with its interval; empty values where no image has a label."""
        rows = self.at(site)
        rows = rows[rows["label"].notna()]
        if rows.empty:
            return [Value()] * len(self.metrics)
        label, probability = rows["label"].to_numpy(dtype=int), rows[self.columns].to_numpy(dtype=float)
        groups = _groups(rows["cluster"].to_numpy(), site)
        values = []
        for metric in self.metrics:
            mean, low, high = metric.value(label, probability), NAN, NAN
            each = metric.per_sample(label, probability)
            if each is not None:
                sums, counts = by_cluster(pd.DataFrame(each.reshape(len(rows), -1)), groups)
                draws = bootstrap(sums.to_numpy(), counts.to_numpy(), stream("bootstrap", site))
                means = draws.mean(axis=1)
                low, high = logit_interval(mean, means.var()) if metric.logit else interval(means)
                if metric.percent and low == high:  # no resample changes it, which does not make it certain
                    low, high = map(float, wilson(np.array(mean), (counts.to_numpy() > 0).sum(0).min()))
            values.append(Value(mean=mean, low=low, high=high, n=len(rows)))
        return values


def _groups(cluster: np.ndarray, site: str | None) -> np.ndarray:
    """Return the group of each image (n,) that is resampled as one: its cluster or, of very many, a group of these."""
    _, code = np.unique(cluster, return_inverse=True)
    return stream("groups", site).permutation(code.max() + 1)[code] % GROUPS
