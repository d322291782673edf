"""The section on the hypotheses that a study registered before its results were seen."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis.findings import Findings
from ..analysis.results import StudyResults
from ..analysis.table import Table
from ..analysis.values import DASH, Value, between, number
from ..papers.hypotheses import CANNOT_TELL, NO, NOT_RUN, YES
from .html import Claim, Fold, PageTable, Section, plain
from .phrases import capital, joined

if TYPE_CHECKING:
    import pandas as pd

MEANING = (
    "These claims and their margins stand in the file of the study, where they are to be before its results are seen. "
    "Yes: the whole interval agrees with the claim. No: the whole interval contradicts it. Cannot tell: it holds "
    "values on both sides of the margin. Each interval is a separate 95% interval: it is not widened for the number "
    "of claims."
)
_TONES = {NO: "worse", YES: "better"}
_SHOWN = {"above": "more than", "below": "less than", "within": "within ±"}


def asked(results: StudyResults) -> Iterator[Claim]:
    """Yield each registered hypothesis with its answer and the difference that it is about."""
    rows = results.table("hypotheses")
    for row in rows[rows["without"] == 0].to_dict("records"):
        _, claimed, mean, around, answer = _row(results.findings, row)
        found = answer.partition(": ")[2]
        if mean != DASH:
            found = f"claimed {claimed}, found {mean} (95% interval {around})"
        answer = answer.partition(":")[0]
        yield Claim(answer, str(row["claim"]), found, _TONES.get(answer, ""))


def section(results: StudyResults, unit: str) -> Section | None:
    """Return the section of the page; None for a study that registered nothing."""
    every = results.table("hypotheses")
    if every.empty:
        return None
    rows = every[every["without"] == 0]
    counts = {answer: int((rows["answer"] == answer).sum()) for answer in (YES, NO, CANNOT_TELL, NOT_RUN)}
    told = ", ".join(f"{answer}: {count}" for answer, count in counts.items() if count)
    lines = [f"Registered: {len(rows)}. {capital(told)}.", MEANING]
    caption = f"{results.findings.headline.title}: the differences that the claims are about; positive is better"
    folds = []
    for without, fewer in every[every["without"] > 0].groupby("without"):
        title = f"Without the {without} {unit} with most test images of each site"
        same = int((fewer["answer"].to_numpy() == rows["answer"].to_numpy()).sum())
        whether = f"Whether a few {unit} decide: {same} of {len(fewer)} answers are the same without them."
        whether = joined(whether, _largest_change(results.findings, rows, fewer))
        folds.append(Fold(title, [whether, _answers(results.findings, fewer, unit, f"{caption}. {title}")]))
    shown = _answers(results.findings, rows, unit, caption)
    return Section("hypotheses", "Registered hypotheses", [*lines, shown, *folds], short="Hypotheses")


def _largest_change(findings: Findings, rows: pd.DataFrame, fewer: pd.DataFrame) -> str:
    """Return the difference that moves furthest without the largest patients; empty where none is known."""
    before, after = (table["mean"].to_numpy(dtype=float) for table in (rows, fewer))
    moved = np.abs(after - before)
    if np.isnan(moved).all():
        return ""
    k = int(np.nanargmax(moved))
    found = (number(x, findings.headline, sign=True) for x in (before[k], after[k]))
    return "The difference that moves furthest goes from {} to {}: {}".format(*found, rows["claim"].iloc[k])


def _answers(findings: Findings, rows: pd.DataFrame, unit: str, caption: str) -> PageTable:
    """Return the table of the answers to some hypotheses."""
    header = ("Claim", "Claimed difference", "Found", f"95% interval ({unit} and trainings)", "Answer")
    body = tuple(_row(findings, row) for row in rows.to_dict("records"))
    return plain(Table(caption, header, body, 1), _TONES)


def _row(findings: Findings, row: Mapping[Hashable, Any]) -> tuple[str, ...]:
    """Return the cells of one hypothesis."""
    metric = findings.headline
    value = Value(mean=row["mean"], low=row["low"], high=row["high"])
    claimed = f"{_SHOWN[str(row['direction'])]} {number(float(row['margin']), metric)}"
    mean = DASH if math.isnan(value.mean) else number(value.mean, metric, sign=True)
    answer = str(row["answer"])
    if answer == NOT_RUN:
        answer = f"{answer}: {row['reason']}"
    return str(row["claim"]), claimed, mean, between(value, metric, sign=True), answer
