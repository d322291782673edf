"""The variance of an area under the ROC curve (AUC) where samples of one patient depend on each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from ..metrics import Placements


def variance(placements: Placements, positive: np.ndarray, clusters: Sequence[str] | np.ndarray | None = None) -> float:
    """Return the variance of an AUC, or of the difference of two AUCs on the same samples; NaN below two clusters.

    Without `clusters` (n,) every sample stands alone: S10 / m + S01 / n (DeLong, DeLong and Clarke-Pearson, Biometrics
    1988;44:837). With them, S10 / m + S01 / n + 2 S11 / (m n), where the sums are over clusters (Obuchowski, Biometrics
    1997;53:567). Either class must be in two clusters.
    """
    positive = np.asarray(positive, dtype=bool)
    clusters = np.arange(len(positive)) if clusters is None else np.asarray(clusters)
    _, cluster = np.unique(clusters, return_inverse=True)
    deviation = placements.placement - placements.area
    sums, number = [], []
    for members in (positive, ~positive):
        sums.append(np.bincount(cluster, deviation * members) / members.sum())
        number.append(len(np.unique(cluster[members])))
    total = cluster.max() + 1
    if min(number) < 2:
        return float("nan")
    alone = sum(k / (k - 1) * (each**2).sum() for k, each in zip(number, sums, strict=True))
    return float(alone + 2 * total / (total - 1) * (sums[0] * sums[1]).sum())


def logit_interval(area: float, variance: float, df: float = np.inf, level: float = 0.95) -> tuple[float, float]:
    """Return the t interval of an AUC on the logit scale, transformed back; NaN where the AUC is 0 or 1.

    With infinite `df` it is the normal interval. On the logit scale the standard error is se / (A (1 - A)), and the
    bounds stay within 0 and 1 (Snell and others, Stat Methods Med Res 2018;27:3505).
    """
    if not 0 < area < 1:
        return float("nan"), float("nan")
    centre = np.log(area / (1 - area))
    half = student.ppf((1 + level) / 2, df) * np.sqrt(variance) / (area * (1 - area))
    low, high = 1 / (1 + np.exp(-(centre + np.array([-half, half]))))
    return float(low), float(high)


def paired_p(difference: float, variance: float) -> float:
    """Return the two-sided p of a difference of AUCs, from a normal distribution (DeLong and others 1988)."""
    return float(2 * norm.sf(abs(difference) / np.sqrt(variance)))
