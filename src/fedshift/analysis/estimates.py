"""Estimates (values with the influence of each patient and each training), and the one interval that is made of them.

The influence of a patient is by how much the value changes with the weight of that patient, to first order. The sum of
the squared influences is the variance of the value over patients. A mean or a difference of estimates has the mean or
the difference of their influences, so that a patient who counts in several of them is counted once.

Near its ends a share or an AUC varies more towards the middle than towards the end, and if all patients are alike the
influences are zero though nothing is certain. So each part of an estimate knows its variance to either side, and a
least variance.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import expit, logit, ndtri, stdtr, stdtrit

if TYPE_CHECKING:
    from ..metrics import Metric

FEWEST = 5
"""With fewer patients an estimate has no interval."""
LEVEL = 0.95
"""Probability with which an interval covers the true value."""
MANY = 10**9
"""Number of patients of a value that is known without data, such as the expected score of a guess."""
ALIKE = 1e-12
"""Influences up to this size count as zero: they are the noise of floating-point numbers."""
FADES = 0.1
"""Share of the variance of a source (patients or trainings) below which its own component has fewer degrees of freedom.

See `crossed`.
"""
WILSON = ("share", "unit")
"""Scales (see `Metric.scale`) of values whose interval is Wilson's."""
NO_INTERVAL = (math.nan, math.nan)
"""The interval of an estimate that has none."""
Group = tuple[str, str]
"""Data and site whose patients are independent of those of other groups; the site is empty if sites share images."""


class Spread(NamedTuple):
    """The variance of a mean, and the degrees of freedom of that variance."""

    variance: float
    df: float


class Bounds(NamedTuple):
    """The 95% interval of a value over patients and trainings, and its interval over patients alone.

    All bounds are NaN if there is no interval.
    """

    low: float
    high: float
    low_patients: float
    high_patients: float


@dataclass(frozen=True)
class Part:
    """The contribution of the patients of one group (a site) to an estimate and to its variance.

    Attributes
    ----------
    influence : the influence of each patient on the value of each training (trainings, patients), times sqrt(k / (k -
        1)) for k patients, so that the sum of squares is the variance
    tested : the number of patients, each counted once
    rarer : the number of patients of the rarer class, for a value made of single classes; else of all patients
    df : the degrees of freedom of the variance over these patients
    agreement : how far the samples of a patient agree, from 0 (independent) to 1 (all have the same influence)
    units : the effective number of independent samples, which would vary as much as these samples do
    floor : the least variance over these patients (see `_sided`)
    below, above : the variance towards lower, and towards higher values, as a multiple of `variance`
    weight : the squared weight with which the value of these patients enters the estimate
    of_samples : the variance if each sample were a patient of its own; it replaces the variance if the influences of
        all patients are zero, and is 0 if it is not needed
    """

    influence: np.ndarray
    tested: int
    rarer: int
    df: float
    agreement: float = 1.0
    units: float = 0.0
    floor: float = 0.0
    below: float = 1.0
    above: float = 1.0
    weight: float = 1.0
    of_samples: float = 0.0

    @functools.cached_property
    def variance(self) -> float:
        """The variance over these patients of the mean over trainings, before it is split into its two sides."""
        influence = self.influence.mean(0)
        varied = self.of_samples if _alike(influence) else float((influence**2).sum())
        return max(varied, self.floor)

    def times(self, factor: float) -> Part:
        """Return this contribution for an estimate that is multiplied by `factor`.

        A negative factor swaps the two sides.
        """
        below, above = (self.below, self.above) if factor >= 0 else (self.above, self.below)
        squared = {name: factor**2 * getattr(self, name) for name in ("floor", "weight", "of_samples")}
        return replace(self, influence=factor * self.influence, below=below, above=above, **squared)

    def plus(self, other: Part, together: bool) -> Part:
        """Return the contribution to the sum of two estimates, of patients who count in both; each patient counts once.

        `other` is the contribution to the second estimate. `together` is True if both enter the sum with the same sign:
        the variances to either side are then weighted means. Else the sum is a difference between the same patients,
        which varies alike to both sides.
        """
        whole = self.weight + other.weight
        sides = ((self.below, other.below), (self.above, other.above))
        below, above = ((self.weight * own + other.weight * its) / whole for own, its in sides)
        least = ((self.floor, other.floor), (self.of_samples, other.of_samples))
        floor, of_samples = (_in_step(pair) if together else sum(pair) for pair in least)
        if not together:
            below = above = 1.0
        return Part(
            _added(self.influence, other.influence),
            max(self.tested, other.tested),
            max(self.rarer, other.rarer),
            min(self.df, other.df),
            max(self.agreement, other.agreement),
            min(self.units, other.units),
            floor,
            below,
            above,
            whole,
            of_samples,
        )


