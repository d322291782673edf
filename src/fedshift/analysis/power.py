"""Statistical power of a study before it runs: which loss at external sites its patients and trainings can show.

Predictions are not known beforehand. So patients are simulated, with the class frequencies of the test patients, and a
model that reaches an assumed score: each image has a normally distributed score for each class, with a higher mean for
its own class. Intervals are then computed by `estimates`, as for the results of a study.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import nctdtr, stdtrit

from ..core import registry
from ..core.rng import stream
from ..core.spelling import counted
from ..data.prepared import persons
from ..metrics import Metric
from ..tasks.segmentation import NUMBERS
from . import effects, estimates
from .conditions import Condition, averaged, conditions
from .estimates import Estimate, Spread
from .values import inner, listed, number

if TYPE_CHECKING:
    import pandas as pd

    from ..study.plan import Plan

HOME = 0.85
"""The assumed score at internal sites."""
ALIKE = 0.4
"""The assumed correlation between the scores of two images of the same patient."""
TRAININGS = 0.01
"""The assumed standard deviation of the loss over trainings."""
APART = 0.15
"""The assumed share of the variance over patients that differs from training to training (the residual)."""
MASKS = 0.15
"""The assumed standard deviation over patients of the score of a mask."""
OFTEN = 0.8
"""The wanted power: the share of studies in which a true effect is shown."""
INVENTED = 1500
"""Number of simulated patients; each class has at least a thirtieth of them."""
IMAGES = 8
"""The most images of a simulated patient."""
QUALITIES = np.linspace(0, 5, 21)
"""Tried distances between the class means, in standard deviations; the one that gives the assumed score is used."""
MOST = 1000
"""The largest factor on the number of patients that is tried; beyond it, more patients are said not to help."""
HALVINGS = 12
"""Number of bisection steps in the search for a loss or a number of patients."""


class Site(NamedTuple):
    """The number of test patients of a site, in total and by class; without classes for masks."""

    role: str
    site: str
    patients: int
    by_class: tuple[int, ...]

    def times(self, factor: float) -> Site:
        """Return the site with `factor` times the patients."""
        by_class = tuple(round(factor * patients) for patients in self.by_class)
        return self._replace(patients=round(factor * self.patients), by_class=by_class)


class Invented:
    """Simulated patients, and predictions for them that reach an assumed value of a metric.

    Parameters
    ----------
    shares : frequencies of the classes (classes,); a single one for masks
    images : number of images of a patient
    structures : number of structures of a mask; 0 for images with a class
    """

    def __init__(self, metric: Metric, shares: Sequence[float], images: int, structures: int) -> None:
        self.metric = metric
        self.structures = structures
        sizes = np.maximum(np.round(INVENTED * np.asarray(shares)), INVENTED / 30).astype(int)
        self.patients = int(sizes.sum())
        self.people = np.repeat(np.arange(self.patients), images)
        self.label = np.repeat(np.arange(len(sizes)), sizes)[self.people]
        rng = stream(0, "power")
        own, of_images = (rng.standard_normal((n, len(sizes))) for n in (self.patients, len(self.people)))
        self.noise = math.sqrt(ALIKE) * own[self.people] + math.sqrt(1 - ALIKE) * of_images
        # a search asks again and again for the levels at home
        self._influences = functools.lru_cache(maxsize=4)(self._influence)
        self.estimate = functools.lru_cache(maxsize=1000)(self._estimate)
        self.values = np.array([metric.value(self.label, self._answers(quality)) for quality in QUALITIES])

    @property
    def guess(self) -> float:
        """The value of the metric for predictions that do not tell classes apart."""
        return float(self.values[0])

    @property
    def reaches(self) -> bool:
        """True if the metric can take the assumed score: its value rises above it with the distance of the classes."""
        return not np.isnan(self.values).any() and self.guess < HOME - 0.01 and self.values.max() > HOME

    def _answers(self, quality: float) -> np.ndarray:
        """Return simulated predictions: class probabilities, or for masks the numbers that are stored of a mask.

        `quality` is the distance between the means of the classes in standard deviations.
        """
        if self.structures:
            score = np.clip(quality / QUALITIES[-1] + MASKS * self.noise[:, 0], 0, 1)
            kept = {"tp": score, "fp": 1 - score, "fn": 1 - score, "nsd": score}
            columns = np.stack([kept.get(name, np.full(len(score), np.nan)) for name in NUMBERS], 1)
            return np.tile(columns, (1, self.structures))
        logits = self.noise + quality * (self.label[:, None] == np.arange(self.noise.shape[1]))
        weights = np.exp(2 * (logits - logits.max(1, keepdims=True)))
        return np.asarray(weights / weights.sum(1, keepdims=True))

    def _influence(self, level: float) -> np.ndarray:
        """Return the influence (n, columns) of each simulated image on the metric, if its value is `level`."""
        quality = float(np.interp(level, np.maximum.accumulate(self.values), QUALITIES))
        influence = self.metric.influence(self.label, self._answers(quality))
        assert influence is not None
        return influence.reshape(len(self.label), -1)

    def _estimate(self, level: float, site: Site) -> Estimate:
        """Return the estimate of the value `level` at a site, with the variance for the number of its test patients.

        It is empty if the site has no patient of a class that the metric needs.
        """
        influence = self._influences(level)
        tested = []
        for part in influence.T:
            classes = np.unique(self.label[~np.isnan(part)])
            there = min(sum(site.by_class[k] for k in classes), site.patients) if site.by_class else site.patients
            tested.append((there, len(np.unique(self.people[~np.isnan(part)]))))
        if not all(there for there, _ in tested):
            return estimates.NOTHING
        # the variance over patients of a part falls with their number
        scaled = influence * np.sqrt([invented / there for there, invented in tested])
        group = (site.role, site.site)
        whole = estimates.single(level, scaled, self.people, group, 0, self.metric.scale)
        rarer = min(there for there, _ in tested)
        part = whole.parts[group]
        df, units = part.df if math.isinf(part.df) else rarer - 1.0, part.units * rarer / part.rarer
        part = replace(part, tested=site.patients, rarer=rarer, df=df, units=units)
        # anew over trainings, which makes the sides of the interval for so few patients
        return estimates.over_trainings([replace(whole, parts={group: part}, fewest=rarer)])


@dataclass(frozen=True)
class Design:
    """The design of a study, as far as its power depends on it: test patients at each site, partitions and trainings.

    Attributes
    ----------
    metric : the headline metric
    partitions : the sites of each partition, over which a loss is averaged
    images : number of images of a patient
    structures : number of structures of a mask; 0 for images with a class
    seeds : number of trainings
    size : the loss of interest: the margin of the study, or 0.05 (MARGIN) if it has none
    declared : True if the study has a margin, so that it may conclude `holds up`
    """

    metric: Metric
    partitions: tuple[tuple[Site, ...], ...]
    images: int
    structures: int
    seeds: int
    size: float
    declared: bool

    @functools.cached_property
    def invented(self) -> Invented:
        """Simulated patients with the class frequencies of all test patients."""
        counts = [site.by_class or (site.patients,) for sites in self.partitions for site in sites]
        sums = np.sum(counts, axis=0)
        return Invented(self.metric, sums / sums.sum(), self.images, self.structures)

    def loss(self, lost: float, factor: float = 1.0, site: str = "") -> Estimate:
        """Return the estimate of a loss outside, or at one external `site`, if its true value is `lost`.

        `factor` multiplies the number of patients.
        """
        asked = [s for s in self.partitions if not site or ("external", site) in {one[:2] for one in s}]
        return estimates.mean([self._loss(sites, lost, factor, site) for sites in asked])

    def _loss(self, sites: Sequence[Site], lost: float, factor: float, site: str) -> Estimate:
        """Return the estimate of a loss in one partition, given by its `sites`, if the true loss is `lost`.

        `factor` multiplies the number of patients. If `site` is not empty, the loss is that of this external site
        alone.
        """
        means = []
        for role, level in (("internal", HOME), ("external", HOME - lost)):
            own = [one for one in sites if one.role == role and (role == "internal" or site in ("", one.site))]
            found = [self.invented.estimate(level, one.times(factor)) for one in own]
            # a page leaves out the sites without an interval where others have one
            means.append(estimates.mean([one for one in found if one.known] or [estimates.NOTHING]))
        return estimates.minus(*means)

    def shown(self, lost: float, factor: float = 1.0, site: str = "") -> float:
        """Return the probability that a true loss is shown: the lower end of its interval is above zero.

        The loss is `lost` outside, or at one external `site`, with `factor` times the patients.
        """
        return self._often(lost, self.loss(lost, factor, site), higher=False)

    def holds(self, factor: float = 1.0) -> float:
        """Return the probability that a study without a loss concludes `holds up`: the upper end is below the margin.

        `factor` multiplies the number of patients.
        """
        return self._often(self.size, self.loss(0.0, factor), higher=True)

    def within(self, factor: float = 1.0) -> float:
        """Return the power of the study for its question, with `factor` times the patients.

        With a margin, it is the probability of `holds up` if nothing is lost, otherwise of showing a loss of `size`.
        """
        return self.holds(factor) if self.declared else self.shown(self.size, factor)

    def _often(self, distance: float, loss: Estimate, higher: bool) -> float:
        """Return the probability that an end of the interval of a loss lies less than `distance` beyond its true value.

        The end is the upper one if `higher`, else the lower one. The probability is that of a t test, by the noncentral
        t distribution (Johnson, Kotz and Balakrishnan, 1995, chapter 31).
        """
        if not loss.known:
            return 0.0
        end, around = (
            self._spread(patients, loss.over_patients) for patients in (loss.towards(higher), loss.over_patients)
        )
        error = math.sqrt(around.variance)
        quantile = stdtrit(end.df, (1 + estimates.LEVEL) / 2) * math.sqrt(end.variance) / error
        return float(1 - nctdtr(end.df, distance / error, quantile))

    def _spread(self, patients: Spread, around: Spread) -> Spread:
        """Return the variance of a mean over the study's trainings, under the assumed variances.

        `patients` is the variance over patients of one training towards one side, and `around` the same for both sides.
        """
        if self.seeds == 1:
            return patients
        residual = Spread(APART * around.variance / self.seeds, (self.seeds - 1) * around.df)
        trainings = Spread(TRAININGS**2 / self.seeds + residual.variance, self.seeds - 1)
        averaged = 1 - APART * (1 - 1 / self.seeds)
        return estimates.crossed(trainings, Spread(averaged * patients.variance, patients.df), residual)

    def smallest(self, site: str = "") -> float:
        """Return the smallest loss, outside or at one external `site`, that is shown with a power of 80%.

        Return NaN if no loss is.
        """
        return _least(lambda lost: self.shown(lost, site=site), HOME - self.invented.guess)

    @functools.cached_property
    def factor(self) -> float:
        """The factor on the number of patients that gives the study a power of 80%.

        It is NaN if more patients do not suffice.
        """
        return math.exp(_least(lambda power: self.within(math.exp(power)), math.log(MOST)))

    def patients(self, role: str, factor: float = 1.0) -> int:
        """Return the number of test patients of a role, times `factor`; rounded to two digits unless `factor` is 1."""
        sites = {site for sites in self.partitions for site in sites if site.role == role}
        number = factor * sum(site.patients for site in sites)
        return round(number) if factor == 1 else int(round(number, 1 - math.floor(math.log10(max(number, 1)))))


def _least(often: Callable[[float], float], high: float) -> float:
    """Return the smallest value from 0 to `high` at which the increasing function `often` reaches 0.8, else NaN."""
    if often(high) < OFTEN:
        return math.nan
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if often(middle) < OFTEN else (low, middle)
    return high


def design(plan: Plan, samples: pd.DataFrame, data: str) -> Design | None:
    """Return the design of a study, or None if its power for a loss outside cannot be computed.

    That needs internal and external test samples, a global model, and a headline metric from 0 to 1 with an interval.
    `samples` are the samples of the data with the id `data`, with the columns sample, site, label and patient.
    """
    metric: Metric = registry.build("metric", plan.study.headline)
    every = [
        one
        for one in conditions(plan).values()
        if one.run.data.id == data
        and one.tests_inside
        and one.partition.external
        and one.run.algorithm.collaboration.has_global_model
    ]
    if not every or not metric.has_interval or metric.ends != (0, 1) or not metric.higher_is_better:
        return None
    first = every[0]
    alike = [one for one in every if one.family == first.family] if averaged(every) else [first]
    task, classes = plan.study.task, len(first.run.data.dataset.classes)
    samples = samples.assign(person=persons(samples))
    tested = [_assigned(one, samples) for one in alike]
    whole = np.sum([(len(rows), rows.groupby("site")["person"].nunique().sum()) for rows in tested], axis=0)
    margin = effects.margin(plan, metric)
    classified = task.has_probabilities
    images = min(round(whole[0] / whole[1]), IMAGES) if classified and whole[1] else 1
    structures = 0 if classified else len(task.columns(first.run.data.dataset.classes)) // len(NUMBERS)
    pairs = zip(alike, tested, strict=True)
    sites = tuple(tuple(_tested(one, rows, classes if classified else 0)) for one, rows in pairs)
    found = Design(metric, sites, images, structures, len(first.seeds), margin or effects.MARGIN, margin > 0)
    both = all({site.role for site in sites} == {"internal", "external"} for sites in found.partitions)
    return found if both and found.invented.reaches else None


def _assigned(condition: Condition, samples: pd.DataFrame) -> pd.DataFrame:
    """Return the test samples of a condition, each once over its folds: site, role, label and patient (`person`)."""
    import pandas as pd

    partitions = dict.fromkeys(run.partition for run in condition.runs.values())
    parts = [partition.divide(samples)[0] for partition in partitions]
    rows = pd.concat([part[part["split"] == "test"] for part in parts]).drop_duplicates("sample")
    return rows.merge(samples[["sample", "label", "person"]], on="sample")


def _tested(condition: Condition, rows: pd.DataFrame, classes: int) -> Iterator[Site]:
    """Yield the sites of a condition with their numbers of test patients.

    `rows` are its test samples, and `classes` is the number of classes, 0 for masks.
    """
    for role, site in condition.sites():
        there = rows[(rows["site"] == site) & (rows["role"] == role)]
        if len(there):
            by_class = there.groupby("label")["person"].nunique().reindex(range(classes), fill_value=0)
            yield Site(role, site, there["person"].nunique(), tuple(map(int, by_class)))


def lines(found: Design, unit: str = "patients") -> Iterator[str]:
    """Yield lines of text about the power of a study: the smallest loss it can show, and what `holds up` would take.

    `unit` is the word for patients.
    """
    metric = found.metric
    outside, home = (found.patients(role) for role in ("external", "internal"))
    sites = {one.site: one for sites in found.partitions for one in sites if one.role == "external"}
    trained = counted(found.seeds, "training")
    yield f"  beforehand, with {outside:,} test {unit} outside, {home:,} at home, and {trained}:"
    least = found.smallest()
    if math.isnan(least):
        yield f"    no loss of {inner(metric)} can be seen outside"
    else:
        yield f"    a loss of {inner(metric)} under {_points(least, metric)} is likely to be missed outside"
    if len(sites) > 1:
        few, many = (pick(sites.values(), key=lambda one: min(one.by_class or (one.patients,))) for pick in (min, max))
        alone = [
            f"{_points(loss, metric)} at {one.site}" if not math.isnan(loss) else f"none at {one.site}"
            for one in dict.fromkeys([many, few])
            for loss in [found.smallest(one.site)]
        ]
        yield f"    at a single site: {listed(alone)}"
    yield f"    {_asked(found, unit)}"
    trainings = f", trainings whose loss varies by {_points(TRAININGS, metric)}" if found.seeds > 1 else ""
    alike = f", images of one patient that correlate by {ALIKE:g}" if found.images > 1 else ""
    level = number(HOME, metric) + " %" * metric.percent
    spread = f", scores of masks with a standard deviation of {MASKS:g}" if found.structures else ""
    yield f"    assumed: {inner(metric)} {level} at home{trainings}{alike}{spread}"


def _asked(found: Design, unit: str) -> str:
    """Return a sentence with the power of the study for its question and, if that is too low, the needed patients.

    `unit` is the word for patients.
    """
    size = _points(found.size, found.metric)
    often = found.within()
    subject = f'"holds up" (a loss under {size}) is said' if found.declared else f"a loss of {size} is seen"
    said = f"{subject} in {100 * often:.0f} of 100 studies that {'lose nothing' if found.declared else 'have it'}"
    if often >= OFTEN:
        return f"{said}: within reach"
    if math.isnan(found.factor):
        return f"{said}: out of reach, and more {unit} alone do not bring it within: add seeds"
    outside, home = (found.patients(role, found.factor) for role in ("external", "internal"))
    return f"{said}: out of reach; about {outside:,} test {unit} outside and {home:,} at home would be needed"


def _points(x: float, metric: Metric) -> str:
    """Return a difference in the metric as text, in points if the metric is in percent."""
    return f"{number(x, metric)} points" if metric.percent else number(x, metric)
