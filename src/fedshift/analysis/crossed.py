"""Intervals that hold two sources of variation: other patients, and other trainings that score the same patients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student


class Spread(NamedTuple):
    """The variance of a mean, and the degrees of freedom of that variance."""

    variance: float
    df: float


class Parts(NamedTuple):
    """The variance of a mean over seeds by its sources, each with its degrees of freedom.

    `seeds` is the variance of the values of single trainings divided by their number, `patients` that of the mean over
    trainings. Either holds `residual` too: what a training does to single patients.
    """

    seeds: Spread
    patients: Spread
    residual: Spread


def parts(values: np.ndarray, influences: Sequence[np.ndarray]) -> Parts:
    """Return the parts of the variance of the mean of `values` (seeds,), one for each training.

    `influences` are tables (seeds, patients), one for each group of patients that is drawn apart from the others, such
    as those of a site: by how much a patient moves the value of a training. Each row sums to zero. Needs two seeds,
    and two patients in each table.
    """
    trainings = len(values)
    averaged, apart = [], []
    for table in influences:
        n, mean = table.shape[1], table.mean(0)
        rest = (trainings - 1) * (n - 1)
        averaged.append((n / (n - 1) * (mean**2).sum(), n - 1))
        apart.append((n * ((table - mean) ** 2).sum() / (trainings * rest), rest))
    seeds = Spread(float(values.var(ddof=1) / trainings), trainings - 1)
    return Parts(seeds, _sum(averaged), _sum(apart))


def of_table(values: np.ndarray) -> Parts:
    """Return the parts for values (seeds, patients) whose mean over patients is the value of a training.

    They are the mean squares of a two-way analysis of variance without repeats, divided by the size of the table.
    """
    mean = values.mean(1, keepdims=True)
    return parts(values.mean(1), [(values - mean) / values.shape[1]])


def crossed(sources: Parts) -> Spread:
    """Return the spread of a mean over new trainings and new patients: seeds + patients - residual.

    For one table the variance is (MS_seeds + MS_patients - MS_residual) / (S P) with Satterthwaite's degrees of freedom
    (Hillis, Stat Med 2007;26:596). It may be less than either source alone gives, and even negative; see `truncated`.
    """
    variances, dfs = zip(*sources, strict=True)
    total, squares = variances[0] + variances[1] - variances[2], np.square(variances) / dfs
    return Spread(total, float(total**2 / squares.sum()) if squares.any() else np.inf)


def truncated(sources: Parts) -> Spread:
    """Return the spread over new trainings and new patients, with negative components counted as zero.

    A component of seeds or patients below zero leaves the other source, with its degrees of freedom. Of two below zero
    the larger one is left.
    """
    return max(crossed(sources), sources.seeds, sources.patients, key=lambda spread: spread.variance)


def _sum(parts: Sequence[tuple[float, int]]) -> Spread:
    """Return the sum of independent variances, with Satterthwaite's degrees of freedom."""
    variances, dfs = np.array(parts, dtype=float).T
    total = float(variances.sum())
    return Spread(total, float(total**2 / (variances**2 / dfs).sum()) if total else np.inf)


def summed(patients: float, clusters: int, seeds: float, trainings: int) -> Spread:
    """Return the spread of a mean whose two sources are known apart only: a safe rule for any metric.

    `patients` is the variance over patients with trainings fixed, of so many clusters; `seeds` is the variance of the
    values of single trainings, patients fixed. Their sum counts what seeds and patients do together twice, so it is
    too wide rather than too narrow. The degrees of freedom are Satterthwaite's (Biometrics Bull 1946;2:110).
    """
    return _sum([(patients, clusters - 1), (seeds / trainings, trainings - 1)])


def interval(mean: float, spread: Spread, level: float = 0.95) -> tuple[float, float]:
    """Return the bounds of the t interval of a mean."""
    half = student.ppf((1 + level) / 2, spread.df) * np.sqrt(spread.variance)
    return float(mean - half), float(mean + half)


def two_sided_p(mean: float, spread: Spread) -> float:
    """Return the two-sided p of the t test that a mean is zero. It is below 0.05 where the 95% interval excludes 0.

    Without any spread it is 0, or 1 for a mean of zero.
    """
    if spread.variance <= 0:
        return float(mean == 0)
    return float(2 * student.sf(abs(mean) / np.sqrt(spread.variance), spread.df))
