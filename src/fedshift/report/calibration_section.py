"""The section on calibration: how well probabilities agree with frequencies at each external site."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..analysis.calibration import BINS, NUMBERS
from ..analysis.conditions import ALL, Condition
from ..analysis.findings import Findings
from ..analysis.values import DASH, Value, listed
from .html import Fold, PageCell, PageTable, Section, further
from .phrases import over

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


def section(findings: Findings, unit: str = "patients") -> Section | None:
    """Return the section of the page; None where nothing was measured."""
    if not findings.numbers.of(*NUMBERS):
        return None
    tables = [table for table in (_table(findings, condition, unit) for condition in findings.conditions) if table.rows]
    classes = findings.plan.study.dataset.classes
    named = f"class {classes[1]}" if len(classes) == 2 else "the most probable class"
    question = f"Can the probability of {named} be taken at its word? {_sentence(findings)}"
    blocks = [question.rstrip(), *further(tables), Fold("How to read these columns", EXPLANATION)]
    return Section("calibration", "Calibration", blocks, short="Calibration")


def _table(findings: Findings, condition: Condition, unit: str) -> PageTable:
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
            rows.append([PageCell(name), PageCell(role), PageCell(findings.name(key)), *cells])
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


def misjudged(findings: Findings, condition: Condition) -> dict[str, Value]:
    """Return observed / expected of the external sites at which it is surely not 1."""
    about = condition.id, findings.level_inference(condition), "external"
    values = {
        key.site: value
        for key, value in findings.numbers.of("observed_expected").items()
        if (key.condition_id, key.inference_id, key.role) == about
    }
    return {site: value for site, value in values.items() if value.high < 1 or value.low > 1}


def of_hundred(value: Value) -> str:
    """Return how many positive samples there are where a hundred are expected."""
    return f"{100 * value.mean:.0f} where 100 are expected ({100 * value.low:.0f} to {100 * value.high:.0f})"


def _sentence(findings: Findings) -> str:
    """Return at which external sites the probabilities of the first condition are surely too high, low or extreme."""
    condition = findings.conditions[0]
    key = findings.level_inference(condition)
    slopes = {site: findings.slope(condition, "external", site, key) for site in condition.partition.external}
    if not slopes:
        return ""
    # of three classes and more, no exchange of two of them follows from it
    exchanged = len(findings.plan.study.dataset.classes) == 2
    question = ": are the labels coded the other way round?" if exchanged else ""
    ratios = misjudged(findings, condition)
    level = {
        "too high": [f"{site}: {of_hundred(value)}" for site, value in ratios.items() if value.high < 1],
        "too low": [f"{site}: {of_hundred(value)}" for site, value in ratios.items() if value.low > 1],
    }
    # a slope without an interval compares as False, and is in no list
    shape = {
        f"the wrong way round (the interval of the slope is below 0{question})": [
            s for s, slope in slopes.items() if slope.high < 0
        ],
        "too extreme (the interval of the slope is below 1)": [
            s for s, slope in slopes.items() if slope.high < 1 and not slope.high < 0
        ],
        "not extreme enough (above 1)": [s for s, slope in slopes.items() if slope.low > 1],
    }
    sure = [f"surely {words} at {listed(sites)}" for words, sites in (level | shape).items() if sites]
    named = f"{findings.full(condition)} with {findings.name(key)}"
    if not sure:
        return (
            f"{named}: at no external site is it sure that probabilities are too high, too low, too extreme, or not "
            "extreme enough."
        )
    return f"{named}: probabilities are {', and '.join(sure)}."
