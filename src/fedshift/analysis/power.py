"""What a study can show with its patients, told before it runs: the power of its comparison of home and outside.

Nobody knows beforehand how a model will answer. So patients are invented, with the classes of those that are tested,
and a model that reaches an assumed score: every image has a score for each class, normal and with a higher mean for its
own class. The intervals of the numbers that follow are made by `estimates`, as those of a page are.
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
"""The assumed score at home."""
ALIKE = 0.4
"""The assumed correlation between the scores of two images of one patient."""
TRAININGS = 0.01
"""The assumed standard deviation of the loss over trainings."""
APART = 0.15
"""The assumed share of the variance over patients that differs from training to training."""
MASKS = 0.15
"""The assumed standard deviation over patients of the score of a mask."""
OFTEN = 0.8
"""The share of studies in which something is seen, so that it counts as within reach: the usual power."""
INVENTED = 1500
"""Patients that are invented, and of each class a thirtieth of them at least."""
IMAGES = 8
"""The most images that an invented patient has."""
QUALITIES = np.linspace(0, 5, 21)
"""Distances of the classes, in standard deviations, of which the one is taken that gives an assumed score."""
MOST = 1000
"""With so many times the patients, more of them alone are said not to help."""
HALVINGS = 12
"""Steps of a search for a loss or a number of patients."""


class Site(NamedTuple):
    """The tested patients of a site: all of them, and those of each class; images of masks have no classes."""

    role: str
    site: str
    patients: int
    by_class: tuple[int, ...]

    def times(self, factor: float) -> Site:
        """Return a site with so many times the patients."""
        by_class = tuple(round(factor * patients) for patients in self.by_class)
        return self._replace(patients=round(factor * self.patients), by_class=by_class)


class Invented:
    """Invented patients and a model for them, which gives an assumed value of a metric at any of several sites.

    `shares` are those of the classes (classes,), a single one for masks, and `images` those of a patient. `structures`
    is the number of structures of a mask; 0 for images with a class.
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
        """The value of a model that tells nothing apart."""
        return float(self.values[0])

    @property
    def reaches(self) -> bool:
        """True where the value rises with the distance of the classes, from below to above what is assumed."""
        return not np.isnan(self.values).any() and self.guess < HOME - 0.01 and self.values.max() > HOME

    def _answers(self, quality: float) -> np.ndarray:
        """Return what a task keeps of the predictions of a model: probabilities, or the numbers of masks."""
        if self.structures:
            score = np.clip(quality / QUALITIES[-1] + MASKS * self.noise[:, 0], 0, 1)
            kept = {"tp": score, "fp": 1 - score, "fn": 1 - score, "nsd": score}
            columns = np.stack([kept.get(name, np.full(len(score), np.nan)) for name in NUMBERS], 1)
            return np.tile(columns, (1, self.structures))
        logits = self.noise + quality * (self.label[:, None] == np.arange(self.noise.shape[1]))
        weights = np.exp(2 * (logits - logits.max(1, keepdims=True)))
        return np.asarray(weights / weights.sum(1, keepdims=True))

    def _influence(self, level: float) -> np.ndarray:
        """Return the influence of each image on a value (n, columns) of the metric."""
        quality = float(np.interp(level, np.maximum.accumulate(self.values), QUALITIES))
        influence = self.metric.influence(self.label, self._answers(quality))
        assert influence is not None
        return influence.reshape(len(self.label), -1)

    def _estimate(self, level: float, site: Site) -> Estimate:
        """Return the estimate of a value at a site, with the patients that are tested there."""
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
    """A study by its numbers: sites with their tested patients, for each partition, and its trainings.

    A loss is averaged over `partitions`, each given by its sites; `seeds` is the number of trainings. `size` is the
    loss that is asked about: the margin of the study or, where none is `declared` and `holds up` is not said, MARGIN.
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
        """The invented patients, with the shares of the classes of all tested ones."""
        counts = [site.by_class or (site.patients,) for sites in self.partitions for site in sites]
        sums = np.sum(counts, axis=0)
        return Invented(self.metric, sums / sums.sum(), self.images, self.structures)

    def loss(self, lost: float, factor: float = 1.0, site: str = "") -> Estimate:
        """Return the loss outside, or at one external site, with so many times the patients."""
        asked = [s for s in self.partitions if not site or ("external", site) in {one[:2] for one in s}]
        return estimates.mean([self._loss(sites, lost, factor, site) for sites in asked])

    def _loss(self, sites: Sequence[Site], lost: float, factor: float, site: str) -> Estimate:
        means = []
        for role, level in (("internal", HOME), ("external", HOME - lost)):
            own = [one for one in sites if one.role == role and (role == "internal" or site in ("", one.site))]
            found = [self.invented.estimate(level, one.times(factor)) for one in own]
            # a page leaves out the sites without an interval where others have one
            means.append(estimates.mean([one for one in found if one.known] or [estimates.NOTHING]))
        return estimates.minus(*means)

    def shown(self, lost: float, factor: float = 1.0, site: str = "") -> float:
        """Return how often a true loss is seen as sure: the lower end of its interval is above zero."""
        return self._often(lost, self.loss(lost, factor, site), higher=False)

    def holds(self, factor: float = 1.0) -> float:
        """Return how often a study that loses nothing says `holds up`: the upper end is below the margin."""
        return self._often(self.size, self.loss(0.0, factor), higher=True)

    def within(self, factor: float = 1.0) -> float:
        """Return how often the study says what it asks: that it holds up or, without a margin, that `size` is lost."""
        return self.holds(factor) if self.declared else self.shown(self.size, factor)

    def _often(self, distance: float, loss: Estimate, higher: bool) -> float:
        """Return the probability that the interval of an estimate ends before something at that distance.

        It is that of the t test with a noncentral t (Johnson, Kotz and Balakrishnan, 1995, chapter 31).
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
        """Return the spread of a mean over trainings, given that of one training to a side, and around its mean."""
        if self.seeds == 1:
            return patients
        residual = Spread(APART * around.variance / self.seeds, (self.seeds - 1) * around.df)
        trainings = Spread(TRAININGS**2 / self.seeds + residual.variance, self.seeds - 1)
        averaged = 1 - APART * (1 - 1 / self.seeds)
        return estimates.crossed(trainings, Spread(averaged * patients.variance, patients.df), residual)

    def smallest(self, site: str = "") -> float:
        """Return the smallest loss, outside or at one external site, that is shown OFTEN; NaN where there is none."""
        return _least(lambda lost: self.shown(lost, site=site), HOME - self.invented.guess)

    @functools.cached_property
    def factor(self) -> float:
        """So many times the patients would bring what the study asks within reach; NaN where more of them do not."""
        return math.exp(_least(lambda power: self.within(math.exp(power)), math.log(MOST)))

    def patients(self, role: str, factor: float = 1.0) -> int:
        """Return the number of tested patients of a role, each once, with so many times of them; else two digits."""
        sites = {site for sites in self.partitions for site in sites if site.role == role}
        number = factor * sum(site.patients for site in sites)
        return round(number) if factor == 1 else int(round(number, 1 - math.floor(math.log10(max(number, 1)))))


