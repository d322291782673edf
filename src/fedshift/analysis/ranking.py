"""The ranks of conditions: by their differences, and over sites."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ..figures import Ranking
from . import comparisons, contrasts, multiple
from .comparisons import Entry
from .contrasts import Outcome
from .findings import Findings
from .values import Value

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
        found = contrasts.contrast(findings, *pair, role)
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
    groups = comparisons.groups(comparisons.entries(findings.names), role)
    members = max(groups, key=len, default=[])
    names = tuple(one.condition.title if findings.averaged else findings.full(one.condition) for one in members)
    values = np.array([_values(findings, one, members[0], role) for one in members]).T
    sites = 0
    if members:
        sites = len(values)
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
