"""Intervals of means over patients, by resamples of whole patients, and of shares of single samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from scipy.stats import norm

FEWEST = 5
"""With fewer clusters there is no interval."""
DRAWS = 2000
"""Resamples behind an interval."""
LEVEL = 0.95
"""Probability that an interval covers."""
_CHUNK = 4_000_000
_CACHED = 200_000


def by_cluster(values: pd.DataFrame, clusters: Sequence[str] | np.ndarray) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return sums of `values` (n, k), and counts of those that are not NaN, a row for each cluster (n,)."""
    sums, counts = (x.groupby(np.asarray(clusters)).sum() for x in (values.fillna(0.0), values.notna().astype(float)))
    return sums, counts


def bootstrap(sums: np.ndarray, counts: np.ndarray, rng: np.random.Generator, draws: int = DRAWS) -> np.ndarray:
    """Return the means of k columns in resamples of whole clusters with replacement: (draws, k).

    `sums` and `counts` (clusters, k) come from `by_cluster`; a cluster is all samples of a patient, or a single
    sample. All columns see the same resamples, so that differences of columns are paired. A column with samples in
    fewer than FEWEST clusters is NaN throughout: they are too few to estimate its spread.
    """
    n = len(sums)
    out = np.full((draws, sums.shape[1]), np.nan)
    known = (counts > 0).sum(0) >= FEWEST
    if not known.any():
        return out
    for part, weight in resamples(n, rng, draws):
        with np.errstate(invalid="ignore"):  # a resample without any sample that counts is NaN, and left out below
            out[part, known] = (weight @ sums[:, known]) / (weight @ counts[:, known])
    return out


def resamples(
    n: int, rng: np.random.Generator, draws: int = DRAWS, samples: int = 0
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield how often each of n clusters is drawn, (part of the draws, n), with the place of that part among the draws.

    The weights do not depend on the size of the parts. Those of so many `samples` are to fit the processor's cache.
    """
    step = max(1, min(_CHUNK // n, _CACHED // max(1, samples)))
    for start in range(0, draws, step):
        size = min(step, draws - start)
        yield slice(start, start + size), rng.multinomial(n, np.full(n, 1 / n), size=size).astype(float)


def interval(draws: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """Return the bounds of the middle `level` of resampled means (draws,); NaN where there are none."""
    draws = draws[~np.isnan(draws)]
    if not len(draws):
        return float("nan"), float("nan")
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def wilson(share: np.ndarray, n: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """Return the bounds (2, ...) of a share of n independent samples (Wilson, J Am Stat Assoc 1927;22:209)."""
    z = norm.ppf((1 + level) / 2)
    share, n = np.asarray(share, dtype=float), np.where(np.asarray(n) > 0, n, np.nan)
    centre = share + z**2 / (2 * n)
    half = z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low, high = (centre - half) / (1 + z**2 / n), (centre + half) / (1 + z**2 / n)
    return np.array([np.where(share == 0, 0.0, low), np.where(share == 1, 1.0, high)])
