"""Scores, losses at external sites and gains of inferences over the baseline, with intervals: effects.csv."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..io.paths import IDS, INFERENCE, LEVELS
from ..metrics import Metric
from ..study.declaration import MARGIN
from ..study.plan import Plan
from . import estimates, score
from .conditions import ALL, CONDITION, Condition, plain, several
from .estimates import Estimate
from .numbers import Names, Numbers, Row, row
from .predictions import Clusters, Predictions, Samples, clusters

COLUMNS = [
    *(*IDS, *CONDITION, "role", "site", "metric", "quantity"),
    *("mean", "std", "seeds", "patients", "rarer", "low", "high", "low_patients", "high_patients"),
    *("p_margin", "p_worse", *INFERENCE),
]
QUANTITIES = ("level", "level_of_all", "above_guess", "gap", "loss", "gain")
UNMOVED = ("auc", "balanced_accuracy")
"""Metrics whose chance level does not depend on the frequencies of the classes."""
Where = tuple[str, str, str, str]
"""Id of a partition, role, site and metric."""
Level = tuple[str, str, str, str, str]
"""The values of the columns LEVELS; the first is the id of a condition, or of a family for a mean over partitions."""


def left_out(conditions: Mapping[str, Condition], scores: pd.DataFrame, reference: pd.DataFrame) -> set[Where]:
    """Return the places (partition, role, site, metric) at which a score counts in no mean over sites.

    There the metric has no value in any run of the partition, or all test samples have one class, so that always giving
    this class is perfect. Both tables have the columns `score.PLACE`; `scores` also has `value`, and `reference` has
    `chance` and `majority`, the scores of a guess and of always giving the commonest class.
    """
    partitions = {key: condition.run.partition_id for key, condition in conditions.items()}
    place = ["role", "site", "metric"]
    counts = scores.groupby([scores["condition_id"].map(partitions), *place], sort=False)["value"].count()
    single = reference[(reference["majority"] == 1) & (reference["chance"] < 1)]
    of_one_class = zip(single["condition_id"].map(partitions), *(single[name] for name in place), strict=True)
    return set(counts.index[counts == 0]) | set(of_one_class)


def margin(plan: Plan, metric: Metric) -> float:
    """Return the largest loss at external sites with which a model still holds up, in units of the metric.

    It is the margin that the study declares for its headline metric; otherwise 0.05 for metrics in percent, and 0 for
    others.
    """
    if plan.study.margin is not None and metric.name == plan.study.headline:
        return plan.study.margin
    return MARGIN if metric.percent else 0.0


def gate(plan: Plan) -> Metric:
    """Return the metric that decides whether a model has learnt anything.

    It is a metric whose chance level does not depend on the frequencies of the classes, if the study has one, else the
    headline metric.
    """
    measured = {metric.name: metric for metric in score.metrics(plan)}
    names = (name for name in (plan.study.headline, *UNMOVED) if name in UNMOVED and name in measured)
    return measured[next(names, plan.study.headline)]


class Estimates:
    """The estimates of all scores of a study, by condition, role, site, inference and metric, and of their differences.

    Sites at which a metric is not defined count in no mean. A mean over several partitions has the family of a
    condition as its id.

    Parameters
    ----------
    scores : the rows of scores.csv, with the columns LEVELS, seed and value
    samples : a function that returns the table of samples of prepared data by the data's id
    """

    def __init__(self, names: Names, predicted: Predictions, scores: pd.DataFrame, samples: Samples) -> None:
        self.names = names
        self.predicted = predicted
        self.scores = scores
        self.metrics: dict[str, Metric] = {metric.name: metric for metric in score.metrics(names.plan)}
        self.left_out = left_out(names.conditions, scores, score.blind(predicted, samples).reset_index())
        # Data of one source, prepared in several ways, show the same patients, who count once.
        sources = {data.source: clusters(samples, id_) for id_, data in reversed(names.plan.data.items())}
        self.clusters: Mapping[str, Clusters] = {id_: sources[data.source] for id_, data in names.plan.data.items()}

    @functools.cached_property
    def sites(self) -> dict[Level, Estimate]:
        """The estimate of each condition, site, inference and metric over its trainings, in the order of scores.csv."""
        influences = self._influences()
        scored: dict[Level, list[tuple[int, float]]] = defaultdict(list)
        columns = (self.scores[name].tolist() for name in (*LEVELS, "seed", "value"))
        for id_, role, site, inference, metric, seed, value in zip(*columns, strict=True):
            of_level = scored[id_, role, site, inference, metric]
            if not math.isnan(value):
                of_level.append((seed, value))
        found: dict[Level, Estimate] = {}
        for level, values in scored.items():
            # Sorted, so that trainings of one seed stand in one place in every estimate that is combined with this one.
            trainings = [
                influences.get((*level, seed), Estimate(np.array([value]), (seed,))) for seed, value in sorted(values)
            ]
            found[level] = estimates.over_trainings(trainings) if trainings else estimates.NOTHING
        return found

    def _influences(self) -> dict[tuple[Any, ...], Estimate]:
        """Return the estimate of each single training whose predictions exist.

        Keys are the id of the condition, role, site, id of the inference, metric and seed.
        """
        found = {}
        values = self.scores.set_index([*LEVELS, "seed"])["value"].to_dict()
        folded = [one for one in self.names.conditions.values() if one.folded]
        for whole in score.wholes(folded, self.predicted):
            people = self.clusters[whole.condition.run.data.id]
            for metric in self.metrics.values():
                found[(*whole.level, metric.name, whole.seed)] = score.estimate(metric, whole.parts, people, whole.seed)
        unfolded = [run for one in self.names.conditions.values() if not one.folded for run in one.runs.values()]
        for run, inference in self.predicted.every(unfolded):
            people = self.clusters[run.data.id]
            for part in self.predicted.parts(run, inference):
                cluster = people.of(part.samples, part.site)
                group = people.group(part.site)
                for metric in self.metrics.values():
                    key = (run.condition, part.role, part.site, inference, metric.name, run.seed)
                    influence = metric.influence(part.label, part.probability)
                    if influence is not None and key in values:
                        found[key] = estimates.single(values[key], influence, cluster, group, run.seed, metric.scale)
        return found

    @functools.cached_property
    def small(self) -> set[Where]:
        """The places (partition, role, site, metric) with too few patients for an interval.

        A place is not among them if no other site of its role has enough.
        """
        enough: dict[Where, bool] = {}
        for (id_, role, site, _, name), estimate in self.sites.items():
            place = self._partition(id_), role, site, name
            if self.metrics[name].has_interval and place not in self.left_out and estimate.parts:
                enough[place] = enough.get(place, True) and estimate.fewest >= estimates.FEWEST
        there = {(partition, role, name) for (partition, role, _, name), known in enough.items() if known}
        return {place for place, known in enough.items() if not known and (place[0], place[1], place[3]) in there}

    def counts(self, partition: str, role: str, site: str, metric: str) -> bool:
        """Return whether the score at a site counts in the mean over the sites of its role.

        It does not if the metric means nothing there, or if the site has too few patients.
        """
        place = partition, role, site, metric
        return place not in self.left_out and place not in self.small

    @functools.cached_property
    def levels(self) -> dict[Level, Estimate]:
        """The means over the sites of each role, with equal weights, and the means of these over partitions."""
        return self._averaged(self.sites)

    @functools.cached_property
    def above_guess(self) -> dict[Level, Estimate]:
        """By how much a score at internal sites is above a guess and always giving the commonest class.

        Positive is better. The metric is the one of the method `gate`. The commonest class is taken from the same test
        patients, so that the difference is paired.
        """
        metric = gate(self.names.plan)
        sign = 1.0 if metric.higher_is_better else -1.0
        found = {}
        for condition in self.names.conditions.values():
            classes = len(condition.run.data.dataset.classes)
            inference = condition.level_inference
            for site in condition.partition.internal if condition.tests_inside else ():
                level = condition.id, "internal", site, inference, metric.name
                if level in self.sites and not math.isnan(metric.chance(np.full(classes, 1 / classes))):
                    difference = estimates.minus(self.sites[level], self._blind(condition, site, metric, classes))
                    found[level] = estimates.times(difference, sign)
        return self._averaged(found)

    def _blind(self, condition: Condition, site: str, metric: Metric, classes: int) -> Estimate:
        """Return the score at a site of a model that predicts the frequencies of the site's classes for each sample."""
        if metric.name in UNMOVED:
            return Estimate(np.array([metric.chance(np.full(classes, 1 / classes))]), fewest=estimates.MANY)
        people = self.clusters[condition.run.data.id]
        inference = condition.level_inference
        first = next(w for w in score.wholes([condition], self.predicted) if w.level[2:] == (site, inference))
        label = np.concatenate([part.label for part in first.parts])
        shares = np.bincount(label, minlength=classes) / len(label)
        parts = [part._replace(probability=np.tile(shares, (len(part.label), 1))) for part in first.parts]
        return score.estimate(metric, parts, people)

    @functools.cached_property
    def everywhere(self) -> dict[Level, Estimate]:
        """The means over all sites of a role, where `levels` leaves out some sites for having too few patients."""
        partial = {(partition, role, metric) for partition, role, _, metric in self.small}
        chosen = {
            level: estimate
            for level, estimate in self.sites.items()
            if (self._partition(level[0]), level[1], level[-1]) in partial
        }
        return self._by_role(chosen, self.left_out)

    def _by_role(self, at_sites: Mapping[Level, Estimate], without: set[Where]) -> dict[Level, Estimate]:
        """Return the means over the sites of each role, without some sites.

        `at_sites` has the estimates at single sites, and `without` the places (partition, role, site, metric) to leave
        out.
        """
        sites: dict[Level, list[Estimate]] = defaultdict(list)
        for (id_, role, site, inference, metric), estimate in at_sites.items():
            if (self._partition(id_), role, site, metric) not in without:
                sites[id_, role, ALL, inference, metric].append(estimate)
        return {level: estimates.mean(parts) for level, parts in sites.items()}

    def _averaged(self, at_sites: Mapping[Level, Estimate]) -> dict[Level, Estimate]:
        """Return the means over the sites of each role and, with several partitions, their means over partitions.

        `at_sites` has the estimates at single sites.
        """
        found = self._by_role(at_sites, self.left_out | self.small)
        if several(self.names.conditions[id_] for id_, *_ in at_sites):
            found |= self._over_partitions(found, at_sites)
        return found

    def _over_partitions(
        self, levels: Mapping[Level, Estimate], at_sites: Mapping[Level, Estimate]
    ) -> dict[Level, Estimate]:
        """Return means over partitions of `levels`, the means over sites.

        A partition counts only if it has a mean for each role that has scores at single sites (`at_sites`). Otherwise
        internal and external means would be over different patients.
        """
        wanted = self._roles(at_sites)
        there = self._roles(levels)
        members: dict[Level, list[Estimate]] = defaultdict(list)
        for (id_, role, site, inference, metric), estimate in levels.items():
            partition = self._partition(id_), metric
            # A mean inside over more partitions than outside would make a gap of different patients.
            if wanted[partition] == there[partition]:
                members[self.names.conditions[id_].family, role, site, inference, metric].append(estimate)
        return {level: estimates.mean(parts) for level, parts in members.items()}

    def _roles(self, found: Mapping[Level, Estimate]) -> dict[tuple[str, str], set[str]]:
        """Return the roles (internal, external) of each partition and metric among the keys of some estimates."""
        roles: dict[tuple[str, str], set[str]] = defaultdict(set)
        for id_, role, _, _, metric in found:
            roles[self._partition(id_), metric].add(role)
        return roles

    def _partition(self, id_: str) -> str:
        """Return the id of the partition of the condition `id_`."""
        return self.names.conditions[id_].run.partition_id

    def level(self, id_: str, role: str, inference: str, metric: str, site: str = ALL) -> Estimate | None:
        """Return the mean over the sites of a role, or the score at one `site`; None if there is no score.

        `id_` is the id of a condition or, for a mean over partitions, of its family.
        """
        return (self.levels if site == ALL else self.sites).get((id_, role, site, inference, metric))

    def effects(self) -> Iterator[tuple[Level, str, Estimate]]:
        """Yield all scores, gaps, losses and gains, each with its key and the name of the quantity (see `table`)."""
        for level, estimate in (*self.levels.items(), *self.sites.items()):
            yield level, "level", estimate
        for quantity, found in (("level_of_all", self.everywhere), ("above_guess", self.above_guess)):
            yield from ((level, quantity, estimate) for level, estimate in found.items())
        for level, inside in self.levels.items():
            id_, role, _, *measured = level
            outside = self.level(id_, "external", *measured)
            if role == "internal" and outside is not None:
                yield level, "gap", estimates.minus(inside, outside)
        for level, outside in self.sites.items():
            id_, role, site, *measured = level
            mean_inside = self.level(id_, "internal", *measured)
            counts = role == "external" and (self._partition(id_), role, site, level[-1]) not in self.left_out
            if counts and mean_inside is not None:
                yield level, "loss", estimates.minus(mean_inside, outside)
        baseline = plain(self.names.plan)
        for level, adapted in (*self.sites.items(), *self.levels.items()):
            id_, role, site, inference, metric = level
            without = self.level(id_, role, baseline, metric, site) if baseline not in (None, inference) else None
            if without is not None:
                yield level, "gain", estimates.minus(adapted, without)


