"""Who was in a study: patients by class and site, further columns, and a flow diagram from all images to the splits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.sax.saxutils import escape

import pandas as pd
from pandas.api.types import is_numeric_dtype

from ..analysis.study_results import StudyResults
from ..analysis.values import DASH, listed
from ..core.spelling import plural
from ..core.units import SPACING
from ..data.partition import Partition
from ..datasets import SAMPLE_COLUMNS
from ..figures._canvas import frame, short
from ..study.run import Run
from .cohort import SPLITS, Cohort
from .html import PageCell, PageTable, plain
from .phrases import counted

CLASSES = 4
"""With more classes than this, a cell names only the rarest."""
COLUMNS = 6
"""The most further columns of the image table that are shown."""
VALUES = 3
"""The most values of a column that a cell names, the commonest first."""


@dataclass(frozen=True)
class Who:
    """The description of one partition's images and patients.

    Attributes
    ----------
    title : name of the partition
    picture : flow diagram from all images to the splits, as SVG
    table : images and patients of each site and split
    further : values of further columns of the image table at each site; None without any
    """

    title: str
    picture: str
    table: PageTable
    further: PageTable | None


def sections(results: StudyResults, people: Iterable[Cohort]) -> list[Who]:
    """Return the description of images and patients for each partition in `people`."""
    runs = {run.partition_id: run for run in results.plan.runs.values()}
    cards = dict(zip(results.plan.data, results.cards, strict=True))
    return [_who(results, cohort, runs[cohort.partition_id], cards, n) for n, cohort in enumerate(people)]


def _who(results: StudyResults, cohort: Cohort, run: Run, cards: dict[str, dict[str, Any]], number: int) -> Who:
    samples = results.samples(run.data.id)
    # A column of the user's table may have the name of one that the partition adds.
    further = samples[["sample", *samples.columns.difference(cohort.assigned.columns, sort=False)]]
    rows = cohort.assigned.merge(further, on="sample", how="left")
    way = _flow(run.partition, samples, rows, cards[run.data.id], cohort)
    # Classes of masks are those of pixels: images have none.
    classes = run.data.dataset.classes if run.data.task.has_probabilities else ()
    table = _with_events(cohort, rows, classes)
    columns = _further(rows, plural(cohort.sample))
    if number:
        # a screen reader tells tables apart by their names
        table = _named(table, cohort)
        columns = columns and _named(columns, cohort)
    return Who(cohort.title, flow_svg(f"flow-{number}", way), table, columns)


def _named(table: PageTable, cohort: Cohort) -> PageTable:
    """Return a table with the partition's name added to its caption."""
    return replace(table, caption=f"{table.caption} ({cohort.title} held out)")


