"""The section on test-time adaptation: whether predictions collapsed into one class, and what each method did."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..analysis.collapse import SHARE, SHARE_OF_TWO
from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.study_results import StudyResults
from ..analysis.values import DASH, Table, listed
from .html import Block, Fold, Section, plain
from .phrases import counted, in_samples

Groups = dict[tuple[str, str, str, str], pd.DataFrame]
"""The rows of collapse.csv, one a training, by the ids of condition and inference, role and site."""
NUMBERS = ("spread", "spread_source", "top_share", "entropy", "agreement")
NO = "no"
UNKNOWN = "not known"
"""Answers to whether predictions collapsed. All others are marked on the page."""


def section(results: StudyResults) -> Section | None:
    """Return the section of the page; None for a study without a method that adapts by gradients.

    Methods that only replace the statistics of batch norm are in collapse.csv, and not on the page.
    """
    findings = results.findings
    rows = results.table("collapse")
    adapting = [key for key, inference in findings.plan.inferences.items() if inference.gradients]
    rows = rows[rows["inference_id"].isin(adapting)]
    if rows.empty:
        return None
    groups: Groups = dict(list(rows.groupby(["condition_id", "inference_id", "role", "site"])))  # type: ignore[arg-type]
    tables = [table for table in (_table(findings, c, groups) for c in findings.conditions) if table.rows]
    lines = [*_verdict(findings, rows, groups), *_off(findings, adapting, groups), *_traffic(findings, rows)]
    lines = [in_samples(line, results.plan.study.dataset.sample_noun) for line in lines]
    answers = {row[-1] for table in tables for row in table.rows} - {NO, UNKNOWN}
    shown = [plain(table, dict.fromkeys(answers, "worse")) for table in tables]
    blocks: list[Block] = [*lines, Fold("Predictions site by site", shown)]
    return Section("collapse", "Test-time adaptation", blocks, short="Adaptation")


def _places(findings: Findings, condition: Condition, groups: Groups) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """Yield role, site, the name of an inference, and its trainings, of a condition, in the order of the study."""
    for role, site in condition.sites():
        for key in condition.inferences:
            trainings = groups.get((condition.id, key, role, site))
            if trainings is not None:
                yield role, site, findings.name(key), trainings


def _table(findings: Findings, condition: Condition, groups: Groups) -> Table:
    """Return the table of one condition: a row for each site and inference."""
    sample = findings.plan.study.dataset.sample_noun
    rows = tuple(
        (site, role, name, *(_percent(of[column]) for column in NUMBERS), in_samples(_work(of), sample), _answer(of))
        for role, site, name, of in _places(findings, condition, groups)
    )
    source = findings.name(findings.baseline) if findings.baseline else "Source"
    header = ("Site", "Role", "Inference", "Spread", f"Spread of {source}", "Largest class", "Entropy", f"As {source}")
    caption = (
        f"{findings.full(condition)}. Predictions of test images, in percent, mean over trainings. Spread: the entropy "
        "of the mean prediction, 0 where all is one class and 100 where classes are alike; largest class: the share of "
        "images that are predicted as the commonest class; entropy: the mean over images, 100 for a guess; as "
        f"{source}: the share of images with the same class as by {source}"
    )
    return Table(in_samples(caption, sample), (*header, "What it did", "Collapsed"), rows, 3)


def _percent(values: pd.Series) -> str:
    mean = float(values.mean())
    return DASH if np.isnan(mean) else f"{100 * mean:.1f}"


def _work(trainings: pd.DataFrame) -> str:
    """Return what an inference counted at a site, all trainings together; a dash where it counts nothing."""
    # with min_count, the sum of a column without any number is missing instead of 0
    total = trainings[["seen", "kept", "augmented", "steps", "resets"]].sum(min_count=1)
    total = total.dropna()
    shares = {
        name: total[name] / total["seen"] for name in ("kept", "augmented") if name in total and total.get("seen")
    }
    parts = [f"{name} {100 * share:.1f} % of images" for name, share in shares.items()]
    parts += [counted(int(total[name]), name.removesuffix("s")) for name in ("steps", "resets") if name in total]
    return ", ".join(parts) or DASH


def _answer(trainings: pd.DataFrame) -> str:
    """Return whether predictions collapsed, or in how many trainings."""
    collapsed = trainings["collapsed"].dropna()
    if collapsed.empty:
        return UNKNOWN
    if not collapsed.any():
        return NO
    if collapsed.all():
        return "yes"
    return f"{int(collapsed.sum())} of {len(collapsed)} trainings"


def _verdict(findings: Findings, rows: pd.DataFrame, groups: Groups) -> Iterator[str]:
    """Yield where predictions collapsed, and by which rule that is said."""
    share = {2: SHARE_OF_TWO}.get(len(findings.plan.study.dataset.classes), SHARE)
    if rows["collapsed"].isna().all():
        yield "Whether predictions collapsed is not known: it is seen beside the inference source, which is not there."
        return
    where = [
        f"{name} at {site} ({findings.full(condition)})"
        for condition in findings.conditions
        for _, site, name, trainings in _places(findings, condition, groups)
        if trainings["collapsed"].any()
    ]
    if where:
        yield f"Predictions collapsed: {listed(where)}."
    else:
        yield "Predictions collapsed at no site."
    yield (
        "Collapsed means that the spread over classes is less than half of that without adaptation, and that more "
        f"than {100 * share:.0f} % of images are predicted as one class. A low entropy does not prove success: it "
        "falls where predictions get better, and also where they collapse. No method was chosen or stopped by these "
        "numbers."
    )


def _off(findings: Findings, adapting: list[str], groups: Groups) -> Iterator[str]:
    """Yield a warning for each setting that switches a method off, and the methods that took no step at a site."""
    for key in adapting:
        if hint := findings.plan.inferences[key].hint(len(findings.plan.study.dataset.classes)):
            yield f"Warning about {findings.name(key)}: {hint}."
    for name in map(findings.name, adapting):
        idle = dict.fromkeys(
            site
            for condition in findings.conditions
            for _, site, inference, trainings in _places(findings, condition, groups)
            if inference == name and (trainings[["steps", "augmented"]] == 0).any(axis=None)
        )
        if idle:
            yield (
                f"{name} changed nothing in a training or more at {listed(list(idle))}: no image counted there, and "
                "its predictions are those of batch statistics."
            )


def _traffic(findings: Findings, rows: pd.DataFrame) -> Iterator[str]:
    """Yield what internal sites send for an inference after the training."""
    for key, asked in rows.groupby("inference_id")["asked"].max().dropna().items():
        if asked:
            yield (
                f"For {findings.name(str(key))}, each internal site sent {int(asked):,} floats once, after the "
                "training, and each tested site received as many beside the model. They are not in the table of "
                "communication, which is about the training."
            )