def at_site(study: Estimates, level: Level) -> dict[str, Any]:
    """Return the score at a site as a row of numbers.parquet, with the quantity `score`.

    `level` is its key in `Estimates.sites`. For metrics whose chance level does not depend on class frequencies, `p` is
    the one-sided p value of the hypothesis that the score is at chance or above.
    """
    metric, estimate = study.metrics[level[-1]], study.sites[level]
    about: dict[str, Any] = dict(zip(LEVELS, level, strict=True))
    found = row("score", estimate, metric.ends, **about)
    if not metric.has_interval:
        found |= {"patients": np.nan, "rarer": np.nan}
    if metric.name in UNMOVED:
        classes = len(study.names.conditions[level[0]].run.data.dataset.classes)
        found["p"] = 1 - estimate.p_above(metric.chance(np.full(classes, 1 / classes)))
    return found


def rows(study: Estimates) -> Iterator[Row]:
    """Yield the numbers of effects.csv (see `table`) as rows of numbers.parquet.

    A row of the quantity `worse` comes before each loss: the mean over external sites minus the score at this one. The
    `p` of `worse` is the one-sided p value of the hypothesis that the site is no worse than the mean, and the `p` of a
    loss of the hypothesis that the loss is at most the margin.
    """
    for level, quantity, estimate in study.effects():
        about: dict[str, Any] = dict(zip(LEVELS, level, strict=True))
        metric = study.metrics[level[-1]]
        p = np.nan
        if quantity == "loss":
            sign = 1.0 if metric.higher_is_better else -1.0
            p = estimates.times(estimate, sign).p_above(margin(study.names.plan, metric))
            mean = study.level(level[0], "external", *level[3:])
            if mean is not None:
                beyond = estimates.minus(mean, study.sites[level])
                yield row("worse", beyond, metric.ends, True, p=estimates.times(beyond, sign).p_above(0.0), **about)
        yield row(quantity, estimate, metric.ends, not quantity.startswith("level"), p=p, **about)


