"""Conclusions about differences between conditions, by the rules of docs/verdicts.md, and the ranks of conditions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ..figures import Ranking
from . import comparisons, multiple
from .comparisons import FEWEST_TRAININGS, Entry
from .conditions import ALL
from .findings import Findings
from .values import Value

ALPHA = 0.05
"""The probability with which at least one difference of the family is called so by chance."""


class Outcome(StrEnum):
    """Conclusion about a difference between two conditions."""

    DIFFERS = "differs"
    TOO_SMALL = "too small to matter"
    ALIKE = "not distinguishable"
    TRAININGS_DISAGREE = "depends on the training"
    SITES_DISAGREE = "differs between sites"
    FEW_TRAININGS = "too few trainings"
    FEW_PATIENTS = "too few patients"


TOO_FEW = (Outcome.FEW_TRAININGS, Outcome.FEW_PATIENTS)
"""Outcomes of data that are too few to tell."""


@dataclass(frozen=True)
class Contrast:
    """The difference between two entries of a ranking, such as two conditions under their inferences.

    Attributes
    ----------
    value : the difference of the means over sites; positive where the first entry is better, whatever the metric
    sites : the difference at each site
    """

    first: Entry
    second: Entry
    value: Value
    sites: dict[str, Value]
    outcome: Outcome


@dataclass(frozen=True)
class Standing:
    """The entries that are tested at the same sites, with the best of them and what the others differ from it by.

    `others` are in the order of their means, the better first. Values are differences of the best minus the other.
    """

    best: Entry
    level: Value
    sites: tuple[str, ...]
    others: tuple[Contrast, ...]

    def of(self, *outcomes: Outcome) -> list[Contrast]:
        """Return the other entries with one of these outcomes."""
        return [one for one in self.others if one.outcome in outcomes]


def standings(findings: Findings) -> list[Standing]:
    """Return the comparison of conditions with the best of them, for each group that is tested at the same sites."""
    role = comparisons.role(findings.conditions)
    made = []
    for members in comparisons.groups(comparisons.entries(findings.names), role):
        levels = {one.id: findings.level(one, role) for one in members}
        means = {id_: level.mean for id_, level in levels.items()}
        best = comparisons.best_of(members, means, findings.headline.higher_is_better)
        if best is None:
            continue
        others = [contrast(findings, best, one, role) for one in members if one != best]
        if ordered := sorted(filter(None, others), key=lambda one: one.value.mean):
            made.append(Standing(best, levels[best.id], tuple(ordered[0].sites), tuple(ordered)))
    return made


def declared(findings: Findings) -> list[Contrast]:
    """Return the differences that the study declares as its primary comparison."""
    ids = {one.family if findings.averaged else one.id: one.id for one in reversed(findings.conditions)}
    role = comparisons.role(findings.conditions)
    made = []
    for key, value in findings.numbers.of("difference").items() if findings.plan.study.primary else ():
        if value.tested and key.site == ALL:
            first = comparisons.entry(findings.names, ids[key.condition_id], key.inference_id)
            second = comparisons.entry(findings.names, ids[key.than_condition_id], key.than_inference_id)
            made.append(contrast(findings, first, second, role))
    return [one for one in made if one is not None]


def contrast(findings: Findings, first: Entry, second: Entry, role: str) -> Contrast | None:
    """Return what is concluded about a pair, either way round; None where comparisons.csv does not have it."""
    value = findings.better(findings.difference(first.arm, second.arm, role))
    if not value.known:
        return None
    sites = dict(_sites(findings, first, second, role))
    return Contrast(first, second, value, sites, _outcome(findings, value, sites))


def _sites(findings: Findings, first: Entry, second: Entry, role: str) -> Iterator[tuple[str, Value]]:
    """Yield the difference at each site where it is known."""
    others = {site: member.id for member, site in second.sites(role)}
    for member, site in first.sites(role):
        arms = (member.id, first.inference), (others.get(site, ""), second.inference)
        value = findings.better(findings.difference(*arms, role, site))
        if value.known:
            yield site, value


def _outcome(findings: Findings, value: Value, sites: dict[str, Value]) -> Outcome:
    """Return the first conclusion that holds, in the order of docs/verdicts.md."""
    primary = findings.plan.study.primary
    if math.isnan(value.low):
        return Outcome.FEW_PATIENTS
    if value.seeds < FEWEST_TRAININGS:
        return Outcome.FEW_TRAININGS
    if {1, -1} <= {one.sign for one in sites.values()}:
        return Outcome.SITES_DISAGREE
    over_patients = value.low_patients > 0 or value.high_patients < 0
    over_trainings = value.low_trainings > 0 or value.high_trainings < 0
    if over_patients and not (over_trainings and value.same_sign == value.seeds):
        return Outcome.TRAININGS_DISAGREE
    if not value.sign or value.p_holm >= ALPHA:
        return Outcome.ALIKE
    if primary and primary.smallest and abs(value.mean) < primary.smallest:
        return Outcome.TOO_SMALL
    return Outcome.DIFFERS


SITES, CONDITIONS = 5, 3
"""The fewest sites and conditions whose ranks are compared."""

SURE = (Outcome.DIFFERS, Outcome.TOO_SMALL)
"""Outcomes of a pair of which one is surely better, whether or not that matters."""


@dataclass(frozen=True)
class Rank:
    """A condition among those that are tested at the same sites.

    `level` is the mean over sites. The condition has a rank from `first` to `last`, where 1 is the best.
    """

    entry: Entry
    level: Value
    first: int
    last: int


def ranks(findings: Findings) -> list[list[Rank]]:
    """Return each group of conditions that are tested at the same sites, from the best mean to the worst.

    A condition ranks behind all that are surely better and before all that are surely worse. All of these intervals
    hold the true ranks at once with a probability of at least 95 %, since no pair is wrongly called different with that
    probability (Holm). Where a study declares a primary comparison, its pairs and the others are two families with 95 %
    each. Groups with fewer than two conditions that have a score are left out.
    """
    role = comparisons.role(findings.conditions)
    groups = comparisons.groups(comparisons.entries(findings.names), role)
    scored = ([one for one in members if findings.level(one, role).known] for members in groups)
    return [_ranked(findings, members, role) for members in scored if len(members) > 1]


def _ranked(findings: Findings, members: list[Entry], role: str) -> list[Rank]:
    better = dict.fromkeys(members, 0)
    worse = dict.fromkeys(members, 0)
    for pair in itertools.combinations(members, 2):
        found = contrast(findings, *pair, role)
        if found is not None and found.outcome in SURE:
            winner, loser = pair if found.value.mean > 0 else pair[::-1]
            better[loser] += 1
            worse[winner] += 1
    made = [Rank(one, findings.level(one, role), 1 + better[one], len(members) - worse[one]) for one in members]
    return sorted(made, key=lambda rank: -findings.better(rank.level).mean)


def ranking(findings: Findings) -> Ranking:
    """Return the mean ranks of the largest group of conditions that are tested at the same sites.

    `why_not` says why ranks are not compared: too few conditions or sites, or a site without a score.
    """
    role = comparisons.role(findings.conditions)
    members = max(comparisons.groups(comparisons.entries(findings.names), role), key=len, default=[])
    names = tuple(one.condition.title if findings.averaged else findings.full(one.condition) for one in members)
    values = np.array([_values(findings, one, members[0], role) for one in members]).T
    sites = len(values) if members else 0
    empty = Ranking(names, role, sites)
    if len(members) < CONDITIONS:
        return empty._replace(why_not=f"it needs {CONDITIONS} conditions that are tested at the same sites")
    if sites < SITES:
        return empty._replace(why_not=f"it needs {SITES} {role} sites, and the study has {sites}")
    if np.isnan(values).any():
        return empty._replace(why_not="a condition has no score at one of the sites")
    if (values == values[:, :1]).all():
        return empty._replace(why_not="all conditions have the same scores")
    ranked = multiple.friedman(values)
    critical = multiple.critical_difference(len(members), sites)
    ranks = tuple(ranked.ranks.tolist())
    return empty._replace(ranks=ranks, critical=critical, p=ranked.f_p, related=findings.averaged)


def _values(findings: Findings, one: Entry, first: Entry, role: str) -> list[float]:
    """Return the headline metric at each site, in the order of the first entry, turned so that more is better."""
    values = {site: findings.value(member, role, site, one.inference) for member, site in one.sites(role)}
    return [findings.better(values[site]).mean for _, site in first.sites(role)]
