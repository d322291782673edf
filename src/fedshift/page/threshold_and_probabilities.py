"""The sections on calibration, and on rates at a threshold that validation images of the training sites choose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..analysis.calibration import BINS, NUMBERS
from ..analysis.conditions import ALL, Condition
from ..analysis.findings import Findings
from ..analysis.operating_point import DRIFTS, VALIDATION, Point, Points, positive_class, predictive_values
from ..analysis.study_results import StudyResults
from ..analysis.values import DASH, Value, listed, number
from ..figures._canvas import short
from ..study.declaration import Study
from .answer import by_lead
from .html import Fold, Light, PageCell, PageTable, Section, further
from .phrases import bounds, metric_named, over, resampled

HEADER = ("Site", "Role", "Inference", "Observed / expected", "Intercept", "Slope")
ERRORS = ("Calibration error", "The same of a perfect model", "Squared error, debiased")
DIGITS = dict(zip(NUMBERS, (2, 2, 2, 3, 3, 4), strict=True))
"""Decimals of each quantity."""
WIDEST = 10.0
"""A ratio, an intercept or a slope with a wider interval is called not estimable."""
ABSENT = {"observed_expected": "not estimable", "intercept": "not estimable", "slope": "not estimable"}
"""What stands for a quantity without a value; for others it is a dash."""
EXPLANATION = (
    "Observed / expected: positive samples by the sum of probabilities; ideally 1, below 1 these are too high.",
    "Intercept: calibration in the large, with the slope fixed at 1; ideally 0, below 0 they are too high.",
    "Slope: ideally 1; below 1 they are too extreme.",
    f"Calibration error: of this probability, in {BINS} bins of equal counts. The metric ECE is another number: of "
    "the most probable class, in 15 bins of equal width. Even a perfect model has an error, the larger the fewer "
    "samples: "
    "compare it with that column, never with another site. Where samples belong together, that column is too low.",
    "Squared error, debiased: the mean squared gap of the same bins without its bias; 0 for a perfect model.",
)
"""How the columns are read."""


def calibration_section(findings: Findings, unit: str = "patients") -> Section | None:
    """Return the section of the page; None where nothing was measured."""
    if not findings.numbers.of(*NUMBERS):
        return None
    tables = [
        [table for condition in conditions if (table := _calibration_table(findings, condition, unit)).rows]
        for conditions in by_lead(findings)
    ]
    classes = findings.plan.study.dataset.classes
    named = f"class {classes[1]}" if len(classes) == 2 else "the most probable class"
    question = f"Can the probability of {named} be taken at its word? {_sentence(findings)}"
    blocks = [question.rstrip(), *further(*tables), Fold("How to read these columns", EXPLANATION)]
    return Section("calibration", "Calibration", blocks, short="Calibration")


def _calibration_table(findings: Findings, condition: Condition, unit: str) -> PageTable:
    """Return the table of one condition with the intervals below its cells."""
    rows = []
    bounded = list[Value]()
    for role, site, name in _places(condition):
        for key in condition.inferences:
            place = "", condition.id, key, role, site
            if findings.numbers.known(NUMBERS[0], *place) is None:
                continue
            measured = {quantity: findings.numbers.find(quantity, *place) for quantity in NUMBERS}
            bounded += [value for value in measured.values() if not math.isnan(value.low)]
            cells = [_cell(quantity, value) for quantity, value in measured.items()]
            rows.append([*map(PageCell, (name, role, findings.name(key))), *cells])
    caption = f"{findings.full(condition)}. Calibration: mean over trainings"
    if bounded:
        caption += f"; beneath, 95% intervals {over(Value(seeds=bounded[0].seeds), unit)}"
    return PageTable(caption, (*HEADER, *ERRORS), rows, 3)


def _places(condition: Condition) -> Iterator[tuple[str, str, str]]:
    """Yield role, site and the name of a row: each external site, and the mean of the internal ones."""
    yield from (("external", site, site) for site in condition.partition.external)
    if condition.tests_inside:
        yield "internal", ALL, "Mean of internal sites"


def _cell(quantity: str, value: Value) -> PageCell:
    text = ABSENT.get(quantity, DASH)
    below = ""
    known = value.known and not (quantity in ABSENT and value.high - value.low > WIDEST)
    if known:
        text = _signed(value.mean, DIGITS[quantity])
    if known and not math.isnan(value.low):
        below = f"{_signed(value.low, 2)} to {_signed(value.high, 2)}"
    return PageCell(text, below)


def _signed(x: float, digits: int) -> str:
    # rounded before it is written, and without the sign of a negative zero
    return f"{round(x, digits) + 0.0:.{digits}f}".replace("-", "−")


class Misjudged(NamedTuple):
    """What is surely wrong with the probabilities at a site, in words, and the numbers behind it, if it has any."""

    site: str
    words: str
    numbers: str = ""


def misjudged(findings: Findings, conditions: Sequence[Condition], role: str) -> Iterator[Misjudged]:
    """Yield what is surely wrong with probabilities, at each external site, or (role "internal") at home on average.

    A ratio or a slope without an interval is never surely wrong.
    """
    # of three classes and more, no exchange of two of them follows from it
    exchanged = len(findings.plan.study.dataset.classes) == 2
    question = ": are the labels coded the other way round?" if exchanged else ""
    for condition in conditions:
        key = condition.level_inference
        for site in condition.partition.external if role == "external" else [ALL]:
            ratio = findings.numbers.find("observed_expected", "", condition.id, key, role, site)
            if ratio.high < 1 or ratio.low > 1:
                yield Misjudged(site, "too high" if ratio.high < 1 else "too low", of_hundred(ratio))
            slope = findings.slope(condition, role, site, key)
            if slope.high < 0:
                yield Misjudged(site, f"the wrong way round (the interval of the slope is below 0{question})")
            elif slope.high < 1:
                yield Misjudged(site, "too extreme (the interval of the slope is below 1)")
            elif slope.low > 1:
                yield Misjudged(site, "not extreme enough (above 1)")


def of_hundred(value: Value) -> str:
    """Return how many positive samples there are where a hundred are expected."""
    return f"{100 * value.mean:.0f} where 100 are expected ({100 * value.low:.0f} to {100 * value.high:.0f})"


def _sentence(findings: Findings) -> str:
    """Return at which external sites the probabilities of the leading condition are surely too high, low or extreme."""
    led, _ = by_lead(findings)
    if not any(condition.partition.external for condition in led):
        return ""
    named = f"{findings.title(led[0])} with "
    named += findings.name(led[0].level_inference)
    sites = dict[str, list[str]]()
    for found in misjudged(findings, led, "external"):
        sites.setdefault(found.words, []).append(": ".join(filter(None, (found.site, found.numbers))))
    if not sites:
        return (
            f"{named}: at no external site is it sure that probabilities are too high, too low, too extreme, or not "
            "extreme enough."
        )
    sure = [f"surely {words} at {listed(where)}" for words, where in sites.items()]
    return f"{named}: probabilities are {', and '.join(sure)}."


AT_HOME = "all internal sites"
LETTERS = 14
"""Letters of a class in the head of a column."""
POINT_ERRORS = {"sensitivity": "missed", "specificity": "false alarms"}
"""What a low rate means, of the positive and of the negative class."""
MOST = 4
"""Sites whose rates a sentence gives. The table has all."""
RATE = "sensitivity"
"""A metric in percent, since all rates are written like it."""
RULES = {
    "specificity": "the smallest score with a specificity of {level} or more",
    "sensitivity": "the largest score with a sensitivity of {level} or more",
    "youden": "the score with the largest sensitivity + specificity - 1 (Youden's index), the smallest of several",
}
"""The rules that need data, in words."""


def operating_point_section(results: StudyResults, unit: str = "patients") -> Section | None:
    """Return the section of the page; None for studies with more than two classes, or without any prediction."""
    if not results.plan.study.two_classes or not results.operating_points:
        return None
    findings, points, study = results.findings, results.operating_points, results.plan.study
    tables = [
        [table for condition in conditions if (table := _points_table(findings, condition, points, unit)).rows]
        for conditions in by_lead(findings)
    ]
    lines = [*_of_a_hundred(findings, points), " ".join(described(study)), *_unchosen(findings, points)]
    return Section("operating-point", "At a threshold", [*lines, *further(*tables)], short="At a threshold")


def _of_a_hundred(findings: Findings, points: Points) -> Iterator[str]:
    """Yield what the leading condition flags at each external site, of a hundred samples of either class."""
    positive, negative = _classes(findings.plan.study)
    led, _ = by_lead(findings)
    texts = []
    outside = [(condition, site) for condition in led for site in condition.partition.external]
    for condition, site in outside:
        point = points.get((condition.id, condition.level_inference, "external", site))
        if point is None:
            continue
        rates = {positive: point.rates["sensitivity"].mean, negative: 1 - point.rates["specificity"].mean}
        parts = [f"{100 * rate:.0f} of 100 {name}" for name, rate in rates.items() if not math.isnan(rate)]
        if parts:
            texts.append(f"{' and '.join(parts)} samples at {site}")
    if len(texts) > MOST:
        texts = [*texts[:MOST], f"so on for {len(texts) - MOST} more sites"]
    if texts:
        yield f"The model flags {'; '.join(texts)}. The second number of each site is that of false alarms."


def threshold_light(results: StudyResults) -> Light | None:
    """Return whether threshold and probabilities of the leading condition hold outside; None where neither is known.

    A rate does not hold where its interval at an external site lies below its value on the validation samples at home.
    Probabilities do not where they are surely wrong, at home included: what is as wrong outside as at home cannot be
    used outside either.
    """
    findings, points = results.findings, results.operating_points
    conditions, _ = by_lead(findings)
    if not any(condition.partition.external for condition in conditions):
        return None
    wrong = [text for condition in conditions for text in _drifted_rates(results, condition)]
    for role, where in (("external", "at {}"), ("internal", "at home")):
        for found in misjudged(findings, conditions, role):
            words = f"probabilities {where.format(found.site)} are {found.words.partition(' (')[0]}"
            wrong.append(f"{words}: {found.numbers}" if found.numbers else words)
    wrong = list(dict.fromkeys(wrong))
    outside = [
        points.get((condition.id, condition.level_inference, "external", site))
        for condition in conditions
        for site in condition.partition.external
    ]
    if not findings.numbers.of(*NUMBERS) and not any(outside):
        return None
    more = f"; {len(wrong) - 1} more" if len(wrong) > 1 else ""
    detail = wrong[0] + more if wrong else "nothing surely wrong outside, nor at home"
    place = "operating-point" if points else "calibration"
    return Light("Threshold and probabilities", "suspect" if wrong else "ok", detail, place)


def _drifted_rates(results: StudyResults, condition: Condition) -> Iterator[str]:
    """Yield each rate of a condition that surely is worse at an external site than in validation at home."""
    findings, points = results.findings, results.operating_points
    key = condition.level_inference
    home = points.get((condition.id, key, VALIDATION, ALL))
    for site in condition.partition.external:
        point = points.get((condition.id, key, "external", site))
        if point is None or home is None:
            continue
        classes = _classes(findings.plan.study)
        for name in DRIFTS:
            there, before = point.rates[name], home.rates[name].mean
            if there.high < before:
                rate, usual = (number(1 - x, metric_named(RATE)) for x in (there.mean, before))
                of = short(classes[DRIFTS.index(name)], LETTERS)
                yield f"{POINT_ERRORS[name]} at {site}: {rate} % of {of}, in validation at home {usual} %"


def _classes(study: Study) -> tuple[str, str]:
    """Return the positive and the negative class."""
    positive = positive_class(study)
    return study.dataset.classes[positive], study.dataset.classes[1 - positive]


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


def _points_table(findings: Findings, condition: Condition, points: Points, unit: str) -> PageTable:
    """Return the rows of one condition: validation samples first, then each site."""
    study = findings.plan.study
    chosen = study.threshold.value is None
    rows = []
    for role, site in [(VALIDATION, ALL), *condition.sites()]:
        for key in condition.inferences:
            point = points.get((condition.id, key, role, site))
            # runs without validation samples have no row for home
            if point is not None and point.samples:
                heads = [*map(PageCell, ({ALL: AT_HOME}.get(site, site), role, findings.name(key)))]
                if chosen:
                    texts = sorted(map(_threshold, point.thresholds))
                    heads.append(PageCell(" to ".join(dict.fromkeys([texts[0], texts[-1]]))))
                rows.append([*heads, *_row(point, study.prevalence)])
    positive, negative = (short(name, LETTERS) for name in _classes(study))
    counts = (f"{positive} flagged", f"{positive} missed", f"{negative} flagged", f"{negative} cleared")
    values: tuple[str, ...] = ("Prevalence", "PPV", "NPV")
    if study.prevalence is not None:
        share = f"{100 * study.prevalence:g}\N{NO-BREAK SPACE}%"
        values = (f"PPV at {share}", f"NPV at {share}")
    named = ("Site", "Role", "Inference", *(["Threshold"] if chosen else []), unit.capitalize())
    header = (*named, *counts, *map(str.capitalize, DRIFTS), *values)
    several = any(len(point.thresholds) > 1 for point in points.values())
    return PageTable(_caption(findings, condition, unit, several), header, rows, 3)


def _caption(findings: Findings, condition: Condition, unit: str, several: bool) -> str:
    caption = f"{findings.full(condition)}. Samples of each class that are flagged or not, and rates (%)"
    if several:
        caption += ", means over trainings"
    caption += (
        f". Below, the 95% interval {resampled(len(condition.seeds), unit)}. In brackets the drift: points above or "
        "below the validation samples. "
    )
    prevalence = findings.plan.study.prevalence
    if prevalence is None:
        return f"{caption}PPV and NPV are at the prevalence of the test samples beside them"
    return (
        f"{caption}PPV and NPV are those where {100 * prevalence:g}\N{NO-BREAK SPACE}% of samples are positive, from "
        "both rates: below, at both lower bounds and at both upper bounds of these, which is wider than a 95% "
        "interval. They hold if the rates do not change with the prevalence"
    )


def _row(point: Point, prevalence: float | None) -> list[PageCell]:
    counts = (point.counts[name] for name in ("tp", "fn", "fp", "tn"))
    shown = (DASH if math.isnan(n) else f"{n:,.1f}".removesuffix(".0") for n in counts)
    cells = [*map(PageCell, (f"{point.patients:,}", *shown)), *(_drifted(point, name) for name in DRIFTS)]
    if prevalence is not None:
        return [*cells, *map(_rate, predictive_values(point, prevalence))]
    share = PageCell(number(point.rates["prevalence"].mean, metric_named(RATE)))
    return [*cells, share, *(_rate(point.rates[name]) for name in ("ppv", "npv"))]


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


def _threshold(value: float) -> str:
    if math.isnan(value):
        return DASH
    # no score satisfied the rule, so that nothing is flagged
    if math.isinf(value):
        return "none reached"
    return f"{value:.3f}"
