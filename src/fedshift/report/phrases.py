"""Numbers, intervals and counts as the sentences and tables of a page write them.

Everywhere on the page, `unit` is what the intervals resample, in the plural: `patients`, or `images` where patients are
unknown, or what the study says (see `nouns`).
"""

from __future__ import annotations

import math

from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.values import Value, between, inner, listed, number
from ..core import registry
from ..core.registry import Plugin
from ..core.spelling import counted as counted
from ..core.spelling import noun as noun
from ..metrics import Metric

_NBSP = "\N{NO-BREAK SPACE}"
BOTH = ("internal", "external")


def joined(*parts: str) -> str:
    """Return sentences one after another, without the empty ones."""
    return " ".join(filter(None, parts))


def verb(count: int, plural: str) -> str:
    """Return a verb in the number that belongs to a count: `take`, or `takes` for 1."""
    if count != 1:
        return plural
    return {"are": "is", "were": "was"}.get(plural, f"{plural}s")


def capital(text: str) -> str:
    """Return a text with a capital first letter; the others stay as they are."""
    return f"{text[:1].upper()}{text[1:]}"


def metric_named(name: str) -> Metric:
    """Return a metric by its name."""
    metric: Metric = registry.build("metric", name)
    return metric


def in_percent(criterion: str) -> bool:
    """Return whether values of what chooses rounds and trainings are in percent: a metric's may be, a loss never is."""
    return criterion != "loss" and metric_named(criterion).percent


def chosen_by(value: float, criterion: str) -> str:
    """Return a value of what chooses rounds and trainings: percent with one decimal, or three decimals."""
    return f"{100 * value:.1f}" if in_percent(criterion) else f"{value:.3f}"


def heading(metric: Metric) -> str:
    """Return the title of a metric with its unit, as a column or a caption names it."""
    if metric.percent:
        return f"{metric.title} (%)"
    return metric.title


def percent(metric: Metric) -> str:
    """Return the sign that follows a value of a metric; empty for a metric that is not in percent."""
    if metric.percent:
        return f"{_NBSP}%"
    return ""


def level(x: float, metric: Metric) -> str:
    """Return a value of a metric with its unit."""
    return f"{number(x, metric)}{percent(metric)}"


def points(x: float, findings: Findings, sign: bool = False) -> str:
    """Return a difference of the headline metric with its unit."""
    text = number(x, findings.headline, sign)
    if not findings.headline.percent:
        return text
    if text.strip("+−") == "1.0":
        return f"{text} point"
    return f"{text} points"


def signed(value: Value, findings: Findings) -> str:
    """Return the interval of a difference, with signs unless all of it is above zero."""
    return between(value, findings.headline, sign=not value.low > 0)


def change_interval(value: Value, findings: Findings, unit: str) -> str:
    """Return the interval of a difference, and what it resamples."""
    return f"95% interval {signed(value, findings)} {over(value, unit)}"


def level_interval(value: Value, findings: Findings, unit: str, sign: bool = False) -> str:
    """Return the interval of a level, and what it resamples; or that there is none."""
    if math.isnan(value.low):
        return "no interval"
    return f"95% interval {between(value, findings.headline, sign)} {over(value, unit)}"


def bounds(value: Value, metric: Metric, sign: bool = False, otherwise: str = "") -> str:
    """Return the interval of a value, or `otherwise` where it has none."""
    if math.isnan(value.low):
        return otherwise
    return between(value, metric, sign)


def interval(value: Value, metric: Metric, resampled: str, otherwise: str = "no interval") -> str:
    """Return `95% interval 1.0 to 2.0 over patients`, or `otherwise` where there is no interval."""
    if math.isnan(value.low):
        return otherwise
    return f"95% interval {between(value, metric)} {resampled}"


def over(value: Value, unit: str) -> str:
    """Return what an interval resamples, with numbers: `over 60 patients and 3 trainings`, or patients only."""
    patients = unit
    trainings = "trainings"
    if value.patients > 0:
        patients = f"{value.patients:.0f} {unit}"
        if value.rarer < value.patients:
            patients += f" ({value.rarer:.0f} of the rarer class)"
        trainings = f"{value.seeds} trainings"
    if value.seeds == 1:
        return f"over {patients} only: one training"
    return f"over {patients} and {trainings}"


def resampled(seeds: int, unit: str) -> str:
    """Return what the intervals of a table resample: `over patients and trainings`, or patients with one training."""
    if seeds == 1:
        return f"over {unit}"
    return f"over {unit} and trainings"


def blind(value: Value, findings: Findings) -> str:
    """Return the levels of chance and of the commonest class; empty for a metric that has none."""
    if math.isnan(value.chance):
        return ""
    chance, majority = (number(x, findings.headline) for x in (value.chance, value.majority))
    if chance == majority:
        return f"chance level {chance}"
    return f"chance level {chance}, commonest class {majority}"


def why_none(findings: Findings, condition: Condition, unit: str, roles: tuple[str, ...] = BOTH) -> str:
    """Return why the headline metric has no interval."""
    metric = findings.headline
    if not metric.has_interval:
        return f"{inner(metric)} comes without"
    reason = f"too few test {unit}"
    if metric.by_class:
        reason += " of a class"
    sites = findings.without_interval(findings.alike(condition), roles)
    if sites:
        reason += f" at {listed(sites)}"
    return reason


def first_line(plugin: Plugin) -> str:
    """Return the first line of a plug-in's docstring as plain text."""
    return plugin.summary().replace("`", "")
