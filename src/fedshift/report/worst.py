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
from ..analysis.values import NAN, Value, between, inner, number
from ..core import registry
from ..metrics import Metric
from ..study.declaration import Study

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
        sign = 1 if self.metric.higher_is_better else -1
        return sign * ((float(self.metric.higher_is_better) if math.isnan(self.home) else self.home) - self.value.mean)


def sentences(results: StudyResults, unit: str = "patients") -> list[str]:
    """Return a sentence for each site of one class, and one about the worst external result.

    They are about the first condition that has external results, with the inference whose levels are reported. `unit`
    is what the intervals resample: patients, or images.
    """
    findings, points = results.findings, results.operating_points
    for condition in findings.conditions:
        compared = list(_external(findings, condition, points))
        if compared:
            return [*_single_class(results.plan.study, findings, condition, points, unit), _worst(compared, unit)]
    return []


def _rate(name: str) -> Metric:
    metric: Metric = registry.build("metric", name)
    return metric


def _external(findings: Findings, condition: Condition, points: Points) -> Iterator[Result]:
    """Yield every metric in percent at every external site where it is defined.

    Sensitivity and specificity are those of the operating point, with the positive class of the study.
    """
    own = {name: metric for name, metric in findings.metrics.items() if metric.percent}
    rates = {name: _rate(name) for name in DRIFTS} if points else {}
    chosen = _chosen(findings.plan.study)
    for one in findings.alike(condition):
        key = findings.level_inference(one)

        def value(name: str, role: str, site: str, one: Condition = one, key: str = key) -> Value:
            if name not in rates:
                return findings.value(one, role, site, key, name)
            point = points.get((one.id, key, role, site))
            return point.rates[name] if point else Value()

        for name, metric in (own | rates).items():
            inside = [value(name, role, site).mean for role, site in one.sites() if role == "internal"]
            known = [mean for mean in inside if not math.isnan(mean)]
            home = float(np.mean(known)) if known else NAN
            for site in one.partition.external:
                if (here := value(name, "external", site)).known:
                    yield Result(metric, site, here, home, chosen if name in rates else "")


def _single_class(study: Study, findings: Findings, condition: Condition, points: Points, unit: str) -> Iterator[str]:
    """Yield a sentence for each site whose samples are of one class, the worst first."""
    found = []
    for one in findings.alike(condition):
        key = findings.level_inference(one)
        for role, site in one.sites():
            point = points.get((one.id, key, role, site))
            if point and point.only and point.rates[point.only].known:
                found.append((point.rates[point.only].mean, site, point.only, point.rates[point.only]))
    positive = positive_class(study)
    classes = {"sensitivity": study.dataset.classes[positive], "specificity": study.dataset.classes[1 - positive]}
    for _, site, name, value in sorted(found, key=lambda entry: entry[:2])[:MOST]:
        yield (
            f"At {site}, which has only class {classes[name]}, {inner(_rate(name))}{_chosen(study)} is "
            f"{_level(value.mean, _rate(name))} ({_interval(value, _rate(name), unit)})."
        )
    if len(found) > MOST:
        yield f"{len(found) - MOST} further sites have samples of one class; the tables have them."


def _worst(compared: list[Result], unit: str) -> str:
    """Return a sentence about the result that is furthest below its level at home, and how it was picked."""
    worst = max(compared, key=lambda result: result.lost)
    at_home = "" if math.isnan(worst.home) else f", against {_level(worst.home, worst.metric)} at internal sites"
    text = (
        f"The worst external result is {inner(worst.metric)} at {worst.site}{worst.at and f',{worst.at}'}: "
        f"{_level(worst.value.mean, worst.metric)} ({_interval(worst.value, worst.metric, unit)}){at_home}."
    )
    if len(compared) == 1:
        return text
    return (
        f"{text} It was picked as the worst of {len(compared)} results, so by chance it tends to look worse than it is."
    )


def _chosen(study: Study) -> str:
    return " at the threshold chosen at home" if study.threshold.value is None else ""


def _level(x: float, metric: Metric) -> str:
    return f"{number(x, metric)}\N{NO-BREAK SPACE}%"


def _interval(value: Value, metric: Metric, unit: str) -> str:
    if math.isnan(value.low):
        return "no interval"
    return f"95% interval {between(value, metric)} over {unit}"
