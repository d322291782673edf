"""The section on calibration: how well probabilities agree with frequencies at each external site."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from ..analysis.calibration import BINS, NUMBERS, TOP_LABEL
from ..analysis.conditions import ALL, Condition
from ..analysis.findings import Findings
from ..analysis.table import Table
from ..analysis.values import DASH, Value, listed
from .verdict import over

NOT_ESTIMABLE = "not estimable"
HEADER = ("Site", "Role", "Inference", "Observed / expected", "Intercept", "Slope")
ERRORS = ("ECE", "ECE of a perfect model", "Squared error, debiased")
IDEAL = {"observed_expected": 1.0, "intercept": 0.0, "slope": 1.0}
_KEY = ["condition_id", "inference_id", "role", "site", "quantity"]


@dataclass(frozen=True)
class Calibration:
    """The content of the section: the class that is predicted, a sentence about slopes, a table for each condition.

    `below` are the intervals of the cells of each table, which stand in a second line.
    """

    of: str
    slopes: str
    tables: list[tuple[Table, list[list[str]]]]


def calibration(findings: Findings, rows: pd.DataFrame, unit: str = "patients") -> Calibration | None:
    """Return the section from the rows of calibration.csv; None where nothing was measured.

    `unit` is what the intervals resample: patients, or images.
    """
    numbers = rows[rows["quantity"].isin(NUMBERS)]
    if numbers.empty:
        return None
    keys = numbers[_KEY].itertuples(index=False, name=None)
    values = (Value(*row) for row in numbers[["mean", "std", "seeds", "low", "high"]].itertuples(index=False))
    known = dict(zip(keys, values, strict=True))
    of = str(numbers["of"].iloc[0])
    tables = [made for c in findings.conditions if (made := _table(findings, c, known, unit)) is not None]
    named = "the most probable class" if of == TOP_LABEL else f"class {of}"
    return Calibration(named, _slopes(findings, known), tables)


Known = dict[tuple[str, ...], Value]
"""The values of calibration.csv by `_KEY`."""


def _table(findings: Findings, condition: Condition, known: Known, unit: str) -> tuple[Table, list[list[str]]] | None:
    """Return the table of one condition with the intervals below its cells."""
    rows, below, bounded = [], [], list[Value]()
    for role, site, name in _places(condition):
        for key in condition.inferences:
            place = condition.id, key, role, site
            if (*place, NUMBERS[0]) not in known:
                continue
            values = [known.get((*place, quantity), Value()) for quantity in NUMBERS]
            cells = [_text(q, value) for q, value in zip(NUMBERS, values, strict=True)]
            bounded += [value for value in values if not math.isnan(value.low)]
            rows.append((name, role, findings.name(key), *cells))
            below.append(["", "", "", *(_between(value) for value in values)])
    if not rows:
        return None
    intervals = f"; beneath, 95% intervals {over(bounded[0], unit)}" if bounded else ""
    caption = f"{findings.full(condition)}. Calibration: mean over trainings{intervals}"
    return Table(caption, (*HEADER, *ERRORS), tuple(rows), 3), below


def _places(condition: Condition) -> Iterator[tuple[str, str, str]]:
    """Yield role, site and the name of a row: each external site, and the mean of the internal ones."""
    yield from (("external", site, site) for site in condition.partition.external)
    if condition.tests_inside:
        yield "internal", ALL, "Mean of internal sites"


def _text(quantity: str, value: Value) -> str:
    if not value.known:
        return NOT_ESTIMABLE if quantity in IDEAL else DASH
    digits = 4 if quantity == NUMBERS[-1] else 3 if quantity.startswith("ece") else 2
    return _signed(value.mean, digits)


def _between(value: Value) -> str:
    return "" if math.isnan(value.low) else f"{_signed(value.low, 2)} to {_signed(value.high, 2)}"


def _signed(x: float, digits: int) -> str:
    text = f"{x:.{digits}f}"
    return (text.lstrip("-") if not text.strip("-0.") else text).replace("-", "−")


def _slopes(findings: Findings, known: Known) -> str:
    """Return at how many external sites the probabilities of the first condition are surely too extreme."""
    condition = findings.conditions[0]
    key = findings.level_inference(condition)
    slopes = {s: known.get((condition.id, key, "external", s, "slope"), Value()) for s in condition.partition.external}
    if not slopes:
        return ""
    sure = {
        "too extreme (the interval of the slope is below 1)": [s for s, v in slopes.items() if v.high < 1],
        "not extreme enough (above 1)": [s for s, v in slopes.items() if v.low > 1],
    }
    parts = [f"surely {what} at {listed(sites)}" for what, sites in sure.items() if sites]
    who = f"{findings.full(condition)} with {findings.name(key)}"
    if not parts:
        return f"{who}: at no external site is it sure that probabilities are too extreme, or not extreme enough."
    return f"{who}: probabilities are {', and '.join(parts)}."


def explanation() -> list[str]:
    """Return how the columns are read."""
    return [
        "Observed / expected: positive samples by the sum of probabilities; ideally 1, below 1 these are too high.",
        "Intercept: calibration in the large, with the slope fixed at 1; ideally 0, below 0 they are too high.",
        "Slope: ideally 1; below 1 they are too extreme.",
        f"ECE: of this probability, in {BINS} bins of equal counts. It is not the metric ECE, which is of the most "
        "probable class in 15 bins of equal width. Even a perfect model has an ECE, the larger the fewer samples: "
        "compare it with that column, never with another site. With several samples a patient, that column is too low.",
        "Squared error, debiased: the mean squared gap of the same bins without its bias; 0 for a perfect model.",
    ]
