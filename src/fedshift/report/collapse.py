"""The section on test-time adaptation: whether predictions collapsed into one class, and what each method did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..analysis.collapse import SHARE, SHARE_OF_TWO
from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.results import StudyResults
from ..analysis.table import Table
from ..analysis.values import DASH, listed

Groups = dict[tuple[str, str, str, str], pd.DataFrame]
"""The rows of collapse.csv, one a training, by the ids of condition and inference, role and site."""


@dataclass(frozen=True)
class Section:
    """The sentences of the section, and a table for each condition."""

    lines: list[str]
    tables: list[Table]


def section(results: StudyResults) -> Section | None:
    """Return the section of the page; None for a study without a method that adapts by gradients.

    Methods that only replace the statistics of batch norm are in collapse.csv, and not on the page.
    """
    findings, rows = results.findings, results.collapse
    adapting = [key for key, inference in findings.plan.inferences.items() if inference.gradients]
    rows = rows[rows["inference_id"].isin(adapting)]
    if rows.empty:
        return None
    groups: Groups = dict(list(rows.groupby(["condition_id", "inference_id", "role", "site"])))  # type: ignore[arg-type]
    tables = [table for condition in findings.conditions if (table := _table(findings, condition, groups)).rows]
    lines = [*_verdict(findings, rows, groups), *_off(findings, adapting, groups), *_traffic(findings, rows)]
    return Section(lines, tables)


def _places(findings: Findings, condition: Condition, groups: Groups) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """Yield role, site, the name of an inference, and its trainings, of a condition, in the order of the study."""
    for role, site in condition.sites():
        for key in condition.inferences:
            if (trainings := groups.get((condition.id, key, role, site))) is not None:
                yield role, site, findings.name(key), trainings


def _table(findings: Findings, condition: Condition, groups: Groups) -> Table:
    """Return the table of one condition: a row for each site and inference."""
    rows = tuple(
        (site, role, name, *(_percent(trainings[column]) for column in _SHOWN), _work(trainings), _answer(trainings))
        for role, site, name, trainings in _places(findings, condition, groups)
    )
    source = findings.name(findings.baseline) if findings.baseline else "Source"
    header = ("Site", "Role", "Inference", "Spread", f"Spread of {source}", "Largest class", "Entropy", f"As {source}")
    caption = (
        f"{findings.full(condition)}. Predictions of test images, in percent, mean over trainings. Spread: the entropy "
        "of the mean prediction, 0 where all is one class and 100 where classes are alike; largest class: the share of "
        "images that are predicted as the commonest class; entropy: the mean over images, 100 for a guess; as "
        f"{source}: the share of images with the same class as by {source}"
    )
    return Table(caption, (*header, "What it did", "Collapsed"), rows, 3)


_SHOWN = ("spread", "spread_source", "top_share", "entropy", "agreement")


def _percent(values: pd.Series) -> str:
    mean = float(values.mean())
    return DASH if np.isnan(mean) else f"{100 * mean:.1f}"


def _work(trainings: pd.DataFrame) -> str:
    """Return what an inference counted at a site, all trainings together; a dash where it counts nothing."""
    seen, kept, augmented, steps, resets = (
        trainings[name].sum(min_count=1) for name in ("seen", "kept", "augmented", "steps", "resets")
    )
    parts = [
        *([f"kept {100 * kept / seen:.1f} % of images"] if pd.notna(kept) and seen else []),
        *([f"augmented {100 * augmented / seen:.1f} % of images"] if pd.notna(augmented) and seen else []),
        *([_number(int(steps), "step")] if pd.notna(steps) else []),
        *([_number(int(resets), "reset")] if pd.notna(resets) else []),
    ]
    return ", ".join(parts) or DASH


def _number(count: int, name: str) -> str:
    return f"{count:,} {name}{'s' * (count != 1)}"


def _answer(trainings: pd.DataFrame) -> str:
    """Return whether predictions collapsed, or in how many trainings."""
    known = trainings["collapsed"].dropna()
    if known.empty:
        return "not known"
    if not known.any():
        return "no"
    return "yes" if known.all() else f"{int(known.sum())} of {len(known)} trainings"


def _verdict(findings: Findings, rows: pd.DataFrame, groups: Groups) -> Iterator[str]:
    """Yield where predictions collapsed, and by which rule that is said."""
    classes = len(findings.plan.study.dataset.classes)
    share = SHARE_OF_TWO if classes == 2 else SHARE
    if rows["collapsed"].isna().all():
        yield "Whether predictions collapsed is not known: it is seen beside the inference source, which is not there."
        return
    where = [
        f"{name} at {site} ({findings.full(condition)})"
        for condition in findings.conditions
        for _, site, name, trainings in _places(findings, condition, groups)
        if trainings["collapsed"].any()
    ]
    yield f"Predictions collapsed: {listed(where)}." if where else "Predictions collapsed at no site."
    yield (
        "Collapsed means that the spread over classes is less than half of that without adaptation, and that more "
        f"than {100 * share:.0f} % of images are predicted as one class. A low entropy is no sign of success: it falls "
        "where predictions get better, and also where they collapse. No method was chosen or stopped by these numbers."
    )


def _off(findings: Findings, adapting: list[str], groups: Groups) -> Iterator[str]:
    """Yield a warning for each setting that switches a method off, and the methods that took no step at a site."""
    classes = len(findings.plan.study.dataset.classes)
    for key in adapting:
        if hint := findings.plan.inferences[key].hint(classes):
            yield f"Warning about {findings.name(key)}: {hint}."
    for key in adapting:
        name = findings.name(key)
        idle = dict.fromkeys(
            site
            for condition in findings.conditions
            for _, site, one, trainings in _places(findings, condition, groups)
            if one == name and (trainings[["steps", "augmented"]] == 0).any(axis=None)
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
