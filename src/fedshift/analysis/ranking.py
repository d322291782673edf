"""The ranks of conditions over sites."""

from __future__ import annotations

import numpy as np

from ..figures import Ranking
from . import comparisons, multiple
from .comparisons import Entry
from .findings import Findings

SITES, CONDITIONS = 5, 3
"""The fewest sites and conditions whose ranks are compared."""


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
