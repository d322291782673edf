"""Structures that were missed, and false alarms, counted by site: means of Dice hide them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..analysis.conditions import Condition
from ..analysis.predictions import Part
from ..analysis.results import StudyResults
from ..analysis.values import listed
from .html import Light
from .phrases import metric_named

MOST = 5
"""Conditions and inferences that are named for each kind of count, those with the largest share first."""


@dataclass(frozen=True)
class Count:
    """What a metric of the task counts, over the trainings of a condition under one inference.

    Attributes
    ----------
    condition, inference : their names on the page
    noun, happens : of what is counted, and what happens to it
    sites : of each site, how often it happens, and among how many
    """

    condition: str
    inference: str
    noun: str
    happens: str
    sites: dict[str, tuple[int, int]]

    @property
    def times(self) -> int:
        """How often it happens at all sites."""
        return sum(times for times, _ in self.sites.values())

    @property
    def among(self) -> int:
        """How many are counted at all sites."""
        return sum(among for _, among in self.sites.values())

    @property
    def text(self) -> str:
        """The counts of all sites where it happens: `3 of 9 structures are missed at north and 2 of 9 at south`."""
        first, *others = [(site, *pair) for site, pair in self.sites.items() if pair[0]]
        site, times, among = first
        start = f"{times:,} of {among:,} {self.noun} {self.happens} at {site}"
        return listed([start, *(f"{times:,} of {among:,} at {site}" for site, times, among in others)])


def counts(results: StudyResults) -> list[Count]:
    """Return the counts that the task of a study wants said, for each condition and inference."""
    findings = results.findings
    return [
        Count(findings.full(condition), findings.name(key), noun, happens, _by_site(results, condition, key, name))
        for name, (noun, happens) in results.plan.study.task.counted.items()
        for condition in findings.conditions
        for key in condition.inferences
    ]


def light(counted: Sequence[Count]) -> Light | None:
    """Return the light of the first screen: the largest share; None for a task that counts nothing.

    It says what was counted nowhere, such as false alarms where every patient has the structure.
    """
    if not counted:
        return None
    worst = _worst(counted)
    if worst:
        detail = f"{worst[0].text} ({worst[0].condition}, {worst[0].inference})"
        return Light("Missed structures", "suspect", detail, "sites")
    among: dict[tuple[str, str], int] = {}
    for count in counted:
        kind = count.noun, count.happens
        among[kind] = among.get(kind, 0) + count.among
    said = (f"none of {n:,} {noun} {happens}" for (noun, happens), n in among.items() if n)
    unseen = (f"there were no {noun}" for (noun, _), n in among.items() if not n)
    status = "ok" if any(among.values()) else "unknown"
    return Light("Missed structures", status, "; ".join([*said, *unseen]), "sites")


def sentences(counted: Sequence[Count], unit: str) -> Iterator[str]:
    """Yield a sentence for each condition and inference with the largest shares, or one that it never happens."""
    for happens in dict.fromkeys(count.happens for count in counted):
        alike = [count for count in counted if count.happens == happens]
        worst = _worst(alike)
        among = sum(count.among for count in alike)
        if among and not worst:
            yield f"None of {among:,} {alike[0].noun} {happens} ({unit}, trainings and inferences added up)."
        for count in worst[:MOST]:
            yield f"With {count.condition} and {count.inference}, {count.text} ({unit} and trainings added up)."
        if len(worst) > MOST:
            yield f"With {len(worst) - MOST} further pairs of condition and inference, {alike[0].noun} {happens}, too."


def _worst(counted: Sequence[Count]) -> list[Count]:
    """Return the counts above 0, the largest share first."""
    above = [count for count in counted if count.times]
    return sorted(above, key=lambda count: count.times / count.among, reverse=True)


def _by_site(results: StudyResults, condition: Condition, key: str, name: str) -> dict[str, tuple[int, int]]:
    """Return of each site how often a metric is 1, and how often it is defined, over all trainings."""
    sites: dict[str, tuple[int, int]] = {}
    for _, parts in results.predictions.by_site(condition.runs.values(), key):
        for part in parts:
            times, among = sites.get(part.site, (0, 0))
            values = _each(part, name)
            sites[part.site] = times + int(np.nansum(values)), among + int((~np.isnan(values)).sum())
    return sites


def _each(part: Part, name: str) -> np.ndarray:
    """Return a metric of each patient and structure at a site. Raises TypeError for one that is not their mean."""
    values = metric_named(name).per_sample(part.label, part.probability)
    if values is None:
        raise TypeError(f"{name} is not a mean over patients")
    return values
