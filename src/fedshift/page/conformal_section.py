"""The section on conformal prediction: what is promised at home of sets or masks, and what they hold anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from ..analysis.conditions import Condition
from ..analysis.conformal import BROKEN, HELD, OPEN, SEVERAL, TOO_FEW, UNPREDICTED, likely
from ..analysis.findings import Findings
from ..analysis.study_results import StudyResults
from ..analysis.values import DASH, Value, between, listed, number
from ..study.analysis_plan import Conformal
from .answer import by_lead
from .html import PageCell, PageTable, Section, further
from .phrases import Nouns, metric_named, resampled

RATE = "sensitivity"
"""A metric in percent, since all shares are written like it."""
JUDGED = (HELD, BROKEN, OPEN)
"""Verdicts of a site with sets. Any other says why there are none."""
SHORT, BATCHES = "short", 5
"""A site has fewer batches of validation images, so that statistics of batches have not settled."""
SETS = {
    "patient": "the set of a new {unit}, from the mean probabilities of its images, holds its class with a probability "
    "of {held:g} % or more",
    "one": "the set of one image of a new {unit}, drawn at random, holds its class with a probability of {held:g} % or "
    "more",
    "masks": "the mask of a new {unit} misses {missed:g} % of a structure or less in the mean",
}
SITES = {
    "pooled": "The new {unit} is of the mixture of these sites: a single site, or a {part}, may have {worse}.",
    "own": "Each internal site has a {quantile} of its own, and external sites have that of all. A {part} may have "
    "{worse}.",
}
OUTSIDE = "At external sites nothing is promised: what stands there is measured."
MASKS = (
    "A pixel belongs to such a mask if its probability reaches a threshold: the largest one that keeps the promise. "
    "Other sections are about masks of the most probable class. A {unit} without the structure does not count here."
)
UNKNOWN = "No patient is known: each image counts as if it were a patient of its own, which promises too much."
SPARED = "The round that was kept was not chosen by the validation images that calibrate the {made}."
CHOSEN = (
    "Warning: the validation images that calibrate the {made} also chose the round, or the training of a search. So "
    "they look easier than new ones, and {made} may hold less than is promised. With select: last they choose nothing."
)
REASONS = {
    UNPREDICTED: "No {made} for {names}: a training has no predictions of validation images.",
    SEVERAL: "No {made} for {names}: a patient has images of several classes. With unit: one, one image stands for "
    "each.",
    SHORT: f"{{names}}: some site has fewer than {BATCHES} batches of validation images, whose scores come from "
    "statistics that have not settled as those of longer streams have.",
}
REAL_SITES = (
    "No {made} for {names}: real sites trained this study, and they send predictions of validation images, which "
    "calibrate, only where there are two classes and no masks."
)
CAPTIONS = {
    "sets": "{condition}. Prediction sets by {score}, shares in percent, means over trainings. Calibrated on: "
    "validation {units}; below, the coverage at home of 90 % of calibrations with as many. Coverage: {units} whose set "
    "holds their class; below, the 95% interval {resampled}, whose lower end is {least:g} % or more where the promise "
    "is held, and whose upper end is below {held:g} % where it is broken",
    "masks": "{condition}. Masks by conformal risk control, means over trainings. Calibrated on: validation {units} "
    "with the structure. Missed: the share of the structure outside of the mask, in percent; mask size: pixels of the "
    "mask over those of the structure; both in the mean over {units} with it. Below, the 95% interval {resampled}: of "
    "missed, its upper end is {most:g} % or less where the promise is held, and its lower end above {missed:g} % where "
    "it is broken",
}


def section(results: StudyResults, nouns: Nouns) -> Section | None:
    """Return the section of the page; None for a study without prediction sets."""
    declared = results.plan.study.conformal
    if declared is None:
        return None
    made, title = ("masks", "Missed structure") if _has_masks(results.findings) else ("sets", "Prediction sets")
    alpha, margin = 100 * declared.alpha, 100 * declared.margin
    words: dict[str, Any] = {"made": made, "unit": nouns.unit, "units": nouns.units, "score": declared.score.upper()}
    words |= {"missed": alpha, "most": alpha + margin, "held": 100 - alpha, "least": 100 - alpha - margin}
    findings, rows = results.findings, results.table("conformal")
    tables = [
        [_table(findings, one, rows[rows["condition_id"] == one.id], words, declared) for one in conditions]
        for conditions in by_lead(findings)
    ]
    lines = [*_outside(findings, rows, words)]
    if (rows["verdict"] != UNPREDICTED).any():
        lines += [*_promise(findings, declared, words), *([] if nouns.known else [UNKNOWN])]
    lines += _limits(results, rows, made)
    return Section("conformal", title, [*lines, *further(*tables)], short=title)


def _has_masks(findings: Findings) -> bool:
    return findings.plan.study.task.has_masks


def _percent(x: float) -> str:
    return number(x, metric_named(RATE))


def _outside(findings: Findings, rows: pd.DataFrame, words: Mapping[str, Any]) -> Iterator[str]:
    """Yield, as a measurement, whether the promise of home held outside, in the first condition."""
    condition = findings.conditions[0]
    key = condition.level_inference
    first = rows[(rows["condition_id"] == condition.id) & (rows["inference_id"] == key) & (rows["role"] == "external")]
    promise, share = "the {held:g} % promised at home are", "{coverage} %"
    if _has_masks(findings):
        promise, share = "the promise of home, that masks miss {missed:g} % or less, is", "{missed} % of {what} missed"
    sites = []
    for row in first[first["verdict"].isin(JUDGED)].to_dict("records"):
        shares = {"coverage": _percent(row["coverage"]), "missed": _percent(1 - row["coverage"]), "what": row["class"]}
        sites.append(f"{row['verdict']} at {row['site']} ({share.format(**shares)})")
    if sites:
        promise = promise.format(**words)
        yield f"{findings.full(condition)} with {findings.name(key)}: outside, {promise} {'; '.join(sites)}."


def _promise(findings: Findings, declared: Conformal, words: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is promised at home, that nothing is outside, and whether validation images chose anything."""
    masks = _has_masks(findings)
    less = {"part": "class", "worse": "less", "quantile": "quantile"}
    if masks:
        less = {"part": f"single {words['unit']}", "worse": "more missed", "quantile": "threshold"}
    promise = SETS["masks" if masks else declared.unit].format(**words)
    sites = SITES[declared.sites].format(**words, **less)
    yield f"At internal sites {promise}, over validation and test {words['units']} together. {sites} {OUTSIDE}"
    if masks:
        yield MASKS.format(**words)
    trainings = [run.training for run in findings.plan.runs.values()]
    chosen = any(one.select != "last" and not one.select_at for one in trainings)
    yield (CHOSEN if chosen else SPARED).format(**words)


