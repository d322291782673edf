"""The operating point on the page: sensitivity, specificity and predictive values at a threshold chosen at home."""

from __future__ import annotations

import itertools
import math

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
from ..analysis.values import DASH, Value, number
from ..study.declaration import Study
from .html import PageCell, PageTable, Section, further
from .phrases import bounds, metric_named, resampled

AT_HOME = "all internal sites"
RATE = "sensitivity"
"""A metric in percent, since all rates are written like it."""
RULES = {
    "specificity": "the smallest score with a specificity of {level} or more",
    "sensitivity": "the largest score with a sensitivity of {level} or more",
    "youden": "the score with the largest sensitivity + specificity - 1 (Youden's index), the smallest of several",
}
"""The rules that need data, in words."""


def section(results: StudyResults, unit: str = "patients") -> Section | None:
    """Return the section of the page; None for studies with more than two classes, or without any prediction."""
    if not two_classes(results.plan) or not results.operating_points:
        return None
    findings = results.findings
    points = results.operating_points
    study = results.plan.study
    tables = [table for table in (_table(findings, c, points, unit) for c in findings.conditions) if table.rows]
    elsewhere = None
    if study.prevalence is not None:
        elsewhere = _elsewhere(findings, points, study.prevalence)
    lines = [*described(study), *_unchosen(findings, points)]
    return Section("operating-point", "Operating point", lines, *further(tables), elsewhere)


def described(study: Study) -> list[str]:
    """Return the rule of the threshold and the positive class in sentences."""
    positive = study.dataset.classes[positive_class(study)]
    rule = study.threshold
    if rule.value is not None:
        chosen = f"The threshold is {rule.value:g} for every training and at every site, whatever the data."
    else:
        chosen = (
            f"The threshold is {RULES[rule.rule].format(level=f'{rule.level:g}')}, among the validation samples of all "
            "internal sites together. It was chosen at home, once for each training and inference, and carried to "
            "every site unchanged; no test sample played a part."
        )
    lines = [
        f"The positive class is {positive}: a sample is flagged if its probability reaches the threshold.",
        chosen,
        "Predictive values (PPV, NPV) hold for the prevalence beside them, and for no other.",
    ]
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
            if point is None:
                continue
            values = predictive_values(point, prevalence)
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
    return PageTable(caption, header, rows, 4)


def _table(findings: Findings, condition: Condition, points: Points, unit: str) -> PageTable:
    """Return the rows of one condition: validation samples first, then each site."""
    rows = []
    for role, site in [(VALIDATION, ALL), *condition.sites()]:
        for key in condition.inferences:
            point = points.get((condition.id, key, role, site))
            # runs without validation samples have no row for home
            if point is not None and point.samples:
                rows.append(_row(point, ({ALL: AT_HOME}.get(site, site), role, findings.name(key)), unit))
    caption = f"{findings.full(condition)}. Rates (%) at the threshold. "
    if any(len(point.thresholds) > 1 for point in points.values()):
        caption += "Rates and counts are means over trainings. "
    caption += (
        f"Below, the 95% interval {resampled(len(condition.seeds), unit)}. In brackets the drift: points above or "
        "below the validation samples"
    )
    rates = ("Sensitivity", "Specificity", "Prevalence", "PPV", "NPV", "Flagged")
    header = ("Site", "Role", "Inference", "Threshold", unit.capitalize(), *rates, "Counts")
    return PageTable(caption, header, rows, 3)


def _row(point: Point, heads: tuple[str, ...], unit: str) -> list[PageCell]:
    counts = {name: f"{name.upper()}\N{NO-BREAK SPACE}{_count(point.counts[name])}" for name in COUNTS}
    tested = PageCell(f"{point.samples:,}")
    if unit == "patients":
        tested = PageCell(f"{point.patients:,}", f"{point.samples:,} samples")
    return [
        *map(PageCell, heads),
        PageCell(_thresholds(point)),
        tested,
        *(_drifted(point, name) for name in DRIFTS),
        PageCell(number(point.rates["prevalence"].mean, metric_named(RATE))),
        *(_rate(point.rates[name]) for name in ("ppv", "npv", "flag_rate")),
        PageCell(f"{counts['tp']}, {counts['fn']}", f"{counts['fp']}, {counts['tn']}"),
    ]


def _count(n: float) -> str:
    return DASH if math.isnan(n) else f"{n:,.1f}".removesuffix(".0")


def _rate(value: Value) -> PageCell:
    """Return a rate in percent with its interval."""
    metric = metric_named(RATE)
    return PageCell(number(value.mean, metric), bounds(value, metric))


def _drifted(point: Point, name: str) -> PageCell:
    """Return a rate with its interval, and its drift in brackets."""
    rate = _rate(point.rates[name])
    drift = point.drifts[name]
    if math.isnan(drift):
        return rate
    return PageCell(f"{rate.text} ({number(drift, metric_named(RATE), sign=True)})", rate.below)


def _thresholds(point: Point) -> str:
    """Return the threshold, or the range over trainings."""
    texts = sorted({_threshold(threshold) for threshold in point.thresholds})
    return " to ".join(dict.fromkeys([texts[0], texts[-1]]))


def _threshold(value: float) -> str:
    if math.isnan(value):
        return DASH
    # no score satisfied the rule, so that nothing is flagged
    if math.isinf(value):
        return "none reached"
    return f"{value:.3f}"
