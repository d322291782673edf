"""Numbers with the influence of each patient and the value of each training, and the one interval made of them.

The influence of a patient is by how much the number changes, to first order, with the weight of that patient. The sum
of its squares over patients is the variance of the number over patients. Means and differences of numbers have the
means and differences of influences, so that a patient who counts in several of them is counted once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit, ndtri, stdtr, stdtrit

FEWEST = 5
"""With fewer patients there is no interval."""
LEVEL = 0.95
"""Probability that an interval covers."""
NO_INTERVAL = (float("nan"), float("nan"))
Group = tuple[str, str]
"""Data and site whose patients are independent of those of other groups; an empty site where sites share images."""


class Spread(NamedTuple):
    """The variance of a mean, and the degrees of freedom of that variance."""

    variance: float
    df: float


class Bounds(NamedTuple):
    """The interval of a number over patients and trainings, and that over patients alone; NaN without any."""

    low: float
    high: float
    low_patients: float
    high_patients: float


@dataclass(frozen=True)
class Estimate:
    """A number that each training gives, with the influence of each patient on it.

    Attributes
    ----------
    values : np.ndarray
        The number of each training (trainings,).
    seeds : tuple[int, ...]
        The seed of each training, by which trainings are paired. Empty for a number that no training changes.
    influence : Mapping[Group, np.ndarray]
        The scaled influence of each patient on the value of each training (trainings, patients), by group.
    patients : Mapping[Group, int]
        How many patients count in each group.
    fewest : int
        The fewest patients behind any part of the number, such as a site or a class.
    independent : int
        The number of patients, for a share where each of them counts as one sample: since there is one, or since all
        samples of a patient agree. Else 0.
    """

    values: np.ndarray
    seeds: tuple[int, ...] = ()
    influence: Mapping[Group, np.ndarray] = field(default_factory=dict)
    patients: Mapping[Group, int] = field(default_factory=dict)
    fewest: int = 0
    independent: int = 0

    @property
    def mean(self) -> float:
        """The mean over trainings; NaN without any."""
        if not len(self.values):
            return float("nan")
        return float(self.values.mean())

    @property
    def std(self) -> float:
        """The standard deviation over trainings; NaN for a single one."""
        if len(self.values) < 2:
            return float("nan")
        return float(self.values.std(ddof=1))

    @property
    def over_patients(self) -> Spread:
        """The variance over patients, with these trainings."""
        parts = [((table.mean(0) ** 2).sum(), self.patients[group] - 1) for group, table in self.influence.items()]
        return _sum(parts)

    @property
    def over_trainings(self) -> Spread:
        """The variance over trainings, with these patients. Needs two trainings."""
        number = len(self.values)
        return Spread(float(self.values.var(ddof=1) / number), number - 1)

    @property
    def residual(self) -> Spread:
        """What trainings do to single patients, which both other sources hold. Needs two trainings."""
        number = len(self.values)
        parts = []
        for group, table in self.influence.items():
            squares = ((table - table.mean(0)) ** 2).sum()
            parts.append((squares / (number * (number - 1)), (number - 1) * (self.patients[group] - 1)))
        return _sum(parts)

    @property
    def spread(self) -> Spread:
        """The variance over new patients and new trainings; over patients alone, with one training."""
        if len(self.values) < 2:
            return self.over_patients
        return crossed(self.over_trainings, self.over_patients, self.residual)

    @property
    def known(self) -> bool:
        """True where there are enough patients for an interval."""
        return self.fewest >= FEWEST and not np.isnan(self.mean)

    def interval(self, scale: str = "") -> tuple[float, float]:
        """Return the interval over patients and trainings; NaN with too few patients. See `bounds` for the scales."""
        if len(self.values) < 2:
            return self.interval_over_patients(scale)
        return self._interval(self.spread, scale)

    def interval_over_patients(self, scale: str = "") -> tuple[float, float]:
        """Return the interval over patients, with these trainings; NaN with too few of them."""
        if self.known and self.independent and scale == "share":
            return wilson_interval(self.mean, self.independent)
        return self._interval(self.over_patients, scale)

    def _interval(self, spread: Spread, scale: str) -> tuple[float, float]:
        if not self.known:
            return NO_INTERVAL
        if scale == "share" and spread.variance == 0 and self.mean in (0, 1):
            # A share that no patient changes is not certain: each patient counts as one sample.
            return wilson_interval(self.mean, sum(self.patients.values()))
        return bounds(self.mean, spread, scale)

    def bounded(self, ends: tuple[float, float], scale: str = "", difference: bool = False) -> Bounds:
        """Return both intervals, cut at the `ends` of what the number can be; those of a difference, with `difference`.

        Every interval of a table comes from here, so that equal numbers have equal intervals in all tables.
        """
        low, high = ends
        if difference:
            low, high = low - high, high - low
            scale = ""
        both = (*self.interval(scale), *self.interval_over_patients(scale))
        return Bounds(*(float(bound) for bound in np.clip(both, low, high)))

    @property
    def p(self) -> float:
        """The two-sided p of the t test that the number is zero, over patients and trainings; NaN with too few."""
        if not self.known:
            return float("nan")
        return two_sided_p(self.mean, self.spread)

    def of_seeds(self, seeds: Sequence[int]) -> Estimate:
        """Return the estimate from some of its trainings; the same for each where no training changes it."""
        rows = [self.seeds.index(seed) if self.seeds else 0 for seed in seeds]
        tables = {group: table[rows] for group, table in self.influence.items()}
        return Estimate(self.values[rows], tuple(seeds), tables, self.patients, self.fewest, self.independent)

    def rounded(self, decimals: int) -> Estimate:
        """Return the estimate with so many decimals: the noise of floating-point numbers has no sign and no spread."""
        tables = {group: table.round(decimals) for group, table in self.influence.items()}
        return Estimate(self.values.round(decimals), self.seeds, tables, self.patients, self.fewest, self.independent)


def _agree(influence: np.ndarray, people: np.ndarray) -> bool:
    """Return whether patients have equally many samples that count, and all samples of a patient count alike."""
    counted = ~np.isnan(influence)
    _, patient, sizes = np.unique(people[counted], return_inverse=True, return_counts=True)
    if not len(sizes) or sizes.min() < sizes.max():
        return False
    means = np.bincount(patient, influence[counted]) / sizes
    return bool(np.allclose(influence[counted], means[patient], rtol=0, atol=1e-12))


NOTHING = Estimate(np.empty(0))
"""The estimate of a number that has no value in any training."""


def single(
    value: float,
    influence: np.ndarray | None,
    people: np.ndarray,
    group: Group,
    seed: int | None = None,
    samples: bool = True,
) -> Estimate:
    """Return the number of one training on samples of one group.

    `influence` is by how much the number changes with the weight of each sample, (n,) or (n, columns) where the number
    is a sum of parts that different samples count in, with NaN for samples that do not count in a part; None where
    that is unknown. `people` are the numbers of their patients (n,), from 0. Without `samples`, each row stands for
    several samples.

    Each part has the factor k / (k - 1) of the variance over its k patients. For an AUC, whose parts are the classes,
    that is the variance of DeLong with one sample of each patient, and Obuchowski's where each patient has both
    classes.
    """
    values = np.array([value], dtype=float)
    seeds = () if seed is None else (seed,)
    if influence is None:
        return Estimate(values, seeds)
    if influence.ndim == 1:
        influence = influence[:, None]
    width = int(people.max(initial=-1)) + 1
    total = np.zeros(width)
    numbers = []
    for part in influence.T:
        counted = ~np.isnan(part)
        number = len(np.unique(people[counted]))
        sums = np.bincount(people[counted], part[counted], minlength=width)
        # The factor stands on the influence, so that sums of estimates need not know where it came from.
        total += sums * np.sqrt(number / max(number - 1, 1))
        numbers.append(number)
    fewest = min(numbers)
    independent = 0
    if samples and len(numbers) == 1 and _agree(influence[:, 0], people):
        independent = fewest
    return Estimate(values, seeds, {group: total[None]}, {group: fewest}, fewest, independent)


def over_trainings(trainings: Sequence[Estimate]) -> Estimate:
    """Return the estimates of single trainings on the same samples as one; no interval where any of them has none."""
    values = np.concatenate([training.values for training in trainings])
    seeds = tuple(seed for training in trainings for seed in training.seeds)
    if not all(training.influence for training in trainings):
        return Estimate(values, seeds)
    groups = trainings[0].influence
    tables = {group: _stacked([training.influence[group] for training in trainings]) for group in groups}
    patients = {group: min(training.patients[group] for training in trainings) for group in groups}
    fewest = min(training.fewest for training in trainings)
    independent = min(training.independent for training in trainings)
    return Estimate(values, seeds, tables, patients, fewest, independent)


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of estimates, such as those of several sites, each counted once."""
    return _sum_of([(1 / len(estimates), estimate) for estimate in estimates])


