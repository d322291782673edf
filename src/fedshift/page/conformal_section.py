"""The section on conformal prediction sets: what is promised at home, and how often sets hold the class anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from ..analysis.conditions import ALL, Condition
from ..analysis.conformal import BROKEN, HELD, OPEN, SEVERAL, TOO_FEW, UNPREDICTED, likely
from ..analysis.findings import Findings
from ..analysis.study_results import StudyResults
from ..analysis.values import DASH, Value, between, listed, number
from ..study.analysis_plan import Conformal
from .html import PageCell, PageTable, Section, further
from .phrases import Nouns, metric_named, resampled

RATE = "sensitivity"
"""A metric in percent, since all shares are written like it."""
JUDGED = (HELD, BROKEN, OPEN)
"""Verdicts of a site with sets. Any other says why there are none."""
SHORT, BATCHES = "short", 5
"""A site has fewer batches of validation images, so that statistics of batches have not settled."""
SETS = {
    "patient": "the set of a new {unit}, from the mean probabilities of its images, holds its class",
    "one": "the set of one image of a new {unit}, drawn at random, holds its class",
}
SITES = {
    "pooled": "The new {unit} is of the mixture of these sites: a single site, or a class, may have less.",
    "own": "Each internal site has a quantile of its own, and external sites have that of all. A class may have less.",
}
OUTSIDE = "At external sites nothing is promised: what stands there is measured."
UNKNOWN = "No patient is known: each image counts as if it were a patient of its own, which promises too much."
SPARED = "The round that was kept was not chosen by the validation images that calibrate the sets."
CHOSEN = (
    "Warning: the validation images that calibrate the sets also chose the round, or the training of a search. So they "
    "look easier than new ones, and sets may hold less than is promised. With select: last they choose nothing."
)
REASONS = {
    UNPREDICTED: "No sets for {names}: a training has no predictions of validation images.",
    SEVERAL: "No sets for {names}: a patient has images of several classes. With unit: one, one image stands for each.",
    SHORT: f"{{names}}: some site has fewer than {BATCHES} batches of validation images, whose scores come from "
    "statistics that have not settled as those of longer streams have.",
}


def section(results: StudyResults, nouns: Nouns) -> Section | None:
    """Return the section of the page; None for a study without prediction sets."""
    declared = results.plan.study.conformal
    if declared is None:
        return None
    findings, rows = results.findings, results.table("conformal")
    tables = [_table(findings, condition, rows, declared, nouns.units) for condition in findings.conditions]
    lines = [*_outside(findings, rows, declared), *_promise(findings, declared, nouns), *_limits(findings, rows)]
    return Section("conformal", "Prediction sets", [*lines, *further(tables)], short="Prediction sets")


def _percent(x: float) -> str:
    return number(x, metric_named(RATE))


def _outside(findings: Findings, rows: pd.DataFrame, declared: Conformal) -> Iterator[str]:
    """Yield, as a measurement, whether sets of the first condition held outside what is promised at home."""
    condition = findings.conditions[0]
    key = findings.level_inference(condition)
    first = rows[(rows["condition_id"] == condition.id) & (rows["inference_id"] == key) & (rows["role"] == "external")]
    told = first.loc[first["class"] == ALL, ["site", "verdict", "coverage"]].itertuples(index=False, name=None)
    if sites := [f"{verdict} at {site} ({_percent(x)} %)" for site, verdict, x in told if verdict in JUDGED]:
        share = f"the {100 * (1 - declared.alpha):g} % promised at home"
        yield f"{findings.full(condition)} with {findings.name(key)}: outside, {share} are {'; '.join(sites)}."


def _promise(findings: Findings, declared: Conformal, nouns: Nouns) -> Iterator[str]:
    """Yield what is promised at home, that nothing is outside, and whether validation images chose anything."""
    sets, sites = (text.format(unit=nouns.unit) for text in (SETS[declared.unit], SITES[declared.sites]))
    share = f"with a probability of {100 * (1 - declared.alpha):g} % or more"
    yield f"At internal sites {sets} {share}, over validation and test {nouns.units} together. {sites} {OUTSIDE}"
    trainings = [run.training for run in findings.plan.runs.values()]
    yield CHOSEN if any(one.select != "last" and not one.select_at for one in trainings) else SPARED
    if not nouns.known:
        yield UNKNOWN


def _limits(findings: Findings, rows: pd.DataFrame) -> Iterator[str]:
    """Yield which inferences have no sets, and which have too few validation images for statistics of batches."""
    reasons = {reason: rows["verdict"] == reason for reason in REASONS}
    for reason, chosen in (reasons | {SHORT: rows["batches"].between(1, BATCHES - 1)}).items():
        keys = set(rows.loc[chosen, "inference_id"])
        if names := [findings.name(key) for key in findings.keys if key in keys]:
            yield REASONS[reason].format(names=listed(names))


def _table(findings: Findings, condition: Condition, rows: pd.DataFrame, declared: Conformal, unit: str) -> PageTable:
    """Return the table of one condition: a row for each inference and site."""
    places = rows[rows["condition_id"] == condition.id].groupby(["inference_id", "role", "site"], sort=False)
    cells = [_cells(part.to_dict("records"), findings, declared.alpha) for _, part in places]
    about = ("Site", "Role", "Inference", "Calibrated on", unit.capitalize(), "Quantile", "Coverage", "Set size")
    header = (*about, "One class", "Several", "No class fits", "Coverage of each class (n)", "Verdict")
    promised, held = (f"{100 * (1 - declared.alpha - less):g} %" for less in (0, declared.margin))
    caption = (
        f"{findings.full(condition)}. Prediction sets by {declared.score.upper()}, shares in percent, means over "
        f"trainings. Calibrated on: validation {unit}; below, the coverage at home of 90 % of calibrations with as "
        f"many. Coverage: {unit} whose set holds their class; below, the 95% interval "
        f"{resampled(len(condition.seeds), unit)}, whose lower end is {held} or more where the promise is held, and "
        f"whose upper end is below {promised} where it is broken"
    )
    return PageTable(caption, header, cells, 3)


def _cells(rows: list[dict[Any, Any]], findings: Findings, alpha: float) -> list[PageCell]:
    """Return the cells of one place, from its row of all classes and those of single classes."""
    row, *classes = rows
    n, verdict = f"{row['calibrated']:,.0f}", row["verdict"]
    ends = likely(int(row["calibrated"]), alpha) if verdict in JUDGED else ()
    interval = between(Value(row["coverage"], low=row["low"], high=row["high"]), metric_named(RATE))
    each = ", ".join(f"{one['class']} {_percent(one['coverage'])} ({one['patients']:.0f})" for one in classes)
    threshold, size = f"{row['quantile']:.3f}", f"{row['size']:.2f}"
    return [
        *map(PageCell, (row["site"], row["role"], findings.name(row["inference_id"]))),
        PageCell(n, " to ".join(f"{100 * end:.0f}" for end in ends)),
        PageCell(f"{row['patients']:,.0f}"),
        PageCell({"inf": "none possible", "nan": DASH}.get(threshold, threshold)),
        PageCell(_percent(row["coverage"]), interval if verdict in JUDGED else ""),
        PageCell(DASH if size == "nan" else size),
        *(PageCell(_percent(row[name])) for name in ("decided", "several", "none")),
        PageCell(each or DASH),
        PageCell(f"{verdict} with n = {n}" if verdict == TOO_FEW else verdict, mark={BROKEN: "worse"}.get(verdict, "")),
    ]
