"""Numbers with the influence of each patient and the value of each training, and the one interval made of them.

The influence of a patient is by how much the number changes, to first order, with the weight of that patient. The sum
of its squares over patients is the variance of the number over patients. Means and differences of numbers have the
means and differences of influences, so that a patient who counts in several of them is counted once.

Near its ends a share or an AUC varies more towards the middle than towards the end, and where all patients are alike
the influences are zero though nothing is certain. So each part of a number knows its variance to either side, and the
least that it may be.
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
"""With fewer patients there is no interval."""
LEVEL = 0.95
"""Probability that an interval covers."""
MANY = 10**9
"""Patients of a number that is known beforehand, such as the score of a guess."""
ALIKE = 1e-12
"""Patients whose influences are no larger are alike: this is the noise of floating-point numbers."""
FADES = 0.1
"""Below this share of its source, a component of variance gives up its degrees of freedom bit by bit."""
WILSON = ("share", "unit")
"""Scales of numbers whose interval is Wilson's."""
NO_INTERVAL = (math.nan, math.nan)
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
class Part:
    """What the patients of one group add to a number.

    Attributes
    ----------
    influence : the scaled influence of each patient on the value of each training (trainings, patients)
    tested : the number of patients, each once
    rarer : the number of patients of the rarer class where a number is made of single classes; else that of all
    df : the degrees of freedom of the variance over these patients
    agreement : how far the samples of a patient agree: 1 where all of them are answered alike, 0 where they are
        independent
    units : so many independent samples would vary as much as the samples of these patients, given their `agreement`
    floor : the least variance over these patients (see `_sided`)
    below, above : the variance towards lower and towards higher numbers, as multiples of the variance over these
        patients
    weight : the squared weight of these patients' own number in the number
    of_samples : the variance as if each sample were a patient, where these patients are alike in what the number is
        made of, else 0. It counts where they are alike in the number, too.
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
        """The variance of the mean over trainings over these patients, without its sides."""
        influence = self.influence.mean(0)
        varied = self.of_samples if _alike(influence) else float((influence**2).sum())
        return max(varied, self.floor)

    def times(self, factor: float) -> Part:
        """Return the part of a number that is multiplied by a factor."""
        below, above = (self.below, self.above) if factor >= 0 else (self.above, self.below)
        squared = {name: factor**2 * getattr(self, name) for name in ("floor", "weight", "of_samples")}
        return replace(self, influence=factor * self.influence, below=below, above=above, **squared)

    def plus(self, other: Part, together: bool) -> Part:
        """Return the part of the sum of two numbers of the same patients: one who counts in both counts once.

        `together` says that both count in one direction: the sides are then means by weight. Else they are a difference
        of the same patients, whose sides are alike.
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
    """A number of a study, such as a score or a difference of scores: its value in each training, and its patients.

    Attributes
    ----------
    values : the number of each training (trainings,)
    seeds : the seed of each training, by which trainings are paired. Empty for a number that no training changes.
    parts : what the patients of each group add
    fewest : the fewest patients behind any part of the number, such as a site or a class
    scale : the scale of a number that is no sum of others: see `single`
    """

    values: np.ndarray
    seeds: tuple[int, ...] = ()
    parts: Mapping[Group, Part] = field(default_factory=dict)
    fewest: int = 0
    scale: str = ""

    @functools.cached_property
    def mean(self) -> float:
        """The mean over trainings; NaN without any."""
        return float(self.values.mean()) if len(self.values) else math.nan

    @property
    def std(self) -> float:
        """The standard deviation over trainings; NaN for a single one."""
        return float(self.values.std(ddof=1)) if len(self.values) > 1 else math.nan

    @property
    def patients(self) -> int:
        """The number of patients behind the number, each once."""
        return sum(part.tested for part in self.parts.values())

    @property
    def rarer(self) -> int:
        """The number of patients of the rarer class of each site, summed over sites."""
        return sum(part.rarer for part in self.parts.values())

    @property
    def over_patients(self) -> Spread:
        """The variance over patients, with these trainings, to either side alike."""
        return _sum([(part.variance, part.df) for part in self.parts.values()])

    def towards(self, higher: bool) -> Spread:
        """Return the variance over patients, with these trainings, towards higher or towards lower numbers."""
        sides = ((part.above if higher else part.below, part) for part in self.parts.values())
        return _sum([(part.variance * side, part.df) for side, part in sides])

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
        for part in self.parts.values():
            squares = ((part.influence - part.influence.mean(0)) ** 2).sum()
            parts.append((squares / (number * (number - 1)), (number - 1) * (part.rarer - 1)))
        return _sum(parts)

    def spread(self, higher: bool) -> Spread:
        """Return the variance over new patients and trainings to one side; over patients alone, with one training."""
        patients = self.towards(higher)
        if len(self.values) < 2:
            return patients
        return crossed(self.over_trainings, patients, self.residual)

    @property
    def known(self) -> bool:
        """True where there are enough patients for an interval and they, or their samples, differ.

        A difference of zero is known without that: it is true of these patients, and nothing is sure about it.
        """
        if not self.over_patients.variance and (self.scale or abs(self.mean) > ALIKE):
            return False
        return self.fewest >= FEWEST and not np.isnan(self.mean)

    def interval(self) -> tuple[float, float]:
        """Return the interval over patients and trainings; NaN with too few patients."""
        return self._interval(self.spread)

    def interval_over_patients(self) -> tuple[float, float]:
        """Return the interval over patients, with these trainings; NaN with too few of them."""
        return self._interval(self.towards)

    def _interval(self, spread: Callable[[bool], Spread]) -> tuple[float, float]:
        if not self.known:
            return NO_INTERVAL
        return bounds(self.mean, spread(False))[0], bounds(self.mean, spread(True))[1]

    def bounded(self, ends: tuple[float, float], difference: bool = False) -> Bounds:
        """Return both intervals, cut at the `ends` of what the number can be; those of a difference, with `difference`.

        Every interval of a table comes from here, so that equal numbers have equal intervals in all tables.
        """
        low, high = ends
        if difference:
            low, high = low - high, high - low
        both = (*self.interval(), *self.interval_over_patients())
        return Bounds(*(float(bound) for bound in np.clip(both, low, high)))

    @property
    def p(self) -> float:
        """The two-sided p of the t test that the number is zero, over patients and trainings; NaN with too few."""
        return 2 * min(self.p_above(0.0), 1 - self.p_above(0.0)) if self.known else math.nan

    def p_above(self, bound: float) -> float:
        """Return the one-sided p of the t test whose null hypothesis is that the number is at most `bound`.

        It is below 0.025 exactly where the lower end of the 95% interval is above `bound`. NaN with too few patients.
        """
        if not self.known:
            return math.nan
        return one_sided_p(self.mean - bound, self.spread(self.mean < bound))

    def of_seeds(self, seeds: Sequence[int]) -> Estimate:
        """Return the estimate from some of its trainings; the same for each where no training changes it."""
        rows = [self.seeds.index(seed) if self.seeds else 0 for seed in seeds]
        parts = {group: replace(part, influence=part.influence[rows]) for group, part in self.parts.items()}
        return replace(self, values=self.values[rows], seeds=tuple(seeds), parts=parts)

    def rounded(self, decimals: int) -> Estimate:
        """Return the estimate with so many decimals: the noise of floating-point numbers has no sign and no spread."""
        parts = {g: replace(part, influence=part.influence.round(decimals)) for g, part in self.parts.items()}
        return replace(self, values=self.values.round(decimals), parts=parts)