def minus(left: Estimate, right: Estimate) -> Estimate:
    """Return the difference of two estimates, paired by trainings and patients."""
    return _sum_of([(1.0, left), (-1.0, right)])


def _sum_of(parts: Sequence[tuple[float, Estimate]]) -> Estimate:
    """Return the weighted sum of estimates over the trainings that all of them have."""
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    if not all(len(estimate.values) for _, estimate in parts):
        return NOTHING
    trained = [estimate.seeds for _, estimate in parts if estimate.seeds]
    seeds: list[int] = []
    chosen = list(parts)
    if trained:
        seeds = [seed for seed in trained[0] if all(seed in others for others in trained)]
        chosen = [(weight, estimate.of_seeds(seeds)) for weight, estimate in parts]
    values = np.sum([weight * estimate.values for weight, estimate in chosen], axis=0)
    tables: dict[Group, np.ndarray] = {}
    patients: dict[Group, int] = {}
    for weight, estimate in chosen:
        for group, table in estimate.influence.items():
            tables[group] = _added(tables.get(group, np.zeros((1, 0))), weight * table)
            patients[group] = max(estimate.patients[group], patients.get(group, 0))
    return Estimate(values, tuple(seeds), tables, patients, min(estimate.fewest for _, estimate in parts))


def _stacked(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Return tables of influences below each other; patients that some of them lack move nothing there."""
    width = max(table.shape[1] for table in tables)
    return np.concatenate([np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables])


def _added(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the sum of two tables of influences; patients that only one of them has come last."""
    narrow, wide = sorted((left, right), key=lambda table: table.shape[1])
    out = wide.copy()
    out[:, : narrow.shape[1]] += narrow
    return out


def crossed(trainings: Spread, patients: Spread, residual: Spread) -> Spread:
    """Return the spread of a mean over new trainings and new patients, with negative components counted as zero.

    A component of trainings or patients below zero leaves the other source, with its degrees of freedom. Of two below
    zero the larger source is left.
    """
    both = components(trainings, patients, residual)
    return max(both, trainings, patients, key=lambda spread: spread.variance)


def components(trainings: Spread, patients: Spread, residual: Spread) -> Spread:
    """Return the spread trainings + patients - residual of the two-way analysis of variance, which may be negative.

    Trainings score the same patients. The degrees of freedom are Satterthwaite's (Hillis, Stat Med 2007;26:596).
    """
    total = trainings.variance + patients.variance - residual.variance
    return Spread(total, _satterthwaite(total, (trainings, patients, residual)))


def _sum(parts: Sequence[tuple[float, int]]) -> Spread:
    """Return the sum of independent variances, each given with its degrees of freedom."""
    total = float(sum(variance for variance, _ in parts))
    return Spread(total, _satterthwaite(total, parts))


def _satterthwaite(total: float, parts: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum of variances (Biometrics Bull 1946;2:110); infinite without any."""
    squares = sum(variance**2 / df for variance, df in parts if variance and df)
    if not squares:
        return np.inf
    return float(total**2 / squares)


def bounds(mean: float, spread: Spread, scale: str = "", level: float = LEVEL) -> tuple[float, float]:
    """Return the t interval of a mean; the normal interval with infinite degrees of freedom.

    `scale` is `share` for a number from 0 to 1, whose interval is cut there, and `logit` for one whose interval is made
    on the logit scale, where the standard error is se / (A (1 - A)) (Snell and others, Stat Methods Med Res
    2018;27:3505). That has no interval where the number is 0 or 1.
    """
    half = stdtrit(spread.df, (1 + level) / 2) * np.sqrt(spread.variance)
    if scale == "logit":
        if not 0 < mean < 1:
            return NO_INTERVAL
        half /= mean * (1 - mean)
        return float(expit(logit(mean) - half)), float(expit(logit(mean) + half))
    low = float(mean - half)
    high = float(mean + half)
    if scale == "share":
        return max(low, 0.0), min(high, 1.0)
    return low, high


def two_sided_p(mean: float, spread: Spread) -> float:
    """Return the two-sided p of the t test that a mean is zero. It is below 0.05 where the 95% interval excludes 0.

    Without any spread it is 0, or 1 for a mean of zero.
    """
    if spread.variance <= 0:
        return float(mean == 0)
    return float(2 * stdtr(spread.df, -abs(mean) / np.sqrt(spread.variance)))


def wilson(share: np.ndarray, n: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """Return the bounds (2, ...) of a share of n independent samples (Wilson, J Am Stat Assoc 1927;22:209)."""
    z = ndtri((1 + level) / 2)
    share = np.asarray(share, dtype=float)
    n = np.where(np.asarray(n) > 0, n, np.nan)
    centre = share + z**2 / (2 * n)
    half = z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low = (centre - half) / (1 + z**2 / n)
    high = (centre + half) / (1 + z**2 / n)
    # Rounding leaves a bound of 0 or 1 slightly beside it.
    return np.array([np.where(share == 0, 0.0, low), np.where(share == 1, 1.0, high)])


def wilson_interval(share: float, n: float) -> tuple[float, float]:
    """Return Wilson's interval of one share; see `wilson`."""
    low, high = wilson(np.array(share), np.array(n))
    return float(low), float(high)
