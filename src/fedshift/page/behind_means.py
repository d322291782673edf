"""What means hide: sites of one class, the worst result, groups of images, and structures that were missed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..analysis import subgroups
from ..analysis.conditions import Condition
from ..analysis.estimates import FEWEST
from ..analysis.findings import Findings
from ..analysis.operating_point import DRIFTS, Points, positive_class
from ..analysis.study_results import StudyResults
from ..analysis.values import DASH, NAN, Table, Value, inner, listed, spread
from ..core.spelling import plural
from ..metrics import Metric
from ..study.declaration import Study
from .answer import by_lead
from .html import Light
from .phrases import bounds, heading, interval, level, metric_named, resampled
from .verdict_words import distinct

MOST_SITES = 5
"""Sites of one class that are named, the worst first."""


@dataclass(frozen=True)
class Result:
    """One metric at one external site, its mean over internal sites, and `at` which threshold, in words."""

    metric: Metric
    site: str
    value: Value
    home: float
    at: str = ""

    @property
    def lost(self) -> float:
        """How much worse the value is than at home; than a perfect score where home is not known."""
        # without internal tests, a perfect score stands for the level at home
        home = float(self.metric.higher_is_better) if math.isnan(self.home) else self.home
        return home - self.value.mean if self.metric.higher_is_better else self.value.mean - home


def worst_sentences(results: StudyResults, unit: str = "patients") -> list[str]:
    """Return a sentence for each site of one class, and one about the worst external result.

    They are about the condition that leads or, where it has no external results, the first that has, with the inference
    whose levels are reported.
    """
    findings = results.findings
    points = results.operating_points
    led, others = by_lead(findings)
    named = len(distinct(findings)) > 1
    for condition in (*led, *others):
        if compared := list(_external(findings, condition, points)):
            return [
                *_single_class(results.plan.study, findings, condition, points, unit),
                _worst(compared, unit, findings.title(condition) if named else ""),
            ]
    return []


def _external(findings: Findings, condition: Condition, points: Points) -> Iterator[Result]:
    """Yield every metric in percent at every external site where it is defined.

    Sensitivity and specificity are those of the operating point, with the positive class of the study.
    """
    metrics = {name: (metric, "") for name, metric in findings.metrics.items() if metric.percent}
    if points:
        metrics |= {name: (metric_named(name), _chosen(findings.plan.study)) for name in DRIFTS}
    for member in findings.alike(condition):
        key = member.level_inference
        for name, (metric, at) in metrics.items():
            values: dict[str, dict[str, Value]] = {"internal": {}, "external": {}}
            for role, site in member.sites():
                value = findings.value(member, role, site, key, name)
                if points and name in DRIFTS:
                    point = points.get((member.id, key, role, site))
                    value = point.rates[name] if point else Value()
                if value.known:
                    values[role][site] = value
            # sites count alike, as in all means over sites
            home = float(np.mean([value.mean for value in values["internal"].values()] or [NAN]))
            for site, value in values["external"].items():
                yield Result(metric, site, value, home, at)


def _single_class(study: Study, findings: Findings, condition: Condition, points: Points, unit: str) -> Iterator[str]:
    """Yield a sentence for each site whose samples are of one class, the worst first."""
    single = []
    for member in findings.alike(condition):
        for role, site in member.sites():
            point = points.get((member.id, member.level_inference, role, site))
            if point and point.only and point.rates[point.only].known:
                single.append((point.rates[point.only].mean, site, point.only, point.rates[point.only]))
    positive = positive_class(study)
    classes = {"sensitivity": study.dataset.classes[positive], "specificity": study.dataset.classes[1 - positive]}
    for mean, site, name, value in sorted(single, key=lambda entry: entry[:2])[:MOST_SITES]:
        yield (
            f"At {site}, which has only class {classes[name]}, {inner(metric_named(name))}{_chosen(study)} is "
            f"{level(mean, metric_named(name))} ({interval(value, metric_named(name), resampled(value.seeds, unit))})."
        )
    if len(single) > MOST_SITES:
        yield f"{len(single) - MOST_SITES} further sites have samples of one class; the tables have them."


def _worst(compared: list[Result], unit: str, title: str) -> str:
    """Return a sentence about the result that is furthest below its level at home, and how it was picked.

    `title` is that of its condition; empty where there is only one.
    """
    worst = max(compared, key=lambda result: result.lost)
    metric = worst.metric
    if worst.lost <= 0:
        return "No metric in percent is worse at an external site than its mean over internal sites."
    text = f"The worst external result is {inner(metric)} at {worst.site}{worst.at and f',{worst.at}'}: "
    text += f"{level(worst.value.mean, metric)} ({interval(worst.value, metric, resampled(worst.value.seeds, unit))})"
    if not math.isnan(worst.home):
        text += f", against {level(worst.home, metric)} at internal sites"
    if title:
        text += f", with {title}"
    if len(compared) == 1:
        return f"{text}."
    return (
        f"{text}. It was picked as the worst of {len(compared)} results, so by chance it tends to look worse than it "
        "is."
    )


def _chosen(study: Study) -> str:
    return " at the threshold chosen at home" if study.threshold.value is None else ""


NOT_STATED = "not stated"
"""The name of the group of images without a value in the column."""
MEANING = (
    "Exploratory. The test {samples} of all sites of a role are taken together and divided by a column of their "
    "table, so that groups may also differ because their sites do. Each interval is about one group alone. Of many "
    "groups, some look better or worse by chance."
)


def subgroup_table(results: StudyResults, column: str, unit: str) -> Table:
    """Return the table of a subgroup of the study, with the reported inference and the one compared with it."""
    findings, metric = results.findings, results.findings.headline
    wanted = set[str | None]()
    for one in findings.conditions:
        pair = one.level_inference, one.compared_inference
        wanted |= {key for key in pair if key in one.inferences}
    keys = [key for key in findings.keys if key in wanted]
    rows: dict[tuple[str, str, str], dict[str, Value]] = defaultdict(dict)
    for about, value in findings.numbers.of("subgroup").items():
        if about.column == column:
            rows[about.condition_id, about.group, about.role][about.inference_id] = value
    cells = []
    for (id_, group, role), values in rows.items():
        first = next(iter(values.values()))
        why = f"too few {unit} for an interval" if first.patients < FEWEST else "no interval"
        row = [group or NOT_STATED, role, findings.full(results.names.conditions[id_])]
        row += [f"{first.n:,}", f"{first.patients:,}"]
        for key in keys:
            value = values.get(key, Value())
            text = f"{spread(value, metric)} ({bounds(value, metric, otherwise=why)})"
            row.append(text if value.known else DASH)
        cells.append(tuple(row))
    # where no patient is known, source images may be resampled in the place of images
    samples = plural(results.plan.study.dataset.sample_noun)
    column_of_units = "Resampled" if unit == samples else unit.capitalize()
    header = ("Group", "Role", "Condition", samples.capitalize(), column_of_units, *map(findings.name, keys))
    trainings = [value.seeds for values in rows.values() for value in values.values()]
    over = resampled(max(trainings, default=1), unit)
    return Table(_subgroup_caption(results, column, unit, over), header, tuple(cells), 3)


def _subgroup_caption(results: StudyResults, column: str, unit: str, over: str) -> str:
    groups = [subgroups.groups(results.plan, data, results.samples(data))[column] for data in results.plan.data]
    most = max((group.nunique() for group in groups), default=0)
    samples = plural(results.plan.study.dataset.sample_noun)
    largest = f"; the {subgroups.MOST} largest of {most} groups" if most > subgroups.MOST else ""
    return (
        f"{heading(results.findings.headline)} of test {samples} by {column}{largest}: mean ± standard deviation over "
        f"seeds, with the 95% interval {over} in parentheses; none under {FEWEST} {unit}"
    )


MOST = 5
"""Conditions and inferences that are named for each kind of count, those with the largest share first."""


@dataclass(frozen=True)
class Overlooked:
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
        """How many there are at all sites, of which some are missed or are false alarms."""
        return sum(among for _, among in self.sites.values())

    @property
    def text(self) -> str:
        """The counts of all sites where it happens: `3 of 9 structures are missed at north and 2 of 9 at south`."""
        first, *others = [(site, *pair) for site, pair in self.sites.items() if pair[0]]
        site, times, among = first
        start = f"{times:,} of {among:,} {self.noun} {self.happens} at {site}"
        return listed([start, *(f"{times:,} of {among:,} at {site}" for site, times, among in others)])


def overlooked_counts(results: StudyResults) -> list[Overlooked]:
    """Return the counts that the task of a study wants said, for each condition and inference."""
    findings = results.findings
    return [
        Overlooked(findings.full(condition), findings.name(key), noun, happens, _by_site(results, condition, key, name))
        for name, (noun, happens) in results.plan.study.task.counted.items()
        for condition in findings.conditions
        for key in condition.inferences
    ]


def overlooked_light(counted: Sequence[Overlooked]) -> Light | None:
    """Return the light of the first screen: the largest share; None for a task that counts nothing.

    It says what was counted nowhere, such as false alarms where every patient has the structure.
    """
    if not counted:
        return None
    if worst := _worst_missed(counted):
        detail = f"{worst[0].text} ({worst[0].condition}, {worst[0].inference})"
        return Light("Missed structures", "suspect", detail, "sites")
    among: dict[tuple[str, str], int] = {}
    for count in counted:
        kind = count.noun, count.happens
        among[kind] = among.get(kind, 0) + count.among
    if not any(among.values()):
        return Light("Missed structures", "unknown", "nothing was counted", "sites")
    said = (f"none of {n:,} {noun} {happens}" for (noun, happens), n in among.items() if n)
    unseen = (f"there were no {noun}" for (noun, _), n in among.items() if not n)
    return Light("Missed structures", "ok", "; ".join([*said, *unseen]), "sites")


def overlooked_sentences(counted: Sequence[Overlooked], unit: str) -> Iterator[str]:
    """Yield a sentence for each condition and inference with the largest shares, or one that it never happens."""
    for happens in dict.fromkeys(count.happens for count in counted):
        alike = [count for count in counted if count.happens == happens]
        worst = _worst_missed(alike)
        among = sum(count.among for count in alike)
        if among and not worst:
            yield f"None of {among:,} {alike[0].noun} {happens} ({unit}, trainings and inferences added up)."
        for count in worst[:MOST]:
            yield f"With {count.condition} and {count.inference}, {count.text} ({unit} and trainings added up)."
        if len(worst) > MOST:
            yield f"With {len(worst) - MOST} further pairs of condition and inference, {alike[0].noun} {happens}, too."


def _worst_missed(counted: Sequence[Overlooked]) -> list[Overlooked]:
    """Return the counts above 0, the largest share first."""
    above = [count for count in counted if count.times]
    return sorted(above, key=lambda count: count.times / count.among, reverse=True)


def _by_site(results: StudyResults, condition: Condition, key: str, name: str) -> dict[str, tuple[int, int]]:
    """Return of each site how often a metric is 1, and how often it is defined, over all trainings."""
    sites: dict[str, tuple[int, int]] = {}
    for _, parts in results.predictions.by_site(condition.runs.values(), key):
        for part in parts:
            times, among = sites.get(part.site, (0, 0))
            values = metric_named(name).per_sample(part.label, part.probability)
            if values is None:
                raise TypeError(f"{name} is not a mean over patients")
            sites[part.site] = times + int(np.nansum(values)), among + int((~np.isnan(values)).sum())
    return sites