def _flow(
    partition: Partition, samples: pd.DataFrame, rows: pd.DataFrame, card: dict[str, Any], cohort: Cohort
) -> Flow:
    """Return the flow of images into the splits, with the reasons why images are left out.

    `samples` are all images, `rows` those that are assigned to a split, and `card` is the data card. Only reasons that
    follow from the records are named. `cohort` has the study's nouns for patients and images.
    """
    unreadable = card.get("unreadable") or 0
    left = samples[~samples["sample"].isin(rows["sample"])]
    used = left["site"].isin([*partition.sources, *partition.external])
    reasons = {
        "could not be read": unreadable,
        "of sites that take no part": int((~used).sum()),
        _left_out_by(partition, plural(cohort.sample)): int(used.sum()),
    }
    sides = [
        FlowSide(
            title,
            len(part),
            _people(part, cohort.unit),
            [
                (site, [int((part.loc[part["site"] == site, "split"] == split).sum()) for split in splits])
                for site in sites
                if (part["site"] == site).any()
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
    left_out = [f"{images:,} {words}" for words, images in reasons.items() if images]
    return Flow(len(samples) + unreadable, _people(samples, cohort.unit), left_out, sides, cohort.sample)


def _left_out_by(partition: Partition, samples: str) -> str:
    """Return the settings that leave out images of participating sites, as text; `samples` is the noun for images."""
    settings = {
        "the cut to the smallest site": partition.truncate,
        f"the limit of {samples}": partition.limit.train is not None or partition.limit.val is not None,
        "parts of a cut that no client has": partition.cut is not None and partition.cut.clients < partition.cut.parts,
    }
    by = [words for words, there in settings.items() if there]
    return f"left out by {listed(by)}" if by else "otherwise left out"


def _people(rows: pd.DataFrame, unit: str) -> str:
    """Return the number of patients in the rows as text, with `unit` as the noun; '' if patients are unknown."""
    number = int(rows["patient"].nunique()) if "patient" in rows else 0
    return counted(number, unit) if number else ""


def _with_events(cohort: Cohort, rows: pd.DataFrame, classes: tuple[str, ...]) -> PageTable:
    """Return the cohort's table with patients in small print below the images of each split.

    They are counted by class if images have one; `classes` are the names of these. `rows` are the samples with their
    splits.
    """
    table = plain(cohort.table)
    unit = cohort.unit if cohort.patients else ""
    units = plural(unit or cohort.sample)
    filled = []
    for cells in table.rows:
        site, role = cells[0].text, cells[1].text
        there = rows[(rows["site"] == site) & (rows["role"] == role)]
        below = [_events(there[there["split"] == split], unit, classes) for split in SPLITS]
        splits = [replace(cell, below=text) for cell, text in zip(cells[-len(SPLITS) :], below, strict=True)]
        filled.append([*cells[: -len(SPLITS)], *splits])
    caption = table.caption
    if classes:
        caption += f"; below, {units} of each class"
    elif cohort.patients:
        caption += f"; below, {units}"
    return replace(table, caption=caption, rows=filled)


def _events(rows: pd.DataFrame, unit: str, classes: tuple[str, ...]) -> str:
    """Return how many patients have each class as text; samples instead of patients if `unit` is empty.

    `rows` are samples, and `classes` the class names.
    """
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


def _further(rows: pd.DataFrame, samples: str) -> PageTable | None:
    """Return a table of the values of further columns of the image table at each site; None if there are none.

    `samples` is the plural noun for images.
    """
    usual = (*SAMPLE_COLUMNS, *SPACING, "role", "split")
    names = [str(name) for name in rows.columns if name not in usual and rows[name].notna().any()]
    if not names:
        return None
    cells = []
    for role in ("internal", "external"):
        for site, part in rows[rows["role"] == role].groupby("site", sort=False):
            shown = (PageCell(_values(part[name])) for name in names[:COLUMNS])
            cells.append([PageCell(str(site)), PageCell(role), *shown])
    caption = f"Further columns of the table of {samples}, by {samples} of each site"
    if len(names) > COLUMNS:
        caption += f"; left out: {counted(len(names) - COLUMNS, 'more column')}"
    return PageTable(caption, ("Site", "Role", *names[:COLUMNS]), cells, 2 + len(names[:COLUMNS]))


def _values(column: pd.Series) -> str:
    """Summarise a column: median and range of numbers, or counts of the commonest values, and missing values."""
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
            rest = sum(count for _, count in ordered[VALUES:])
            text += f", {counted(len(ordered) - VALUES, 'more value')} {rest:,}"
    if missing := len(column) - len(stated):
        text += f"; not stated {missing:,}"
    return text


WIDTH = 360.0
"""Width of the diagram in pixels, which fits a telephone without shrinking its letters."""
MOST = 24
"""The most sites of one side that the diagram lists; the table has all."""
_INSIDE, _GAP, _LINE, _PAD = 210.0, 8.0, 15.0, 8.0
_LETTERS = 14
"""The most characters of a site's name in the diagram."""


@dataclass(frozen=True)
class FlowSide:
    """The internal or the external sites in the flow diagram.

    Attributes
    ----------
    title : At home or Outside
    images, people : number of images, and of patients as text (empty if unknown)
    sites : pairs of a site and its number of images in each of `splits`
    splits : names of the splits
    """

    title: str
    images: int
    people: str
    sites: list[tuple[str, list[int]]]
    splits: tuple[str, ...]

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The lines to draw: each site with its numbers of images by split, and how many sites are left out."""
        shown = [(short(site, _LETTERS), " / ".join(f"{n:,}" for n in counts)) for site, counts in self.sites[:MOST]]
        more = len(self.sites) - MOST
        if more > 0:
            shown.append((counted(more, "more site"), ""))
        return shown


@dataclass(frozen=True)
class Flow:
    """The content of the flow diagram, from all images of the table to the splits of each site.

    Attributes
    ----------
    images, people : number of images, and of patients as text (empty if unknown)
    left_out : reasons why images are left out, with their numbers
    sides : internal and external sites
    sample : the dataset's noun for an image
    """

    images: int
    people: str
    left_out: list[str]
    sides: list[FlowSide]
    sample: str = "image"


def flow_in_words(flow: Flow) -> str:
    """Return the content of the flow diagram as text, for readers who cannot see it."""
    parts = [f"Flow of {plural(flow.sample)}. Table: {', '.join(_totals(flow, flow.sample))}."]
    parts.append(f"Left out: {', '.join(flow.left_out) or 'none'}.")
    for side in flow.sides:
        sites = "; ".join(
            f"{site} {', '.join(f'{split} {n:,}' for split, n in zip(side.splits, counts, strict=True))}"
            for site, counts in side.sites
        )
        parts.append(f"{side.title}: {', '.join(_totals(side, flow.sample))} ({sites}).")
    return " ".join(parts)


def flow_svg(name: str, flow: Flow) -> str:
    """Return the flow diagram as SVG. `name` is the prefix of its ids, which must be unique on a page."""
    samples = plural(flow.sample)
    body = list(_box(0, 0, WIDTH, [f"Table of {samples}", ", ".join(_totals(flow, flow.sample))]))
    top = 2 * _LINE + _PAD
    lines = ["Left out", *(short(text, 46) for text in flow.left_out or ["none"])]
    x, bottom = _INSIDE / 2 - 20, top + len(lines) * _LINE + 4 * _PAD
    body.append(_line(f"M{x:g} {top:g}V{bottom - 1:g}m-3 -5l3 5l3 -5"))
    body.append(_line(f"M{x:g} {top + _PAD + _LINE:g}H{x + 23:g}m-5 -3l5 3l-5 3"))
    body += _box(_INSIDE / 2 + 4, top + _PAD, WIDTH - _INSIDE / 2 - 4, lines, dashed=True)
    top = bottom
    heights = []
    x = 0.0
    for n, side in enumerate(flow.sides):
        width = (_INSIDE, WIDTH - _INSIDE - _GAP)[n] if len(flow.sides) > 1 else WIDTH
        heads = [side.title, *_totals(side, flow.sample), f"{' / '.join(side.splits)} {samples}"]
        body += _box(x, top, width, heads, side.lines)
        heights.append((len(heads) + len(side.lines)) * _LINE + _PAD)
        x += width + _GAP
    return frame(name, flow_in_words(flow), (WIDTH, top + max(heights, default=0.0) + 2), "\n".join(body))


def _totals(part: Flow | FlowSide, sample: str) -> list[str]:
    """Return the number of images, and that of patients if known, as texts; `sample` is the noun for an image."""
    return [*filter(None, (counted(part.images, sample), part.people))]


def _box(
    x: float, y: float, width: float, heads: list[str], lines: Sequence[tuple[str, str]] = (), dashed: bool = False
) -> Iterator[str]:
    """Yield SVG of a box at x and y: left-aligned `heads`, the first in bold, then pairs of left and right texts.

    `lines` are these pairs, and `dashed` draws a dashed border.
    """
    height = (len(heads) + len(lines)) * _LINE + _PAD
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    yield (
        f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" width="{width - 1:g}" height="{height:g}" rx="4" fill="none" '
        f'stroke="currentColor" stroke-opacity="0.5"{dashes}/>'
    )
    for n, text in enumerate(heads):
        weight = ' font-weight="600"' if n == 0 else ""
        yield _text(x + _PAD, y + (n + 1) * _LINE, text, weight)
    for n, (left, right) in enumerate(lines, len(heads)):
        yield _text(x + _PAD, y + (n + 1) * _LINE, left)
        yield _text(x + width - _PAD, y + (n + 1) * _LINE, right, ' text-anchor="end"')


def _text(x: float, y: float, text: str, look: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="10.5" fill="currentColor"{look}>{escape(text)}</text>'


def _line(path: str) -> str:
    """Return SVG of an arrow along the given path data."""
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.7"/>'