@dataclass(frozen=True)
class Estimate:
    """An estimate, such as a score or a difference of scores: its value in each training, and its patients' influence.

    Attributes
    ----------
    values : the value in each training (trainings,)
    seeds : the seed of each training, by which trainings are paired; empty for a value that does not depend on training
    parts : the contribution of the patients of each group
    fewest : the number of patients in the smallest part of the value, such as a site or a class
    scale : how the interval is made (see `Metric.scale`); empty for a sum or difference of estimates
    """

    values: np.ndarray
    seeds: tuple[int, ...] = ()
    parts: Mapping[Group, Part] = field(default_factory=dict)
    fewest: int = 0
    scale: str = ""

    @functools.cached_property
    def mean(self) -> float:
        """The mean of the value over trainings; NaN without any training."""
        return float(self.values.mean()) if len(self.values) else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of the value over trainings; NaN for a single training."""
        return float(self.values.std(ddof=1)) if len(self.values) > 1 else math.nan

    @property
    def patients(self) -> int:
        """The number of patients behind the estimate, each counted once."""
        return sum(part.tested for part in self.parts.values())

    @property
    def rarer(self) -> int:
        """The number of patients of the rarer class at each site, summed over sites."""
        return sum(part.rarer for part in self.parts.values())

    @property
    def over_patients(self) -> Spread:
        """The variance over patients, for the given trainings, before it is split into its two sides."""
        return _sum([(part.variance, part.df) for part in self.parts.values()])

    def towards(self, higher: bool) -> Spread:
        """Return the variance over patients, for the given trainings, towards `higher` or else lower values."""
        sides = ((part.above if higher else part.below, part) for part in self.parts.values())
        return _sum([(part.variance * side, part.df) for side, part in sides])

    @property
    def over_trainings(self) -> Spread:
        """The variance over trainings, for the given patients. Needs two trainings or more."""
        number = len(self.values)
        return Spread(float(self.values.var(ddof=1) / number), number - 1)

    @property
    def residual(self) -> Spread:
        """The variance of the interaction between trainings and patients. Needs two trainings or more.

        It is a part of the variance over trainings and of the variance over patients.
        """
        number = len(self.values)
        parts = []
        for part in self.parts.values():
            squares = ((part.influence - part.influence.mean(0)) ** 2).sum()
            parts.append((squares / (number * (number - 1)), (number - 1) * (part.rarer - 1)))
        return _sum(parts)

    def spread(self, higher: bool) -> Spread:
        """Return the variance over new patients and new trainings, towards `higher` or else lower values.

        With a single training it is the variance over patients alone.
        """
        patients = self.towards(higher)
        if len(self.values) < 2:
            return patients
        return crossed(self.over_trainings, patients, self.residual)

    @property
    def known(self) -> bool:
        """True if there are enough patients for an interval, and they, or at least their samples, differ.

        A difference of zero that does not vary over patients is known, too.
        """
        if not self.over_patients.variance and (self.scale or abs(self.mean) > ALIKE):
            return False
        return self.fewest >= FEWEST and not np.isnan(self.mean)

    def interval(self) -> tuple[float, float]:
        """Return the 95% interval over patients and trainings; NaN with too few patients."""
        return self._interval(self.spread)

    def interval_over_patients(self) -> tuple[float, float]:
        """Return the 95% interval over patients, for the given trainings; NaN with too few patients."""
        return self._interval(self.towards)

    def _interval(self, spread: Callable[[bool], Spread]) -> tuple[float, float]:
        """Return the 95% interval.

        `spread` is a method that returns the variance towards higher (True) or lower values.
        """
        if not self.known:
            return NO_INTERVAL
        return bounds(self.mean, spread(False))[0], bounds(self.mean, spread(True))[1]

    def bounded(self, ends: tuple[float, float], difference: bool = False) -> Bounds:
        """Return both intervals, clipped to the range of possible values.

        `ends` are the lowest and highest value of the metric. With `difference`, the range of a difference of two
        values is taken. Every interval of a table comes from here, so that equal values have equal intervals in all
        tables.
        """
        low, high = ends
        if difference:
            low, high = low - high, high - low
        both = (*self.interval(), *self.interval_over_patients())
        return Bounds(*(float(bound) for bound in np.clip(both, low, high)))

    @property
    def p(self) -> float:
        """The two-sided p value of the t test that the value is zero, over patients and trainings.

        It is NaN with too few patients.
        """
        return 2 * min(self.p_above(0.0), 1 - self.p_above(0.0)) if self.known else math.nan

    def p_above(self, bound: float) -> float:
        """Return the one-sided p value of the t test whose null hypothesis is that the value is at most `bound`.

        It is below 0.025 exactly if the lower end of the 95% interval is above `bound`. NaN with too few patients.
        """
        if not self.known:
            return math.nan
        return one_sided_p(self.mean - bound, self.spread(self.mean < bound))

    def of_seeds(self, seeds: Sequence[int]) -> Estimate:
        """Return the estimate from the trainings with some seeds.

        A value that does not depend on training is repeated.
        """
        rows = [self.seeds.index(seed) if self.seeds else 0 for seed in seeds]
        parts = {group: replace(part, influence=part.influence[rows]) for group, part in self.parts.items()}
        return replace(self, values=self.values[rows], seeds=tuple(seeds), parts=parts)

    def rounded(self, decimals: int) -> Estimate:
        """Return the estimate with values and influences rounded to `decimals`, which removes floating-point noise.

        Otherwise a difference of zero could have a sign and a variance.
        """
        parts = {g: replace(part, influence=part.influence.round(decimals)) for g, part in self.parts.items()}
        return replace(self, values=self.values.round(decimals), parts=parts)


NOTHING = Estimate(np.empty(0))
"""The estimate of a value that no training has."""


def single(
    value: float,
    influence: np.ndarray | None,
    people: np.ndarray,
    group: Group,
    seed: int | None = None,
    scale: str = "",
) -> Estimate:
    """Return the estimate of one training from samples of one group.

    The variance over k patients of each part of the value (each class, for an AUC) has the factor k / (k - 1). For an
    AUC that is DeLong's variance with one sample for each patient, and Obuchowski's if each patient has both classes.

    If the influences of all patients are zero, as with ten patients who each have four of five samples right, their
    variance would be zero though other patients may differ. Then each sample counts as a patient.

    Parameters
    ----------
    value : the score, or another number, of the training
    influence : by how much the value changes with the weight of each sample (n,); or (n, columns) if the value is a sum
        of parts in which different samples count, with NaN for a sample that does not count in a part; None if unknown
    people : the number of the patient of each sample (n,), from 0
    group : data and site of the samples
    seed : the seed of the training; None if the value does not depend on training
    scale : how the interval is made (see `Metric.scale`); empty for a value that is no score
    """
    values = np.array([value], dtype=float)
    seeds = () if seed is None else (seed,)
    if influence is None:
        return Estimate(values, seeds, scale=scale)
    if influence.ndim == 1:
        influence = influence[:, None]
    total, columns = _over_patients(influence, people)
    of_samples = 0.0
    if _alike(total):
        of_samples = float((_over_patients(influence, np.arange(len(influence)))[0] ** 2).sum())
    rarer = min(len(column.sizes) for column in columns)
    tested = int(np.count_nonzero(np.bincount(people[~np.isnan(influence).all(1)])))
    df = float(rarer - 1)
    if scale == "share" and len(columns) == 1 and columns[0].alike:
        df = np.inf  # each patient counts as one sample, whose variance follows from the share
    agreement, units = _agreement(columns) if scale in WILSON else (1.0, 0.0)
    part = Part(total[None], tested, rarer, df, agreement, units, of_samples=of_samples)
    return Estimate(values, seeds, {group: _sided(part, value, scale)}, rarer, scale)


def of_metric(
    metric: Metric,
    label: np.ndarray,
    probability: np.ndarray,
    people: np.ndarray,
    group: Group,
    seed: int | None = None,
) -> Estimate:
    """Return the estimate of a metric in one training, from samples of one group (data and site).

    `label` (n,) are true classes, `probability` (n, classes) the predictions, and `people` (n,) the numbers of the
    patients; `seed` is the seed of the training.
    """
    value, influence = metric.value(label, probability), metric.influence(label, probability)
    return single(value, influence, people, group, seed, metric.scale)


def _alike(influence: np.ndarray) -> bool:
    """Return whether the influences (patients,) of all patients are zero, up to rounding errors."""
    return bool((np.abs(influence) <= ALIKE).all())


def _in_step(variances: Sequence[float]) -> float:
    """Return the variance of a sum of perfectly correlated values, from the variance of each."""
    return float(sum(map(math.sqrt, variances)) ** 2)


class _Column(NamedTuple):
    """The samples that count in one part of a value, such as a class, with their patients."""

    value: np.ndarray
    mean: np.ndarray
    sizes: np.ndarray

    @property
    def alike(self) -> bool:
        """True if all patients have equally many samples, and all samples of a patient have the same influence."""
        if not len(self.sizes) or self.sizes.min() < self.sizes.max():
            return False
        return bool((np.abs(self.value - self.mean) <= ALIKE).all())


def _over_patients(influence: np.ndarray, people: np.ndarray) -> tuple[np.ndarray, list[_Column]]:
    """Return the influence of each patient (patients,), and the samples of each column with their patients.

    `influence` (n, columns) are the influences of samples, and `people` (n,) the numbers of their patients. The
    influence of a patient is the sum over samples times sqrt(k / (k - 1)) for k patients, so that the sum of squares is
    the variance.
    """
    width = int(people.max(initial=-1)) + 1
    total = np.zeros(width)
    columns = []
    for part in influence.T:
        counted = ~np.isnan(part)
        value, whose = part[counted], people[counted]
        sizes = np.bincount(whose, minlength=width)
        sums = np.bincount(whose, value, minlength=width)
        columns.append(_Column(value, sums[whose] / sizes[whose], sizes[sizes > 0]))
        number = len(columns[-1].sizes)
        # The factor stands on the influence, so that sums of estimates need not know where it came from.
        total += sums * math.sqrt(number / max(number - 1, 1))
    return total, columns


def _agreement(columns: Sequence[_Column]) -> tuple[float, float]:
    """Return how far the samples of a patient agree, from 0 to 1, and the effective number of independent samples.

    The agreement is the share of the variance of influences that lies between patients, and 1 if nothing varies. The
    effective number follows from Kish's design effect (Survey Sampling, 1965), for the class in which it is smallest.
    """
    within = whole = 0.0
    for column in columns:
        within += float(((column.value - column.mean) ** 2).sum())
        whole += float((column.value**2).sum())
    agreement = 1.0 if whole == 0 else max(1 - within / whole, 0.0)
    units = math.inf
    for column in columns:
        samples, patients = len(column.value), len(column.sizes)
        if patients:
            units = min(units, samples / (1 + (samples / patients - 1) * agreement))
    return agreement, units


def _sided(part: Part, value: float, scale: str) -> Part:
    """Return the contribution of patients with its least variance (`floor`) and its variance to either side.

    `value` is the number that the patients contribute to. The sides are the fields `below` and `above`, and depend on
    the `scale`:

    Scales `share` and `unit`: the sides are those of Wilson's interval, for the effective number of independent
    samples. The least variance is the one if half a patient more had been predicted wrongly, as far as the samples of a
    patient agree, since few patients may all be right by chance. So n patients who are all right have Wilson's interval
    of n of n.

    Scale `logit`, for an AUC A and an average precision: the sides are those of the interval on the logit scale, where
    the standard error is se / (A (1 - A)) (Snell and others, Stat Methods Med Res 2018;27:3505). At a score of 1, half
    a pair of patients counts as ranked wrongly.

    With any other scale, the contribution is returned unchanged.
    """
    if not 0 <= value <= 1 or not part.rarer:
        return part
    if scale in WILSON:
        part = replace(part, floor=0.5 * part.agreement / part.units**2)
        if not part.variance:
            return part
        variance = part.variance
        if math.isinf(part.df):  # Wilson's interval has the variance that follows from the share
            variance = max(variance * (part.rarer - 1) / part.rarer, part.floor)
        worth = max(value * (1 - value), 0.5 * part.agreement / part.units) / variance
        low, high = wilson(value, worth)
        quantile = ndtri((1 + LEVEL) / 2)
    elif scale == "logit":
        least = 0.5 / part.rarer**2
        part = replace(part, floor=least * (1 - least) / part.rarer**2)
        inside = min(max(value, least), 1 - least)
        quantile = stdtrit(max(part.df, 1), (1 + LEVEL) / 2)
        half = quantile * math.sqrt(part.variance) / (inside * (1 - inside))
        low, high = (float(expit(logit(inside) + step)) for step in (-half, half))
    else:
        return part
    below, above = (max(width, 0.0) ** 2 / quantile**2 for width in (value - low, high - value))
    return replace(part, below=below / part.variance, above=above / part.variance)


def over_trainings(trainings: Sequence[Estimate]) -> Estimate:
    """Return the estimates of single trainings on the same samples as one estimate over trainings.

    It has no interval if one of them has no influences.
    """
    values = np.concatenate([training.values for training in trainings])
    seeds = tuple(seed for training in trainings for seed in training.seeds)
    scale = trainings[0].scale
    if not all(training.parts for training in trainings):
        return Estimate(values, seeds, scale=scale)
    parts = {}
    for group in trainings[0].parts:
        each = [training.parts[group] for training in trainings]
        part = Part(
            _stacked([part.influence for part in each]),
            min(part.tested for part in each),
            min(part.rarer for part in each),
            min(part.df for part in each),
            float(np.mean([part.agreement for part in each])),
            float(np.mean([part.units for part in each])),
            of_samples=_in_step([part.of_samples for part in each]) / len(each) ** 2,
        )
        parts[group] = _sided(part, float(values.mean()), scale)
    return Estimate(values, seeds, parts, min(training.fewest for training in trainings), scale)


def over_folds(folds: Sequence[Estimate]) -> Estimate:
    """Return the mean of the scores that the models of several folds of one training have on the same samples."""
    whole = mean(folds)
    if len(folds) == 1 or not whole.parts:
        return whole
    scale = folds[0].scale
    parts = {group: _sided(part, whole.mean, scale) for group, part in whole.parts.items()}
    return replace(whole, parts=parts, scale=scale)


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of estimates, such as the scores at several sites, with equal weights."""
    return _sum_of([(1 / len(estimates), estimate) for estimate in estimates])


