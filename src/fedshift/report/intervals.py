"""The intervals of the tables that are written to files, as columns of their own."""

from __future__ import annotations

from collections.abc import Mapping

from ..analysis.findings import Findings
from ..analysis.table import Table
from ..analysis.values import DASH, Value, between
from ..metrics import Metric


def overview(table: Table, findings: Findings) -> Table:
    """Return the overview with the interval of each mean over sites, and of the gap."""
    rows = [(condition, key) for condition in findings.conditions for key in condition.inferences]
    values: dict[str, list[Value]] = {
        "Internal mean": [findings.effect("level", condition, key, "internal") for condition, key in rows],
        "External mean": [findings.effect("level", condition, key, "external") for condition, key in rows],
        "Gap": [findings.gap(condition, key) for condition, key in rows],
    }
    return _widened(table, values, findings)


def sites(table: Table, findings: Findings) -> Table:
    """Return the table of sites with the interval of each value and of each gain."""
    rows = [(condition, role, site) for condition in findings.conditions for role, site in condition.sites()]
    values: dict[str, list[Value]] = {}
    for key in findings.keys:
        values[findings.name(key)] = [findings.value(condition, role, site, key) for condition, role, site in rows]
    for key in findings.compared():
        gains = [findings.gain(condition, key, role, site) for condition, role, site in rows]
        values[f"Gain, {findings.name(key)}"] = gains
    return _widened(table, values, findings)


def column(name: str) -> str:
    """Return the name of the column with the intervals of another."""
    return f"95% interval ({name})"


def text(value: Value, metric: Metric) -> str:
    """Return an interval, or a dash where there is none."""
    return between(value, metric) if value.low == value.low else DASH


def _widened(table: Table, values: Mapping[str, list[Value]], findings: Findings) -> Table:
    """Return a table in which each of the named columns is followed by one with its intervals."""
    names, metric = table.header, findings.headline
    texts = {name: [text(value, metric) for value in of] for name, of in values.items()}

    def wide(row: tuple[str, ...], added: Mapping[str, str]) -> tuple[str, ...]:
        pairs = ((cell, *([added[name]] if name in added else [])) for cell, name in zip(row, names, strict=True))
        return tuple(cell for pair in pairs for cell in pair)

    return Table(
        table.caption,
        wide(table.header, {name: column(name) for name in texts}),
        tuple(wide(row, {name: of[n] for name, of in texts.items()}) for n, row in enumerate(table.rows)),
        table.heads,
    )
