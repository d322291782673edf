"""Conclusions from external sites about a hospital that nobody has tested."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..analysis import comparisons, new_site
from ..analysis.comparisons import Entry
from ..analysis.findings import Findings
from ..analysis.table import Table
from ..analysis.values import DASH, Value, inner, listed, number
from .comparison import title

PREDICTED = 5
"""With fewer external sites, an interval for a new one stands in the details."""
PLAIN = 10
"""From so many external sites on, the interval stands without a caveat about their number."""
SAME = (
    "This holds for a hospital that is drawn like the tested ones. Public data come from hospitals that chose to share."
)


@dataclass(frozen=True)
class NewHospital:
    """The section about a new hospital; `details` is folded away, with `why` above it."""

    sentences: list[str]
    table: Table
    details: Table | None = None
    why: str = ""


def section(findings: Findings, unit: str = "patients") -> NewHospital | None:
    """Return what the external sites say about a new one; None for a study without scores at any."""
    known = {one: _values(findings, one) for one in comparisons.entries(findings.names)}
    known = {one: values for one, values in known.items() if values}
    if not known:
        return None
    lead = max(known, key=lambda one: len(known[one]))
    sites = len(known[lead])
    sentences = [*_sentences(findings, known[lead]), *_caveats(findings, sites)]
    plain = _table(findings, known, unit, interval=sites >= PREDICTED)
    if sites not in (3, 4):
        return NewHospital(sentences, plain)
    why = f"Too few: {sites} sites hardly say how much hospitals differ, and a prediction interval from them is vague."
    return NewHospital(sentences, plain, _table(findings, known, unit, interval=True), why)


def _values(findings: Findings, entry: Entry) -> dict[str, Value]:
    """Return the headline metric at each external site where it is known."""
    places = entry.sites("external")
    values = {site: findings.value(one, "external", site, entry.inference) for one, site in places}
    return {site: value for site, value in values.items() if value.known}


def _sentences(findings: Findings, values: dict[str, Value]) -> list[str]:
    """Return what so many sites can say about the next one."""
    metric, count = findings.headline, len(values)
    shown = [f"{number(value.mean, metric)} at {site}" for site, value in values.items()]
    if count == 1:
        return [f"One external site was tested ({shown[0]}). It says nothing about any other hospital."]
    if count == 2:
        return [
            f"Two external sites were tested: {listed(shown)}. Two numbers and the range between them are all that is "
            "known: they do not say how a third hospital would do."
        ]
    worst = "lowest" if metric.higher_is_better else "highest"
    beyond = "below" if metric.higher_is_better else "above"
    chance = 100 * new_site.below_the_worst(count)
    return [
        f"If the next hospital is drawn like these {count}, its {inner(metric)} is {beyond} the {worst} of them with a "
        f"probability of 1 in {count + 1} ({chance:.0f} %)."
    ]


def _caveats(findings: Findings, sites: int) -> list[str]:
    """Return what a reader must not forget of a prediction."""
    lines = [SAME] if sites > 2 else []
    if PREDICTED <= sites < PLAIN:
        lines.append(f"From {sites} sites, a prediction interval is itself uncertain, and tends to be too narrow.")
    if sites > 1 and findings.averaged:
        lines.append("Each site was held out from another training: these share sites, so their results are related.")
    return lines


def _table(findings: Findings, known: dict[Entry, dict[str, Value]], unit: str, interval: bool) -> Table:
    """Return the range over external sites of each condition, with the prediction interval if `interval` is set."""
    metric, rows = findings.headline, []
    for entry, values in known.items():
        means = [value.mean for value in values.values()]
        low, high = (f"{number(x, metric)} ({_site(values, x)})" for x in (min(means), max(means)))
        cells = (title(findings, entry), str(len(values)), low, high)
        rows.append((*cells, *((_predicted(findings, values),) if interval else ())))
    lacking = interval and any(row[-1] == DASH for row in rows)
    header = ("Condition", "External sites", "Lowest", "Highest", *(("95% prediction interval",) if interval else ()))
    caption = f"{metric.title}{' (%)' if metric.percent else ''} over external sites, mean over seeds"
    if interval:
        scale = ", made on the logit scale" if metric.percent or metric.logit else ""
        caption += (
            f". Prediction interval: where the true value of a new hospital would lie, over hospitals and {unit}, with "
            f"these trainings (random effects, t with two degrees of freedom less than sites{scale})"
        )
        caption += "; a dash where a site has no interval of its own, or a value of 0 or 1" if lacking else ""
    return Table(caption, header, tuple(rows), 1)


def _site(values: dict[str, Value], mean: float) -> str:
    return next(site for site, value in values.items() if value.mean == mean)


def _predicted(findings: Findings, values: dict[str, Value]) -> str:
    metric = findings.headline
    estimates, se = (np.array([getattr(value, name) for value in values.values()]) for name in ("mean", "se"))
    low, high = new_site.predicted(estimates, se, metric.percent or metric.logit)
    return DASH if math.isnan(low) else f"{number(low, metric)} to {number(high, metric)}"
