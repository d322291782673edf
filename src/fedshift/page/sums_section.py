"""The section on real sites that sent sums over groups of patients in the place of rows of single images."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..analysis.estimates import FEWEST
from ..analysis.score import metrics
from ..analysis.summed import Level
from ..analysis.values import inner, listed, spread
from ..jobs.run_files import LEAST_PATIENTS
from .html import Block, Light, PageCell, PageTable, Section
from .phrases import bounds, heading, resampled, verb
from .study_report import StudyReport

GROUPS = (
    f"The site drew the groups at random, each of at least {LEAST_PATIENTS} {{unit}}, and an interval takes each group "
    "as one: it is mostly wider than one over {unit}."
)
NONE = "No interval: {cells}, with fewer than {fewest} groups, or fewer than {fewest} that have images of a class."
WITHOUT = (
    "Also missing are differences between conditions and between inferences, and all that asks for single images: "
    "thresholds, calibration, prediction sets, subgroups and examples."
)


def without(sites: Sequence[str]) -> str:
    """Return the caveat of a page whose other sections lack some sites."""
    names = listed([*sites])
    return (
        f"{names} sent sums over groups of patients, and no rows of single images: but for the section Sites that sent "
        f"sums, all scores, means and differences of this page are without {names}."
    )


def light(report: StudyReport) -> list[Light]:
    """Return what the first screen says of sites that sent sums; nothing where none did."""
    if not report.summed:
        return []
    said = f"{listed(report.sites_summed)}: in no number here, but in a section of their own"
    return [Light("Sites that sent sums", "suspect", said, "sums")]


def section(report: StudyReport) -> Section | None:
    """Return the section of the page; None for a study without sums."""
    if not report.summed:
        return None
    found, unit = report.summed, report.unit
    blocks: list[Block] = [without(report.sites_summed), GROUPS.format(unit=unit), *_missing(report)]
    for condition in dict.fromkeys(level.condition for level in found):
        levels = [level for level in found if level.condition is condition]
        header = ("Site", "Inference", "Images", unit.capitalize(), "Groups", *map(heading, levels[0].values))
        caption = (
            f"{report.findings.full(condition)}. Mean ± standard deviation over seeds; below, the 95% interval "
            f"{resampled(len(condition.seeds), f'groups of {unit}')}"
        )
        blocks.append(PageTable(caption, header, [_cells(report, level) for level in levels], 2))
    return Section("sums", "Sites that sent sums", blocks, short="Sites that sent sums")


def _cells(report: StudyReport, level: Level) -> list[PageCell]:
    counts = (f"{count:,}" for count in (level.images, level.patients, level.groups))
    scores = [
        PageCell(spread(value, metric), bounds(value, metric, otherwise="no interval" if value.known else ""))
        for metric, value in level.values.items()
    ]
    return [*map(PageCell, (level.site, report.findings.name(level.inference), *counts)), *scores]


def _missing(report: StudyReport) -> list[str]:
    """Return which scores and which intervals are missing at the sites that sent sums."""
    lost = [inner(metric) for metric in metrics(report.plan) if not metric.decides]
    lines = []
    if lost:
        needs = f"{verb(len(lost), 'need')} probabilities"
        lines.append(f"Missing at {listed(report.sites_summed)}: {listed(lost)}, which {needs}, with the intervals.")
    cells = {
        f"{inner(metric)} at {level.site}": None
        for level in report.summed
        for metric, value in level.values.items()
        if value.known and math.isnan(value.low)
    }
    if cells:
        lines.append(NONE.format(cells=listed([*cells]), fewest=FEWEST))
    return [*lines, WITHOUT]
