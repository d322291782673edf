"""Conclusions from external sites about a hospital that nobody has tested."""

from __future__ import annotations

import math

import numpy as np

from ..analysis import comparisons, new_site
from ..analysis.comparisons import Entry
from ..analysis.findings import Findings
from ..analysis.table import Table
from ..analysis.values import DASH, Value, inner, listed, number
from .comparison_section import title
from .html import Fold, Section, plain
from .phrases import heading

PREDICTED = 5
"""With fewer external sites, an interval for a new one stands in the details."""
PLAIN = 10
"""From so many external sites on, the interval stands without a caveat about their number."""
SAME = (
    "This holds for a hospital that is drawn like the tested ones. Public data come from hospitals that chose to share."
)
INTERVAL = "95% prediction interval"


def section(findings: Findings, unit: str = "patients") -> Section | None:
    """Return what the external sites say about a new one; None for a study without scores at any."""
    values = {entry: _values(findings, entry) for entry in comparisons.entries(findings.names)}
    values = {entry: at_sites for entry, at_sites in values.items() if at_sites}
    if not values:
        return None
    lead = max(values.values(), key=len)
    sites = len(lead)
    sentences = [*_sentences(findings, lead), *_caveats(findings, sites)]
    table = plain(_table(findings, values, unit, interval=sites >= PREDICTED))
    folds = []
    if sites in (3, 4):
        why = (
            f"Too few: {sites} sites hardly say how much hospitals differ, and a prediction interval from them is "
            "vague."
        )
        details = plain(_table(findings, values, unit, interval=True))
        folds.append(Fold("Prediction interval: too few sites", [why, details]))
    return Section("new-hospital", "Another hospital", [*sentences, table, *folds], short="Another hospital")


def _values(findings: Findings, entry: Entry) -> dict[str, Value]:
    """Return the headline metric at each external site where it is known."""
    places = entry.sites("external")
    values = {site: findings.value(member, "external", site, entry.inference) for member, site in places}
    return {site: value for site, value in values.items() if value.known}


def _sentences(findings: Findings, values: dict[str, Value]) -> list[str]:
    """Return what so many sites can say about the next one."""
    metric = findings.headline
    count = len(values)
    shown = listed([f"{number(value.mean, metric)} at {site}" for site, value in values.items()])
    if count == 1:
        return [f"One external site was tested ({shown}). It says nothing about any other hospital."]
    if count == 2:
        return [
            f"Two external sites were tested: {shown}. Two numbers and the range between them are all that is "
            "known: they do not say how a third hospital would do."
        ]
    beyond, worst = {True: ("below", "lowest"), False: ("above", "highest")}[metric.higher_is_better]
    chance = 100 * new_site.below_the_worst(count)
    return [
        f"If the next hospital is drawn like these {count}, its {inner(metric)} is {beyond} the {worst} of them with a "
        f"probability of 1 in {count + 1} ({chance:.0f} %)."
    ]


def _caveats(findings: Findings, sites: int) -> list[str]:
    """Return what a reader must not forget of a prediction."""
    lines = []
    if sites > 2:
        lines.append(SAME)
    if PREDICTED <= sites < PLAIN:
        lines.append(f"From {sites} sites, a prediction interval is itself uncertain, and tends to be too narrow.")
    if sites > 1 and findings.averaged:
        lines.append("Each site was held out from another training: these share sites, so their results are related.")
    return lines


def _table(findings: Findings, values: dict[Entry, dict[str, Value]], unit: str, interval: bool) -> Table:
    """Return the range over external sites of each condition, with the prediction interval if `interval` is set."""
    metric = findings.headline
    rows = []
    header = ["Condition", "External sites", "Lowest", "Highest"]
    caption = f"{heading(metric)} over external sites, mean over seeds"
    for entry, at_sites in values.items():
        means = {site: value.mean for site, value in at_sites.items()}
        ends = (min(means, key=means.__getitem__), max(means, key=means.__getitem__))
        rows.append([title(findings, entry), str(len(means))])
        rows[-1] += [f"{number(means[site], metric)} ({site})" for site in ends]
    if interval:
        header.append(INTERVAL)
        for row, at_sites in zip(rows, values.values(), strict=True):
            row.append(_predicted(findings, at_sites))
        scale = ", made on the logit scale" if metric.percent or metric.logit else ""
        caption += (
            f". Prediction interval: where the true value of a new hospital would lie, over hospitals and {unit}, with "
            f"these trainings (random effects, t with two degrees of freedom less than sites{scale})"
        )
        if any(row[-1] == DASH for row in rows):
            caption += "; a dash where a site does not have its own interval, or a value of 0 or 1"
    return Table(caption, tuple(header), tuple(map(tuple, rows)), 1)


def _predicted(findings: Findings, values: dict[str, Value]) -> str:
    metric = findings.headline
    estimates, se = (np.array([getattr(value, name) for value in values.values()]) for name in ("mean", "se"))
    low, high = new_site.predicted(estimates, se, metric.percent or metric.logit)
    if math.isnan(low):
        return DASH
    return f"{number(low, metric)} to {number(high, metric)}"
