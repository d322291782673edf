"""The sites that means hide: those with samples of one class, and the worst external result of all metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.operating_point import DRIFTS, Points, positive_class
from ..analysis.results import StudyResults
from ..analysis.values import NAN, Value, inner
from ..metrics import Metric
from ..study.declaration import Study
from .phrases import interval, level, metric_named, resampled

MOST = 5
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
        if self.metric.higher_is_better:
            return home - self.value.mean
        return self.value.mean - home


def sentences(results: StudyResults, unit: str = "patients") -> list[str]:
    """Return a sentence for each site of one class, and one about the worst external result.

    They are about the first condition that has external results, with the inference whose levels are reported.
    """
    findings = results.findings
    points = results.operating_points
    for condition in findings.conditions:
        compared = list(_external(findings, condition, points))
        if compared:
            return [
                *_single_class(results.plan.study, findings, condition, points, unit),
                _worst(compared, unit),
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
        key = findings.level_inference(member)
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
            point = points.get((member.id, findings.level_inference(member), role, site))
            if point and point.only and point.rates[point.only].known:
                single.append((point.rates[point.only].mean, site, point.only, point.rates[point.only]))
    positive = positive_class(study)
    classes = {"sensitivity": study.dataset.classes[positive], "specificity": study.dataset.classes[1 - positive]}
    for mean, site, name, value in sorted(single, key=lambda entry: entry[:2])[:MOST]:
        yield (
            f"At {site}, which has only class {classes[name]}, {inner(metric_named(name))}{_chosen(study)} is "
            f"{level(mean, metric_named(name))} ({interval(value, metric_named(name), resampled(value.seeds, unit))})."
        )
    if len(single) > MOST:
        yield f"{len(single) - MOST} further sites have samples of one class; the tables have them."


def _worst(compared: list[Result], unit: str) -> str:
    """Return a sentence about the result that is furthest below its level at home, and how it was picked."""
    worst = max(compared, key=lambda result: result.lost)
    metric = worst.metric
    if worst.lost <= 0:
        return "No metric in percent is worse at an external site than its mean over internal sites."
    text = f"The worst external result is {inner(metric)} at {worst.site}{worst.at and f',{worst.at}'}: "
    text += f"{level(worst.value.mean, metric)} ({interval(worst.value, metric, resampled(worst.value.seeds, unit))})"
    if not math.isnan(worst.home):
        text += f", against {level(worst.home, metric)} at internal sites"
    if len(compared) == 1:
        return f"{text}."
    return (
        f"{text}. It was picked as the worst of {len(compared)} results, so by chance it tends to look worse than it "
        "is."
    )


def _chosen(study: Study) -> str:
    if study.threshold.value is None:
        return " at the threshold chosen at home"
    return ""
