"""Numbers with the influence of each patient on them, so that their means and differences have intervals too.

The influence of a patient is the sum of those of the samples, scaled so that the sum of squares over patients is the
variance of the number over patients. Means and differences of numbers have the means and differences of influences,
which keeps what patients that count in several of them do to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from . import crossed
from .statistics import FEWEST


class Estimate(NamedTuple):
    """A number that each training gives, and what patients do to its mean over trainings.

    Attributes
    ----------
    values : np.ndarray
        The number of each training (trainings,).
    influence : pd.Series
        The scaled influence of each patient on the mean over trainings, by patient.
    patients : int
        How many patients there are; of a mean over sites, the fewest at any of them.
    """

    values: np.ndarray
    influence: pd.Series
    patients: int

    @property
    def mean(self) -> float:
        """The mean over trainings."""
        return float(self.values.mean()) if len(self.values) else float("nan")

    @property
    def std(self) -> float:
        """The standard deviation over trainings; NaN for a single one."""
        return float(self.values.std(ddof=1)) if len(self.values) > 1 else float("nan")

    @property
    def spread(self) -> crossed.Spread:
        """The variance over patients and trainings; over patients alone, with one training."""
        variance = float((self.influence**2).sum())
        if len(self.values) < 2:
            return crossed.Spread(variance, self.patients - 1)
        return crossed.summed(variance, self.patients, self.std**2, len(self.values))

    def interval(self, back: Callable[[float], float] = float) -> tuple[float, float]:
        """Return the t interval, its bounds transformed by `back`; NaN with too few patients."""
        if self.patients < FEWEST or np.isnan(self.mean):
            return float("nan"), float("nan")
        low, high = crossed.interval(self.mean, self.spread)
        return back(low), back(high)

    def minus(self, other: Estimate) -> Estimate:
        """Return the difference from a number that does not depend on the training, such as that of a control."""
        difference = self.influence.sub(other.influence, fill_value=0.0)
        return Estimate(self.values - other.mean, difference, min(self.patients, other.patients))


def of_means(each: np.ndarray, clusters: np.ndarray) -> Estimate:
    """Return the mean over columns of the means of `each` (n, columns), NaN left out, with influences of clusters (n,).

    It is what `Metric.value` returns for `Metric.per_sample`. The influence is linear: of a mean of cluster sums by
    cluster sizes it is that of the ratio, with the factor k / (k - 1) for k clusters.
    """
    each = each.reshape(len(each), -1)
    counted = ~np.isnan(each)
    number = counted.sum(0)
    if not number.all():
        return Estimate(np.array([np.nan]), pd.Series(dtype=float), 0)
    means = np.nansum(each, 0) / number
    share = np.where(counted, (each - means) / number, 0.0).mean(1)
    fewest = min(len(np.unique(clusters[column])) for column in counted.T)
    return Estimate(np.array([means.mean()]), scaled(share, clusters), fewest)


def scaled(share: np.ndarray, clusters: np.ndarray, factor: float = 1.0) -> pd.Series:
    """Return sums of influences (n,) by cluster (n,), scaled by the square root of k / (k - 1) and of `factor`."""
    sums = pd.Series(share).groupby(np.asarray(clusters)).sum()
    k = len(sums)
    return sums * np.sqrt(factor * k / (k - 1)) if k > 1 else sums * np.nan


def over_trainings(estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimates of single trainings on the same patients as one."""
    values = np.concatenate([one.values for one in estimates])
    return Estimate(values, _mean_influence(estimates), min(one.patients for one in estimates))


def over_sites(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean over sites, each counted once; their trainings are in the same order."""
    values = np.mean([one.values for one in estimates], axis=0)
    return Estimate(values, _mean_influence(estimates), min(one.patients for one in estimates))


def _mean_influence(estimates: Sequence[Estimate]) -> pd.Series:
    together = pd.concat([one.influence for one in estimates])
    return together.groupby(level=0).sum() / len(estimates)
