"""The operating point on the page: sensitivity, specificity and predictive values at a threshold chosen at home."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ..analysis.conditions import ALL, Condition
from ..analysis.findings import Findings
from ..analysis.operating_point import (
    COUNTS,
    DRIFTS,
    VALIDATION,
    Point,
    Points,
    positive_class,
    predictive_values,
    two_classes,
)
from ..analysis.results import StudyResults
from ..analysis.values import DASH, Value, between, number
from ..core import registry
from ..metrics import Metric
from ..study.declaration import Study
from .page_table import PageCell, PageTable

AT_HOME = "all internal sites"
RULES = {
    "specificity": "the smallest score with a specificity of {level} or more",
    "sensitivity": "the largest score with a sensitivity of {level} or more",
    "youden": "the score with the largest sensitivity + specificity - 1 (Youden's index), the smallest of several",
}
"""The rules that need data, in words."""


@dataclass(frozen=True)
class Section:
    """The sentences of the section, a table for each condition, and one for the prevalence that the study declares."""

    lines: list[str]
    tables: list[PageTable]
    elsewhere: PageTable | None = None


def section(results: StudyResults, unit: str = "patients") -> Section | None:
    """Return the section of the page; None for studies with more than two classes, or without any prediction.

    `unit` is what the intervals resample: patients, or images.
    """
    if not two_classes(results.plan) or not results.operating_points:
        return None
    findings, points = results.findings, results.operating_points
    tables = [_table(n, findings, condition, points, unit) for n, condition in enumerate(findings.conditions)]
    lines = [*described(results.plan.study), *_unchosen(findings, points)]
    prevalence = results.plan.study.prevalence
    elsewhere = _elsewhere(findings, points, prevalence) if prevalence is not None else None
    return Section(lines, [table for table in tables if table.rows], elsewhere)


def described(study: Study) -> list[str]:
    """Return the rule of the threshold and the positive class in sentences."""
    positive, rule = study.dataset.classes[positive_class(study)], study.threshold
    first = f"The positive class is {positive}: a sample is flagged if its probability reaches the threshold."
    if rule.value is not None:
        chosen = f"The threshold is {rule.value:g} for every training and at every site, whatever the data."
    else:
        chosen = (
            f"The threshold is {RULES[rule.rule].format(level=f'{rule.level:g}')}, among the validation samples of all "
            "internal sites together. It was chosen at home, once for each training and inference, and carried to "
            "every site unchanged; no test sample played a part."
        )
    lines = [first, chosen, "Predictive values (PPV, NPV) hold for the prevalence beside them, and for no other."]
    if positive_class(study) != 1:
        second = study.dataset.classes[1]
        lines.append(f"Sensitivity and specificity in the table of all metrics take {second} as the positive class.")
    return lines


def _unchosen(findings: Findings, points: Points) -> list[str]:
    """Return a sentence that names the inferences without a threshold."""
    without = {key for (_, key, *_), point in points.items() if any(map(math.isnan, point.thresholds))}
    names = [findings.name(key) for key in findings.keys if key in without]
    if not names:
        return []
    return [
        f"No threshold could be chosen for {', '.join(names)}: a training has no predictions of validation samples, "
        "or they are of one class."
    ]


def _elsewhere(findings: Findings, points: Points, prevalence: float) -> PageTable | None:
    """Return the predictive values of each site at a declared prevalence; None where no site has both rates."""
    rows = []
    for condition in findings.conditions:
        for (role, site), key in itertools.product(condition.sites(), condition.inferences):
            point = points.get((condition.id, key, role, site))
            values = predictive_values(point, prevalence) if point else ()
            if any(value.known for value in values):
                heads = findings.full(condition), site, role, findings.name(key)
                rows.append([*map(PageCell, heads), *map(_rate, values)])
    if not rows:
        return None
    share = f"{100 * prevalence:g}\N{NO-BREAK SPACE}%"
    caption = (
        f"Predictive values (%) where {share} of samples are positive, from the mean sensitivity and specificity of "
        "each site. Below, those at both lower bounds and at both upper bounds of these rates, which is wider than a "
        "95% interval. They hold if the rates do not change with the prevalence"
    )
    header = ("Condition", "Site", "Role", "Inference", f"PPV at {share}", f"NPV at {share}")
    return PageTable("points-elsewhere", caption, header, rows, 4)


def _table(n: int, findings: Findings, condition: Condition, points: Points, unit: str) -> PageTable:
    """Return the rows of one condition: validation samples first, then each site."""
    places = [(VALIDATION, ALL), *condition.sites()]
    rows = [
        _row(points[place], (AT_HOME if site == ALL else site, role, findings.name(key)), unit)
        for role, site in places
        for key in condition.inferences
        if (place := (condition.id, key, role, site)) in points and points[place].samples
    ]
    trainings = max((len(point.thresholds) for point in points.values()), default=1)
    means = "Rates and counts are means over trainings. " if trainings > 1 else ""
    caption = (
        f"{findings.full(condition)}. Rates (%) at the threshold. {means}Below, the 95% interval over {unit}, with "
        "trainings and thresholds fixed. In brackets the drift: points above or below the validation samples"
    )
    rates = ("Sensitivity", "Specificity", "Prevalence", "PPV", "NPV", "Flagged")
    header = ("Site", "Role", "Inference", "Threshold", unit.capitalize(), *rates, "Counts")
    return PageTable(f"points-{n}", caption, header, rows, 3)


def _row(point: Point, heads: tuple[str, ...], unit: str) -> list[PageCell]:
    counts = {name: f"{name.upper()}\N{NO-BREAK SPACE}{_count(point.counts[name])}" for name in COUNTS}
    number_, below = (point.patients, f"{point.samples:,} samples") if unit == "patients" else (point.samples, "")
    return [
        *map(PageCell, heads),
        PageCell(_thresholds(point)),
        PageCell(f"{number_:,}", below),
        *(_drifted(point, name) for name in DRIFTS),
        PageCell(number(point.rates["prevalence"].mean, _percent())),
        *(_rate(point.rates[name]) for name in ("ppv", "npv", "flag_rate")),
        PageCell(f"{counts['tp']}, {counts['fn']}", f"{counts['fp']}, {counts['tn']}"),
    ]


def _count(n: float) -> str:
    return DASH if math.isnan(n) else f"{n:,.1f}".removesuffix(".0")


def _percent() -> Metric:
    metric: Metric = registry.build("metric", "sensitivity")
    return metric


def _rate(value: Value) -> PageCell:
    """Return a rate in percent with its interval."""
    return PageCell(number(value.mean, _percent()), "" if math.isnan(value.low) else between(value, _percent()))


def _drifted(point: Point, name: str) -> PageCell:
    """Return a rate with its interval, and its drift in brackets."""
    rate, drift = _rate(point.rates[name]), point.drifts[name]
    text = rate.text if math.isnan(drift) else f"{rate.text} ({number(drift, _percent(), sign=True)})"
    return PageCell(text, rate.below)


def _thresholds(point: Point) -> str:
    """Return the threshold, or the range over trainings."""
    known = sorted({_threshold(t) for t in point.thresholds})
    return known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"


def _threshold(value: float) -> str:
    return DASH if math.isnan(value) else "none reached" if math.isinf(value) else f"{value:.3f}"