NOTHING = Estimate(np.empty(0))
"""The estimate of a number that has no value in any training."""


def single(
    value: float,
    influence: np.ndarray | None,
    people: np.ndarray,
    group: Group,
    seed: int | None = None,
    scale: str = "",
) -> Estimate:
    """Return the number of one training on samples of one group.

    Each part of the influence has the factor k / (k - 1) of the variance over its k patients. For an AUC, whose parts
    are the classes, that is the variance of DeLong with one sample of each patient, and Obuchowski's where each patient
    has both classes.

    Patients who are alike, such as ten with four right of five samples each, leave no variance, though other patients
    may differ. Their variance is then that of the samples, as if each were a patient.

    Parameters
    ----------
    influence : by how much the number changes with the weight of each sample, (n,), or (n, columns) where the number
        is a sum of parts that different samples count in, with NaN for samples that do not count in a part; None where
        that is unknown
    people : the numbers of the patients of the samples (n,), from 0
    scale : how the interval is made: see `Metric.scale`; empty for a number that is no score
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
    """Return the score of one training on samples of one group; see `single`."""
    value, influence = metric.value(label, probability), metric.influence(label, probability)
    return single(value, influence, people, group, seed, metric.scale)


def _alike(influence: np.ndarray) -> bool:
    """Return whether none of these patients (patients,) moves the number."""
    return bool((np.abs(influence) <= ALIKE).all())


def _in_step(variances: Sequence[float]) -> float:
    """Return the variance of a sum of numbers that vary together, each given by its own variance."""
    return float(sum(map(math.sqrt, variances)) ** 2)


class _Column(NamedTuple):
    """The influences of the samples that count in one part of a number, by patient.

    Attributes
    ----------
    value : the influence of each sample (samples,)
    mean : the mean influence of the samples of its patient, for each sample (samples,)
    sizes : the number of samples of each patient (patients,)
    """

    value: np.ndarray
    mean: np.ndarray
    sizes: np.ndarray

    @property
    def alike(self) -> bool:
        """True where patients have equally many samples, and all samples of a patient have one influence."""
        if not len(self.sizes) or self.sizes.min() < self.sizes.max():
            return False
        return bool((np.abs(self.value - self.mean) <= ALIKE).all())


def _over_patients(influence: np.ndarray, people: np.ndarray) -> tuple[np.ndarray, list[_Column]]:
    """Return the scaled influence of each patient (patients,), and the influences of samples (n, columns) by column."""
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
    """Return how far samples of a patient agree, from 0 to 1, and how many independent samples would vary as much.

    The first is the share of the variance that does not lie within patients, and 1 where nothing varies. The second
    follows from Kish's design effect (Survey Sampling, 1965), for the class where it is smallest.
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
    """Return the part with its least variance (`floor`) and its variance to either side (`below`, `above`).

    Scales `share` and `unit`: the sides are those of Wilson's interval, for as many independent samples as vary as much
    as these patients. The floor is the variance if half a patient more had been answered wrongly, as far as the samples
    of a patient agree, since few patients may all be right by chance. So n patients who are all right have Wilson's
    interval of n of n.

    Scale `logit`, of an AUC and an average precision: the sides are those of the interval on the logit scale, where the
    standard error is se / (A (1 - A)) (Snell and others, Stat Methods Med Res 2018;27:3505). At a score of 1, half a
    pair of patients counts as ranked wrongly.

    A part of any other scale is returned as it is.
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
    """Return the estimates of single trainings on the same samples as one; no interval where any of them has none."""
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
    """Return the mean of scores of the same samples, by the models of several folds of one training."""
    whole = mean(folds)
    if len(folds) == 1 or not whole.parts:
        return whole
    scale = folds[0].scale
    parts = {group: _sided(part, whole.mean, scale) for group, part in whole.parts.items()}
    return replace(whole, parts=parts, scale=scale)


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of estimates, such as those of several sites, each counted once."""
    return _sum_of([(1 / len(estimates), estimate) for estimate in estimates])