def table(names: Names, numbers: Numbers) -> pd.DataFrame:
    """Return effects.csv from the numbers of a study; a row has one of these quantities.

    level : score at each site, and mean over the sites of a role that have enough patients for an interval
    level_of_all : mean over all sites of a role, if `level` leaves out some with too few patients
    above_guess : score at internal sites above a guess and always giving the commonest class; positive is better
    gap : mean over internal sites minus mean over external sites
    loss : mean over internal sites minus the score at one external site
    gain : score with an inference minus score with the baseline inference, at each site and as a mean over a role

    `low` and `high` are intervals over patients and trainings, `low_patients` and `high_patients` over patients alone;
    with one training both are equal. They end at 0 and 1 for metrics from 0 to 1, and at -1 and 1 for their
    differences. `patients` counts all tested patients, each once, and `rarer` the patients of the rarer class at each
    site, for scores made of single classes. For a loss, `p_margin` is the one-sided p value of the hypothesis that it
    is at most the margin, and `p_worse` of the hypothesis that the site is no worse than the mean over external sites.
    """
    worse = numbers.view("worse").rename(columns={"p": "p_worse"}).assign(quantity="loss")
    found = numbers.view(*QUANTITIES).rename(columns={"p": "p_margin"})
    by = [*LEVELS, "quantity"]
    return names.described(found.merge(worse[[*by, "p_worse"]], "left", by))[COLUMNS]
