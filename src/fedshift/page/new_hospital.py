"""Conclusions from external sites about a hospital that nobody has tested."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..analysis import comparisons, multiple
from ..analysis.comparisons import Entry
from ..analysis.findings import Findings
from ..analysis.values import DASH, Table, Value, inner, listed, number
from ..core.spelling import plural
from .comparison_section import title
from .html import Fold, Section, plain
from .phrases import HOSPITALS, Nouns, heading

PREDICTED = 5
"""With fewer external sites, an interval for a new one stands in the details."""
PLAIN = 10
"""From so many external sites on, the interval stands without a caveat about their number."""
INTERVAL = "95% prediction interval"


def section(findings: Findings, nouns: Nouns = HOSPITALS) -> Section | None:
    """Return what the external sites say about a new one; None for a study without scores at any that counts.

    Of a hospital that trained no scanner counts, and no collection of several hospitals: neither is a new hospital.
    """
    values = {entry: _values(findings, entry, nouns) for entry in comparisons.entries(findings.names)}
    values = {entry: at_sites for entry, at_sites in values.items() if at_sites}
    if not values:
        return None
    lead = max(values.values(), key=len)
    sites = len(lead)
    sentences = [*_sentences(findings, lead, nouns), *_left_out(findings, lead, nouns)]
    sentences += _caveats(findings, sites, nouns)
    table = plain(_table(findings, values, nouns, interval=sites >= PREDICTED))
    folds = []
    if sites in (3, 4):
        why = (
            f"Too few: {sites} sites hardly say how much {plural(nouns.other)} differ, and a prediction interval from "
            "them is vague."
        )
        details = plain(_table(findings, values, nouns, interval=True))
        folds.append(Fold("Prediction interval: too few sites", [why, details]))
    title = f"Another {nouns.other}"
    return Section("new-hospital", title, [*sentences, table, *folds], short=title)


def _values(findings: Findings, entry: Entry, nouns: Nouns) -> dict[str, Value]:
    """Return the headline metric at each external site that counts, where it is known."""
    # the next site could be one like this: of that kind, and of a hospital that did not train
    values = {
        site: findings.value(member, "external", site, entry.inference)
        for member, site in entry.sites("external")
        if nouns.kind(site) == nouns.other and not nouns.relatives(site, member.partition)
    }
    return {site: value for site, value in values.items() if value.known}


def _left_out(findings: Findings, values: dict[str, Value], nouns: Nouns) -> Iterator[str]:
    """Yield which external sites do not count, and why."""
    outside = nouns.outside(condition.partition for condition in findings.conditions)
    others = [site for site in outside.apart if site not in values and nouns.kind(site) != nouns.other]
    reasons = [f"{site} ({nouns.kind(site)})" for site in others]
    if outside.shared:
        reasons.append(outside.shared)
    if reasons:
        yield f"Not counted here: {'; '.join(reasons)}."


def _sentences(findings: Findings, values: dict[str, Value], nouns: Nouns) -> list[str]:
    """Return what so many sites can say about the next one."""
    metric = findings.headline
    count = len(values)
    other = nouns.other
    # where some sites do not count, those that do are named by their kind
    here = other if nouns.place != other else "site"
    shown = listed([f"{number(value.mean, metric)} at {site}" for site, value in values.items()])
    if count == 1:
        return [f"One external {here} was tested ({shown}). It says nothing about any other {other}."]
    if count == 2:
        return [
            f"Two external {plural(here)} were tested: {shown}. Two numbers and the range between them are all that is "
            f"known: they do not say how a third {other} would do."
        ]
    beyond, worst = {True: ("below", "lowest"), False: ("above", "highest")}[metric.higher_is_better]
    chance = 100 * multiple.below_the_worst(count)
    return [
        f"If the next {other} is drawn like these {count}, its {inner(metric)} is {beyond} the {worst} of them with a "
        f"probability of 1 in {count + 1} ({chance:.0f} %)."
    ]


def _caveats(findings: Findings, sites: int, nouns: Nouns) -> list[str]:
    """Return what a reader must not forget of a prediction."""
    lines = []
    if sites > 2:
        lines.append(f"This holds for a {nouns.other} that is drawn like the tested ones.")
        if nouns.other == "hospital":
            lines.append("Public data come from hospitals that chose to share.")
    if PREDICTED <= sites < PLAIN:
        lines.append(f"From {sites} sites, a prediction interval is itself uncertain, and tends to be too narrow.")
    if sites > 1 and findings.averaged:
        lines.append("Each site was held out from another training: these share sites, so their results are related.")
    return lines


def _table(findings: Findings, values: dict[Entry, dict[str, Value]], nouns: Nouns, interval: bool) -> Table:
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
            f". Prediction interval: where the true value of a new {nouns.other} would lie, over {plural(nouns.other)} "
            f"and {nouns.units}, with these trainings (random effects, t with two degrees of freedom less "
            f"than sites{scale})"
        )
        if any(row[-1] == DASH for row in rows):
            caption += "; a dash where a site does not have its own interval, or a value of 0 or 1"
    return Table(caption, tuple(header), tuple(map(tuple, rows)), 1)


def _predicted(findings: Findings, values: dict[str, Value]) -> str:
    metric = findings.headline
    estimates, se = (np.array([getattr(value, name) for value in values.values()]) for name in ("mean", "se"))
    low, high = multiple.predicted(estimates, se, metric.percent or metric.logit)
    return DASH if math.isnan(low) else f"{number(low, metric)} to {number(high, metric)}"
