"""Means over seeds, and intervals that resample whole patients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FEWEST = 5
"""Clusters under which there is no interval."""
DRAWS = 2000
LEVEL = 0.95
_CHUNK = 4_000_000


def mean_std(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1) over seeds; the deviation of one seed is NaN.

    A NaN among the values makes both NaN: nothing is left out in silence.
    """
    values = np.asarray(values, dtype=float)
    mean = float(values.mean()) if len(values) else float("nan")
    return mean, float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def bootstrap(
    values: np.ndarray, clusters: np.ndarray | None, rng: np.random.Generator, draws: int = DRAWS
) -> np.ndarray:
    """Means of `values` (n, k) in resamples of whole clusters with replacement: (draws, k).

    `clusters` (n,) says which patient a sample is of; None makes each sample its own. All columns see the
    same resamples, so that differences of columns are paired. NaN samples do not count. A column with
    samples in fewer than FEWEST clusters is NaN throughout: next to nothing can be said of its spread.
    """
    counted = ~np.isnan(values)
    sums, counts = np.where(counted, values, 0.0), counted.astype(float)
    if clusters is not None:
        names, member = np.unique(clusters, return_inverse=True)
        sums, counts = (_by_cluster(x, member, len(names)) for x in (sums, counts))
    n = len(sums)
    out = np.full((draws, values.shape[1]), np.nan)
    known = (counts > 0).sum(0) >= FEWEST
    if not known.any():
        return out
    step = max(1, _CHUNK // n)
    for start in range(0, draws, step):
        weight = rng.multinomial(n, np.full(n, 1 / n), size=min(step, draws - start)).astype(float)
        with np.errstate(invalid="ignore"):  # a resample without any sample that counts is NaN, and left out below
            out[start : start + step, known] = (weight @ sums[:, known]) / (weight @ counts[:, known])
    return out


def _by_cluster(x: np.ndarray, member: np.ndarray, clusters: int) -> np.ndarray:
    out = np.zeros((clusters, x.shape[1]))
    np.add.at(out, member, x)
    return out


def interval(draws: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The middle `level` of resampled means (draws,); NaN where there are none."""
    draws = draws[~np.isnan(draws)]
    if not len(draws):
        return float("nan"), float("nan")
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def clustered_interval(
    values: np.ndarray,
    clusters: np.ndarray | None,
    rng: np.random.Generator,
    level: float = LEVEL,
    draws: int = DRAWS,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean score: whole patients are resampled.

    Parameters
    ----------
    values : (seeds, n) per-sample scores, first averaged over seeds; NaN samples do not count
    clusters : (n,) patient of each sample; None where patients are unknown, and each sample stands for itself
    """
    return interval(bootstrap(values.mean(0)[:, None], clusters, rng, draws)[:, 0], level)


def paired_interval(
    values: np.ndarray,
    baseline: np.ndarray,
    clusters: np.ndarray | None,
    rng: np.random.Generator,
    level: float = LEVEL,
    draws: int = DRAWS,
) -> tuple[float, float]:
    """The same for `values - baseline`, both (seeds, n) and of the same samples."""
    return clustered_interval(values - baseline, clusters, rng, level, draws)