def _limits(results: StudyResults, rows: pd.DataFrame, made: str) -> Iterator[str]:
    """Yield which inferences have no sets, and which have too few validation images for statistics of batches."""
    findings, texts = results.findings, dict(REASONS)
    if any(manifest.get("sites") for manifest in results.manifests.values()) and not results.plan.study.two_classes:
        texts[UNPREDICTED] = REAL_SITES
    reasons = {reason: rows["verdict"] == reason for reason in REASONS}
    for reason, chosen in (reasons | {SHORT: rows["batches"].between(1, BATCHES - 1)}).items():
        keys = set(rows.loc[chosen, "inference_id"])
        if names := [findings.name(key) for key in findings.keys if key in keys]:
            yield texts[reason].format(names=listed(names), made=made)


def _table(
    findings: Findings, condition: Condition, rows: pd.DataFrame, words: Mapping[str, Any], declared: Conformal
) -> PageTable:
    """Return the table of one condition: a row for each inference and site, and of masks for each structure."""
    masks = _has_masks(findings)
    keys = ["inference_id", "role", "site", *(["class"] if masks else [])]
    cells = []
    for _, part in rows.groupby(keys, sort=False):
        row, *classes = part.to_dict("records")
        own = _of_masks(row) if masks else _of_sets(row, classes, declared.alpha)
        about = row["site"], row["role"], findings.name(row["inference_id"])
        mark = "worse" if row["verdict"] == BROKEN else ""
        verdict = f"{row['verdict']} with n = {row['calibrated']:,.0f}" if row["verdict"] == TOO_FEW else row["verdict"]
        cells.append(
            dict(zip(("Site", "Role", "Inference"), map(PageCell, about), strict=True))
            | {key.format(units=words["units"].capitalize()): cell for key, cell in own.items()}
            | {"Verdict": PageCell(verdict, mark=mark)}
        )
    over = resampled(len(condition.seeds), words["units"])
    caption = CAPTIONS[words["made"]].format(**words, condition=findings.full(condition), resampled=over)
    return PageTable(caption, tuple(next(iter(cells), {})), [[*row.values()] for row in cells], 3 + masks)


def _of_sets(row: dict[Any, Any], classes: list[dict[Any, Any]], alpha: float) -> dict[str, PageCell]:
    """Return the cells of the sets of one place, from its row of all classes and those of single classes."""
    judged = row["verdict"] in JUDGED
    ends = likely(int(row["calibrated"]), alpha) if judged else ()
    coverage = Value(row["coverage"], low=row["low"], high=row["high"])
    each = ", ".join(f"{one['class']} {_percent(one['coverage'])} ({one['patients']:.0f})" for one in classes)
    shares = {"One class": "decided", "Several": "several", "No class fits": "none"}
    return {
        "Calibrated on": PageCell(f"{row['calibrated']:,.0f}", " to ".join(f"{100 * end:.0f}" for end in ends)),
        "{units}": PageCell(f"{row['patients']:,.0f}"),
        "Quantile": PageCell(_decimal(row["quantile"], 3)),
        "Coverage": PageCell(_percent(coverage.mean), between(coverage, metric_named(RATE)) if judged else ""),
        "Set size": PageCell(_decimal(row["size"], 2)),
        **{head: PageCell(_percent(row[name])) for head, name in shares.items()},
        "Coverage of each class (n)": PageCell(each or DASH),
    }


def _of_masks(row: dict[Any, Any]) -> dict[str, PageCell]:
    """Return the cells of the masks of a structure at one place."""
    missed = Value(1 - row["coverage"], low=1 - row["high"], high=1 - row["low"])
    sizes = [_decimal(row[name], 2) for name in ("size_low", "size_high")]
    return {
        "Structure": PageCell(row["class"]),
        "Calibrated on": PageCell(f"{row['calibrated']:,.0f}"),
        "{units}": PageCell(f"{row['patients']:,.0f}", f"{row['without']:.0f} without" if row["without"] > 0 else ""),
        "Threshold": PageCell(_decimal(row["quantile"], 3)),
        "Missed": PageCell(_percent(missed.mean), between(missed, metric_named(RATE)).removeprefix(DASH)),
        "Mask size": PageCell(_decimal(row["size"], 2), " to ".join(sizes) if DASH not in sizes else ""),
    }


def _decimal(x: float, digits: int) -> str:
    """Return a number, or why there is none: without a promise, quantiles and thresholds are infinite."""
    if math.isinf(x):
        return "none possible"
    return DASH if math.isnan(x) else f"{x:.{digits}f}"
