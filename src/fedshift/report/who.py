"""Who was in a study: the way of its images and patients into the splits, with patients of each class and columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from ..analysis.results import StudyResults
from ..analysis.values import DASH, listed
from ..core.spelling import plural
from ..core.units import SPACING
from ..data.partition import Partition
from ..datasets import SAMPLE_COLUMNS
from ..study.run import Run
from . import flow
from .cohort import SPLITS, Cohort
from .flow import Flow, Reason, Side
from .html import PageCell, PageTable, plain
from .phrases import counted

CLASSES = 4
"""With more classes, a cell names the rarest alone."""
COLUMNS = 6
"""Further columns of the table of images that are shown."""
VALUES = 3
"""Values of a column that a cell names, the commonest ones."""


@dataclass(frozen=True)
class Who:
    """One partition: its title, its flow as SVG, its table of sites, and that of further columns; None without any."""

    title: str
    picture: str
    table: PageTable
    further: PageTable | None


def sections(results: StudyResults, people: Iterable[Cohort]) -> list[Who]:
    """Return who was in each partition that has a cohort."""
    runs = {run.partition_id: run for run in results.plan.runs.values()}
    cards = dict(zip(results.plan.data, results.cards, strict=True))
    return [_who(results, cohort, runs[cohort.partition_id], cards, n) for n, cohort in enumerate(people)]


def _who(results: StudyResults, cohort: Cohort, run: Run, cards: dict[str, dict[str, Any]], number: int) -> Who:
    samples = results.samples(run.data.id)
    # A column of the user's table may have the name of one that the partition adds.
    further = samples[["sample", *samples.columns.difference(cohort.assigned.columns, sort=False)]]
    rows = cohort.assigned.merge(further, on="sample", how="left")
    way = _flow(run.partition, samples, rows, cards[run.data.id], cohort.unit)
    # Classes of masks are those of pixels: images have none.
    classes = run.data.dataset.classes if run.data.task.has_probabilities else ()
    table = _with_events(cohort, rows, classes)
    columns = _further(rows)
    if number:
        # a screen reader tells tables apart by their names
        table = _named(table, cohort)
        columns = columns and _named(columns, cohort)
    return Who(cohort.title, flow.svg(f"flow-{number}", way), table, columns)


def _named(table: PageTable, cohort: Cohort) -> PageTable:
    """Return a table whose caption says which partition it is of."""
    return replace(table, caption=f"{table.caption} ({cohort.title} held out)")


def _flow(partition: Partition, samples: pd.DataFrame, rows: pd.DataFrame, card: dict[str, Any], unit: str) -> Flow:
    """Return the way of images into the splits. Only reasons that follow from the records are named."""
    unreadable = card.get("unreadable") or 0
    left = samples[~samples["sample"].isin(rows["sample"])]
    used = left["site"].isin([*partition.sources, *partition.external])
    reasons = [
        Reason("could not be read", unreadable),
        Reason("of sites that take no part", int((~used).sum())),
        Reason(_left_out_by(partition), int(used.sum())),
    ]
    sides = [
        Side(
            title,
            len(part),
            _people(part, unit),
            [
                (site, [int((part.loc[part["site"] == site, "split"] == split).sum()) for split in splits])
                for site in sites
            ],
            splits,
        )
        for title, role, sites, splits in (
            ("At home", "internal", partition.internal, SPLITS),
            ("Outside", "external", partition.external, ("test",)),
        )
        for part in [rows[rows["role"] == role]]
        if sites
    ]
    left_out = [reason for reason in reasons if reason.images]
    return Flow(len(samples) + unreadable, _people(samples, unit), left_out, sides)


def _left_out_by(partition: Partition) -> str:
    """Return the settings that leave out images of sites that take part."""
    settings = {
        "the cut to the smallest site": partition.truncate,
        "the limit of images": partition.limit.train is not None or partition.limit.val is not None,
        "parts of a cut that no client has": partition.cut is not None and partition.cut.clients < partition.cut.parts,
    }
    by = [words for words, there in settings.items() if there]
    if by:
        return f"left out by {listed(by)}"
    return "otherwise left out"


def _people(rows: pd.DataFrame, unit: str) -> str:
    """Return the number of patients, or of what the study has in their place; empty where they are unknown."""
    number = int(rows["patient"].nunique()) if "patient" in rows else 0
    return counted(number, unit) if number else ""


def _with_events(cohort: Cohort, rows: pd.DataFrame, classes: tuple[str, ...]) -> PageTable:
    """Return the table of a cohort with the patients, of each class if images have one, below the images of a split."""
    table = plain(cohort.table)
    unit = cohort.unit if cohort.patients else ""
    units = plural(unit or "image")
    filled = []
    for cells in table.rows:
        site, role = cells[0].text, cells[1].text
        there = rows[(rows["site"] == site) & (rows["role"] == role)]
        of_splits = [there[there["split"] == split] for split in SPLITS]
        below = [_events(part, unit, classes) for part in of_splits]
        splits = [replace(cell, below=text) for cell, text in zip(cells[-len(SPLITS) :], below, strict=True)]
        filled.append([*cells[: -len(SPLITS)], *splits])
    caption = table.caption
    if classes:
        caption += f"; below, {units} of each class"
    elif cohort.patients:
        caption += f"; below, {units}"
    return replace(table, caption=caption, rows=filled)


def _events(rows: pd.DataFrame, unit: str, classes: tuple[str, ...]) -> str:
    """Return how many patients, or what the study calls them, have each class; samples if `unit` is empty."""
    if rows.empty or "label" not in rows:
        return ""
    column = "patient" if unit else "sample"
    people = counted(int(rows[column].nunique()), unit) if unit else ""
    if not classes:
        return people
    counts = rows.groupby("label")[column].nunique().reindex(range(len(classes)), fill_value=0)
    if len(classes) > CLASSES:
        rare = int(counts.to_numpy().argmin())
        texts = [f"fewest: {counts[rare]:,} {classes[rare]}"]
    else:
        texts = [f"{count:,} {name}" for name, count in zip(classes, counts, strict=True)]
    return ": ".join(filter(None, [people, ", ".join(texts)]))


def _further(rows: pd.DataFrame) -> PageTable | None:
    """Return the values of further columns of the table of images at each site; None where it has no such column."""
    usual = (*SAMPLE_COLUMNS, *SPACING, "role", "split")
    names = [str(name) for name in rows.columns if name not in usual and rows[name].notna().any()]
    if not names:
        return None
    cells = []
    for role in ("internal", "external"):
        for site, part in rows[rows["role"] == role].groupby("site", sort=False):
            shown = (PageCell(_values(part[name])) for name in names[:COLUMNS])
            cells.append([PageCell(str(site)), PageCell(role), *shown])
    caption = "Further columns of the table of images, by images of each site"
    if len(names) > COLUMNS:
        caption += f"; {len(names) - COLUMNS} more columns are left out"
    return PageTable(caption, ("Site", "Role", *names[:COLUMNS]), cells, 2 + len(names))


def _values(column: pd.Series) -> str:
    """Return median and range of numbers, or the commonest values with their counts; and how many are not stated."""
    stated = column.replace("", None).dropna()
    if stated.empty:
        return DASH
    numbers = pd.to_numeric(stated, errors="coerce")
    if is_numeric_dtype(numbers) and numbers.notna().all() and numbers.nunique() > CLASSES:
        text = f"median {numbers.median():g} ({numbers.min():g} to {numbers.max():g})"
    else:
        counts = stated.astype(str).value_counts()
        ordered = sorted(counts.items(), key=lambda entry: (-entry[1], str(entry[0])))
        text = ", ".join(f"{name} {count:,}" for name, count in ordered[:VALUES])
        if len(ordered) > VALUES:
            text += f", {len(ordered) - VALUES} others {sum(count for _, count in ordered[VALUES:]):,}"
    missing = len(column) - len(stated)
    if missing:
        text += f"; not stated {missing:,}"
    return text
