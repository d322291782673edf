"""The section on conformal prediction: what is promised at home of sets or masks, and what they hold anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from ..analysis.conditions import Condition
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
    "pooled": "The new {unit} is of the mixture of these sites: a single site, or a {part}, may have {worse}.",
    "own": "Each internal site has a {quantile} of its own, and external sites have that of all. A {part} may have "
    "{worse}.",
}
OUTSIDE = "At external sites nothing is promised: what stands there is measured."
UNKNOWN = "No patient is known: each image counts as if it were a patient of its own, which promises too much."
SPARED = "The round that was kept was not chosen by the validation images that calibrate the {made}."
CHOSEN = (
    "Warning: the validation images that calibrate the {made} also chose the round, or the training of a search. So "
    "they look easier than new ones, and {made} may hold less than is promised. With select: last they choose nothing."
)
MASKS = (
    "A pixel belongs to such a mask if its probability reaches a threshold: the largest one that keeps the promise. "
    "Other sections are about masks of the most probable class. A {unit} without the structure does not count here."
)
REASONS = {
    UNPREDICTED: "No {made} for {names}: a training has no predictions of validation images.",
    SEVERAL: "No {made} for {names}: a patient has images of several classes. With unit: one, one image stands for "
    "each.",
    SHORT: f"{{names}}: some site has fewer than {BATCHES} batches of validation images, whose scores come from "
    "statistics that have not settled as those of longer streams have.",
}


def section(results: StudyResults, nouns: Nouns) -> Section | None:
    """Return the section of the page; None for a study without prediction sets."""
    declared = results.plan.study.conformal
    if declared is None:
        return None
    findings, rows = results.findings, results.table("conformal")
    table = _of_masks if _has_masks(findings) else _of_sets
    tables = [
        table(findings, condition, rows[rows["condition_id"] == condition.id], declared, nouns.units)
        for condition in findings.conditions
    ]
    lines = [*_outside(findings, rows, declared), *_promise(findings, declared, nouns), *_limits(findings, rows)]
    title = "Missed structure" if _has_masks(findings) else "Prediction sets"
    return Section("conformal", title, [*lines, *further(tables)], short=title)


def _has_masks(findings: Findings) -> bool:
    return findings.plan.study.task.has_masks


def _made(findings: Findings) -> str:
    return "masks" if _has_masks(findings) else "sets"


def _percent(x: float) -> str:
    return number(x, metric_named(RATE))


def _outside(findings: Findings, rows: pd.DataFrame, declared: Conformal) -> Iterator[str]:
    """Yield, as a measurement, whether the promise of home held outside, in the first condition."""
    condition, alpha = findings.conditions[0], 100 * declared.alpha
    key = findings.level_inference(condition)
    first = rows[(rows["condition_id"] == condition.id) & (rows["inference_id"] == key) & (rows["role"] == "external")]
    promise = f"the {100 - alpha:g} % promised at home are"
    if _has_masks(findings):
        promise = f"the promise of home, that masks miss {alpha:g} % or less, is"
    sites = []
    for row in first[first["verdict"].isin(JUDGED)].to_dict("records"):
        share = f"{_percent(row['coverage'])} %"
        if _has_masks(findings):
            share = f"{_percent(1 - row['coverage'])} % of {row['class']} missed"
        sites.append(f"{row['verdict']} at {row['site']} ({share})")
    if sites:
        yield f"{findings.full(condition)} with {findings.name(key)}: outside, {promise} {'; '.join(sites)}."


def _promise(findings: Findings, declared: Conformal, nouns: Nouns) -> Iterator[str]:
    """Yield what is promised at home, that nothing is outside, and whether validation images chose anything."""
    words = {"part": "class", "worse": "less", "quantile": "quantile"}
    promise = f"{SETS[declared.unit]} with a probability of {100 * (1 - declared.alpha):g} % or more"
    if _has_masks(findings):
        words = {"part": "single {unit}", "worse": "more missed", "quantile": "threshold"}
        promise = f"the mask of a new {{unit}} misses {100 * declared.alpha:g} % of a structure or less in the mean"
    sets, sites = (
        text.format(unit=nouns.unit) for text in (promise, SITES[declared.sites].format(unit="{unit}", **words))
    )
    yield f"At internal sites {sets}, over validation and test {nouns.units} together. {sites} {OUTSIDE}"
    if _has_masks(findings):
        yield MASKS.format(unit=nouns.unit)
    trainings = [run.training for run in findings.plan.runs.values()]
    chosen = any(one.select != "last" and not one.select_at for one in trainings)
    yield (CHOSEN if chosen else SPARED).format(made=_made(findings))
    if not nouns.known:
        yield UNKNOWN


def _limits(findings: Findings, rows: pd.DataFrame) -> Iterator[str]:
    """Yield which inferences have no sets, and which have too few validation images for statistics of batches."""
    reasons = {reason: rows["verdict"] == reason for reason in REASONS}
    for reason, chosen in (reasons | {SHORT: rows["batches"].between(1, BATCHES - 1)}).items():
        keys = set(rows.loc[chosen, "inference_id"])
        if names := [findings.name(key) for key in findings.keys if key in keys]:
            yield REASONS[reason].format(names=listed(names), made=_made(findings))


def _of_sets(
    findings: Findings, condition: Condition, rows: pd.DataFrame, declared: Conformal, units: str
) -> PageTable:
    """Return the table of the sets of one condition: a row for each inference and site."""
    places = rows.groupby(["inference_id", "role", "site"], sort=False)
    cells = [_set_cells(part.to_dict("records"), findings, declared.alpha) for _, part in places]
    about = ("Site", "Role", "Inference", "Calibrated on", units.capitalize(), "Quantile", "Coverage", "Set size")
    header = (*about, "One class", "Several", "No class fits", "Coverage of each class (n)", "Verdict")
    promised, held = (f"{100 * (1 - declared.alpha - less):g} %" for less in (0, declared.margin))
    caption = (
        f"{findings.full(condition)}. Prediction sets by {declared.score.upper()}, shares in percent, means over "
        f"trainings. Calibrated on: validation {units}; below, the coverage at home of 90 % of calibrations with as "
        f"many. Coverage: {units} whose set holds their class; below, the 95% interval "
        f"{resampled(len(condition.seeds), units)}, whose lower end is {held} or more where the promise is held, and "
        f"whose upper end is below {promised} where it is broken"
    )
    return PageTable(caption, header, cells, 3)


def _set_cells(rows: list[dict[Any, Any]], findings: Findings, alpha: float) -> list[PageCell]:
    """Return the cells of one place, from its row of all classes and those of single classes."""
    row, *classes = rows
    judged = row["verdict"] in JUDGED
    ends = likely(int(row["calibrated"]), alpha) if judged else ()
    interval = between(Value(row["coverage"], low=row["low"], high=row["high"]), metric_named(RATE))
    each = ", ".join(f"{one['class']} {_percent(one['coverage'])} ({one['patients']:.0f})" for one in classes)
    return [
        *_place(row, findings),
        PageCell(f"{row['calibrated']:,.0f}", " to ".join(f"{100 * end:.0f}" for end in ends)),
        PageCell(f"{row['patients']:,.0f}"),
        _threshold(row),
        PageCell(_percent(row["coverage"]), interval if judged else ""),
        PageCell(_size(row["size"])),
        *(PageCell(_percent(row[name])) for name in ("decided", "several", "none")),
        PageCell(each or DASH),
        _verdict(row),
    ]


def _of_masks(
    findings: Findings, condition: Condition, rows: pd.DataFrame, declared: Conformal, units: str
) -> PageTable:
    """Return the table of the masks of one condition: a row for each inference, site and structure."""
    cells = [_mask_cells(row, findings) for row in rows.to_dict("records")]
    about = ("Site", "Role", "Inference", "Structure", "Calibrated on", units.capitalize(), "Threshold")
    promised, held = (f"{100 * (declared.alpha + more):g} %" for more in (0, declared.margin))
    caption = (
        f"{findings.full(condition)}. Masks by conformal risk control, means over trainings. Calibrated on: validation "
        f"{units} with the structure. Missed: the share of the structure outside of the mask, in percent, and mask "
        f"size: pixels of the mask over those of the structure, both in the mean over {units} with the structure; "
        f"below, the 95% interval {resampled(len(condition.seeds), units)}. Of missed, its upper end is {held} or less "
        f"where the promise is held, and its lower end is above {promised} where it is broken"
    )
    return PageTable(caption, (*about, "Missed", "Mask size", "Verdict"), cells, 4)


def _mask_cells(row: dict[Any, Any], findings: Findings) -> list[PageCell]:
    judged = row["verdict"] in JUDGED
    missed = between(Value(low=1 - row["high"], high=1 - row["low"]), metric_named(RATE))
    size = "" if math.isnan(row["size_low"]) else f"{_size(row['size_low'])} to {_size(row['size_high'])}"
    return [
        *_place(row, findings),
        PageCell(row["class"]),
        PageCell(f"{row['calibrated']:,.0f}"),
        PageCell(f"{row['patients']:,.0f}", f"{row['without']:.0f} without" if row["without"] > 0 else ""),
        _threshold(row),
        PageCell(_percent(1 - row["coverage"]), missed if judged else ""),
        PageCell(_size(row["size"]), size),
        _verdict(row),
    ]


def _place(row: dict[Any, Any], findings: Findings) -> Iterator[PageCell]:
    return map(PageCell, (row["site"], row["role"], findings.name(row["inference_id"])))


def _threshold(row: dict[Any, Any]) -> PageCell:
    text = {"inf": "none possible", "-inf": "none possible", "nan": DASH}.get(f"{row['quantile']:.3f}")
    small = 0 < row["quantile"] < 0.0005
    return PageCell(text or ("under 0.001" if small else f"{row['quantile']:.3f}"))


def _size(x: float) -> str:
    return DASH if math.isnan(x) else f"{x:.2f}"


def _verdict(row: dict[Any, Any]) -> PageCell:
    verdict = row["verdict"]
    text = f"{verdict} with n = {row['calibrated']:,.0f}" if verdict == TOO_FEW else verdict
    return PageCell(text, mark="worse" if verdict == BROKEN else "")