def _least(often: Callable[[float], float], high: float) -> float:
    """Return the least value from 0 to `high` at which something that grows is as frequent as OFTEN, else NaN."""
    if often(high) < OFTEN:
        return math.nan
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if often(middle) < OFTEN else (low, middle)
    return high


def design(plan: Plan, samples: pd.DataFrame, data: str) -> Design | None:
    """Return the design of a study of which a loss outside can be foreseen; None where it asks for none.

    `samples` are those of the dataset with the id `data`, with the columns sample, site, label and patient.
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
    """Return the test samples of a condition with site, role, label and person, each once over its folds."""
    import pandas as pd

    partitions = dict.fromkeys(run.partition for run in condition.runs.values())
    parts = [partition.divide(samples)[0] for partition in partitions]
    rows = pd.concat([part[part["split"] == "test"] for part in parts]).drop_duplicates("sample")
    return rows.merge(samples[["sample", "label", "person"]], on="sample")


def _tested(condition: Condition, rows: pd.DataFrame, classes: int) -> Iterator[Site]:
    for role, site in condition.sites():
        there = rows[(rows["site"] == site) & (rows["role"] == role)]
        if len(there):
            by_class = there.groupby("label")["person"].nunique().reindex(range(classes), fill_value=0)
            yield Site(role, site, there["person"].nunique(), tuple(map(int, by_class)))


def lines(found: Design, unit: str = "patients") -> Iterator[str]:
    """Yield what a study can show, in words: the smallest loss, where it is largest, and what "holds up" would take."""
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
    """Return how far what the study asks is within reach, and the patients that it would take."""
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
    return f"{number(x, metric)} points" if metric.percent else number(x, metric)