def minus(left: Estimate, right: Estimate) -> Estimate:
    """Return the difference `left` minus `right`, in which trainings (by seed) and patients are paired."""
    return _sum_of([(1.0, left), (-1.0, right)])


def times(estimate: Estimate, factor: float) -> Estimate:
    """Return an estimate multiplied by a factor."""
    return _sum_of([(factor, estimate)])


def _sum_of(parts: Sequence[tuple[float, Estimate]]) -> Estimate:
    """Return the weighted sum of estimates, over the seeds that all of them have.

    `parts` are weights with estimates.
    """
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    if not all(len(estimate.values) for _, estimate in parts):
        return NOTHING
    trained = [estimate.seeds for _, estimate in parts if estimate.seeds]
    seeds = [seed for seed in trained[0] if all(seed in others for others in trained)] if trained else []
    chosen = [(weight, estimate.of_seeds(seeds)) for weight, estimate in parts] if trained else parts
    values = np.sum([weight * estimate.values for weight, estimate in chosen], axis=0)
    found: dict[Group, Part] = {}
    signs: dict[Group, set[bool]] = defaultdict(set)
    for weight, estimate in chosen:
        for group, part in estimate.parts.items():
            scaled = part.times(weight)
            signs[group].add(weight > 0)
            found[group] = found[group].plus(scaled, len(signs[group]) == 1) if group in found else scaled
    return Estimate(values, tuple(seeds), found, min(estimate.fewest for _, estimate in parts))