def minus(left: Estimate, right: Estimate) -> Estimate:
    """Return the difference of two estimates, paired by trainings and patients."""
    return _sum_of([(1.0, left), (-1.0, right)])


def times(estimate: Estimate, factor: float) -> Estimate:
    """Return an estimate multiplied by a factor."""
    return _sum_of([(factor, estimate)])


def _sum_of(parts: Sequence[tuple[float, Estimate]]) -> Estimate:
    """Return the weighted sum of estimates over the trainings that all of them have."""
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
    """Return tables of influences below each other; patients that some of them lack move nothing there."""
    width = max(table.shape[1] for table in tables)
    return np.concatenate(
        [table if table.shape[1] == width else np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables]
    )


def _added(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the sum of two tables of influences; patients that only one of them has come last."""
    narrow, wide = sorted((left, right), key=lambda table: table.shape[1])
    out = wide.copy()
    out[:, : narrow.shape[1]] += narrow
    return out


def crossed(trainings: Spread, patients: Spread, residual: Spread) -> Spread:
    """Return the spread of a mean over new trainings and new patients, who are scored by all trainings.

    It is that of trainings + patients - residual of the two-way analysis of variance, whose components below zero count
    as zero. The degrees of freedom are Satterthwaite's (Hillis, Stat Med 2007;26:596). Where trainings, or
    patients, vary no more than the residual, their own component is zero, and their degrees of freedom must not count:
    these fade out where the component is less than a tenth of that spread, since the interval would jump otherwise.
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
    """Return the degrees of freedom of a sum of variances (Biometrics Bull 1946;2:110); infinite without any.

    `squares` are the squares of the variances, each with its degrees of freedom.
    """
    inverse = sum(square / df for square, df in squares if square and df)
    return float(total**2 / inverse) if inverse else math.inf


def bounds(mean: float, spread: Spread, level: float = LEVEL) -> tuple[float, float]:
    """Return the t interval of a mean; the normal interval with infinite degrees of freedom."""
    half = stdtrit(spread.df, (1 + level) / 2) * np.sqrt(spread.variance)
    return float(mean - half), float(mean + half)


def one_sided_p(mean: float, spread: Spread) -> float:
    """Return the p of the t test that a mean is zero or less. It is below 0.025 where the 95% interval is above 0.

    Without any spread it is 0 or 1, and 0.5 for a mean of zero.
    """
    if spread.variance <= 0:
        return float(0.5 * (1 - np.sign(mean)))
    return float(stdtr(spread.df, -mean / np.sqrt(spread.variance)))


def wilson(share: float, n: float) -> tuple[float, float]:
    """Return the interval of a share of n independent samples (Wilson, J Am Stat Assoc 1927;22:209)."""
    z = ndtri((1 + LEVEL) / 2)
    n = n if n > 0 else math.nan
    centre = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n * n))
    low, high = (end / (1 + z**2 / n) for end in (centre - half, centre + half))
    # Rounding leaves a bound of 0 or 1 slightly beside it.
    return 0.0 if share == 0 else float(low), 1.0 if share == 1 else float(high)
