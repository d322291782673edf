"""The control without a network, where a page shows it: in its tables, and in a sentence of the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ..analysis.conditions import Condition
from ..analysis.controls import Controls
from ..analysis.findings import Findings
from ..analysis.table import Table
from ..analysis.values import DASH, Value, between, inner, number
from . import intervals

NAME = "Control: colour and texture only, no network"
SHORT = "Control, no network"
_NBSP = "\N{NO-BREAK SPACE}"


def in_overview(table: Table, controls: Controls) -> Table:
    """Return the overview with a row for the control of each partition; columns that it has nothing for have a dash."""
    rows = []
    for condition in _partitions(controls):
        cells = dict(_overview(controls, condition))
        rows.append(tuple(cells.get(name, DASH) for name in table.header))
    return replace(table, rows=(*table.rows, *rows))


def _partitions(controls: Controls) -> list[Condition]:
    """Return the first condition of each partition that has a control."""
    first: dict[str, Condition] = {}
    for condition in controls.findings.conditions:
        first.setdefault(condition.run.partition_id, condition)
    return [one for one in first.values() if any(_level(controls, one, *place).known for place in one.sites())]


def _level(controls: Controls, condition: Condition, role: str, site: str) -> Value:
    return controls.level(condition.run.partition_id, role, site)


def _overview(controls: Controls, condition: Condition) -> Iterator[tuple[str, str]]:
    """Yield the cells of a control by the names of the columns of the overview."""
    findings, key = controls.findings, condition.run.partition_id
    inside, outside = (controls.level(key, role) for role in ("internal", "external"))
    yield from (("Condition", NAME), ("Held out", condition.held_out))
    gap = findings.better(controls.gap(key))
    for name, value in (("Internal mean", inside), ("External mean", outside), ("Gap", gap)):
        yield name, number(value.mean, findings.headline, sign=value is gap)
        yield intervals.column(name), intervals.text(value, findings.headline)
    known = {site: findings.better(_level(controls, condition, r, site)).mean for r, site in condition.sites()}
    external = {site: known[site] for site in condition.partition.external if not math.isnan(known[site])}
    if external:
        worst = min(external, key=external.__getitem__)
        value = _level(controls, condition, "external", worst)
        yield "Worst external site", f"{worst} ({number(value.mean, findings.headline)})"


def in_sites(table: Table, controls: Controls, condition: Condition | None = None) -> Table:
    """Return the table of the sites of one condition, or of all, with a column for the control where there is one.

    If all conditions are in it, which is the table that is written to files, another column has its intervals.
    """
    conditions = [condition] if condition else controls.findings.conditions
    values = [_level(controls, one, *place) for one in conditions for place in one.sites()]
    if not any(value.known for value in values):
        return table
    metric, names = controls.findings.headline, (SHORT, *(() if condition else (intervals.column(SHORT),)))
    cells = [(number(value.mean, metric), intervals.text(value, metric))[: len(names)] for value in values]
    rows = tuple((*row, *added) for row, added in zip(table.rows, cells, strict=True))
    return replace(table, header=(*table.header, *names), rows=rows)


def below(controls: Controls, condition: Condition) -> list[str]:
    """Return the interval of the control at each site of a condition, empty where there is none."""
    values = [_level(controls, condition, *place) for place in condition.sites()]
    if not any(value.known for value in values):
        return []
    return [between(v, controls.findings.headline) if v.low == v.low else "" for v in values]


def sentence(controls: Controls, unit: str = "patients") -> str:
    """Return that no condition is surely better outside than the control; empty where one is, or there is no control.

    A condition is surely better if the 95% interval of its paired difference from the control is above zero, with any
    inference that uses no labels. `unit` is what the intervals resample: patients, or images.
    """
    compared = list(_compared(controls))
    if not compared or any(difference.low > 0 for _, _, difference in compared):
        return ""
    findings = controls.findings
    seen = "colour and texture only, without a network"
    if all(math.isnan(difference.low) for _, _, difference in compared):
        return (
            f"Nobody can tell whether any condition is better at external sites than a control that sees {seen}: "
            "no interval can be given."
        )
    condition, key, _ = max(compared, key=lambda one: one[2].mean)
    averaged = findings.averaged
    level = controls.level("*" if averaged else condition.run.partition_id, "external")
    best = findings.effect("level", condition, key, "external", across=averaged)
    percent = f"{_NBSP}%" if findings.headline.percent else ""
    interval = f" (95% interval {between(level, findings.headline)} over {unit})" if level.low == level.low else ""
    return (
        f"No condition is surely better at external sites than a control that sees {seen}. Its "
        f"{inner(findings.headline)} there is {number(level.mean, findings.headline)}{percent}{interval}; the best "
        f"condition, {condition.full_title(findings.several and not averaged)} with {findings.name(key)}, has "
        f"{number(best.mean, findings.headline)}{percent}."
    )


def _compared(controls: Controls) -> Iterator[tuple[Condition, str, Value]]:
    """Yield each condition and inference with its difference from the control; a family once, where averaged."""
    findings: Findings = controls.findings
    families = set()
    for condition in findings.conditions:
        if findings.averaged and condition.family in families:
            continue
        families.add(condition.family)
        for key in condition.inferences:
            difference = controls.difference(condition.family if findings.averaged else condition.id, key)
            if difference.known:
                yield condition, key, difference