def _stacked(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Return influences (trainings, patients) of several tables as one.

    Patients that a table lacks have influence 0 in it.
    """
    width = max(table.shape[1] for table in tables)
    return np.concatenate(
        [table if table.shape[1] == width else np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables]
    )


def _added(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the sum of two tables of influences (trainings, patients); further patients of one table come last."""
    narrow, wide = sorted((left, right), key=lambda table: table.shape[1])
    out = wide.copy()
    out[:, : narrow.shape[1]] += narrow
    return out


def crossed(trainings: Spread, patients: Spread, residual: Spread) -> Spread:
    """Return the variance of a mean over new trainings and new patients, if all trainings score the same patients.

    It is trainings + patients - residual in the two-way analysis of variance, in which a component below zero counts as
    zero. The degrees of freedom are Satterthwaite's (Hillis, Stat Med 2007;26:596). If trainings, or patients, vary no
    more than the residual, their own component is zero and their degrees of freedom must not count. These fade out as
    the component falls below a tenth of the variance of its source, since the interval would jump otherwise.
    """
    total = residual.variance
    squares = [(residual.variance**2, residual.df)]
    for source in (trainings, patients):
        own = max(source.variance - residual.variance, 0.0)
        total += own
        fading = min(own / (FADES * source.variance), 1.0) if source.variance else 0.0
        squares.append((fading * source.variance**2, source.df))
    return Spread(total, _satterthwaite(total, squares))


def _sum(parts: Sequence[tuple[float, float]]) -> Spread:
    """Return the sum of independent variances, each given with its degrees of freedom."""
    total = float(sum(variance for variance, _ in parts))
    return Spread(total, _satterthwaite(total, [(variance**2, df) for variance, df in parts]))


def _satterthwaite(total: float, squares: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum of variances by Satterthwaite (Biometrics Bull 1946;2:110).

    `total` is the sum, and `squares` are the squared variances with their degrees of freedom. The result is infinite if
    no variance has finite degrees of freedom.
    """
    inverse = sum(square / df for square, df in squares if square and df)
    return float(total**2 / inverse) if inverse else math.inf


def bounds(mean: float, spread: Spread, level: float = LEVEL) -> tuple[float, float]:
    """Return the t interval of a mean at confidence `level`, from its variance and degrees of freedom (`spread`)."""
    half = stdtrit(spread.df, (1 + level) / 2) * np.sqrt(spread.variance)
    return float(mean - half), float(mean + half)


def one_sided_p(mean: float, spread: Spread) -> float:
    """Return the one-sided p value of the t test whose null hypothesis is that a mean is zero or less.

    It is below 0.025 if the 95% interval is above 0. Without any variance it is 0 or 1, and 0.5 for a mean of zero.
    """
    if spread.variance <= 0:
        return float(0.5 * (1 - np.sign(mean)))
    return float(stdtr(spread.df, -mean / np.sqrt(spread.variance)))


def wilson(share: float, n: float) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share of n independent samples (J Am Stat Assoc 1927;22:209).

    `n` may be fractional; NaN if it is 0 or less.
    """
    z = ndtri((1 + LEVEL) / 2)
    n = n if n > 0 else math.nan
    centre = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n * n))
    low, high = (end / (1 + z**2 / n) for end in (centre - half, centre + half))
    # Rounding leaves a bound of 0 or 1 slightly beside it.
    return 0.0 if share == 0 else float(low), 1.0 if share == 1 else float(high)
