"""Tables of the headline metric of groups of test images, as the page shows them."""

from __future__ import annotations

import math

import pandas as pd

from ..analysis import subgroups
from ..analysis.conditions import Condition
from ..analysis.findings import Findings
from ..analysis.results import StudyResults
from ..analysis.statistics import FEWEST
from ..analysis.table import Table
from ..analysis.values import DASH, Value, between, spread

NOT_STATED = "not stated"
"""The name of the group of images without a value in the column."""


def tables(results: StudyResults, unit: str) -> dict[str, Table]:
    """Return a table for each subgroup of the study, by its column.

    `unit` is what intervals resample: patients or images.
    """
    rows = results.subgroups
    return {name: _table(results, name, rows[rows["column"] == name], unit) for name in results.plan.study.subgroups}


def _table(results: StudyResults, column: str, rows: pd.DataFrame, unit: str) -> Table:
    findings = results.findings
    wanted = {key for condition in findings.conditions for key in shown(findings, condition)}
    keys = [key for key in findings.keys if key in wanted]
    cells = []
    for (id_, group, role), part in rows.groupby(["condition_id", "group", "role"], sort=False):
        condition, values = (
            results.names.conditions[str(id_)],
            dict(zip(part["inference_id"], _values(part), strict=True)),
        )
        counts = (f"{part[name].iloc[0]:,}" for name in ("n", "clusters"))
        few = part["clusters"].iloc[0] < FEWEST
        why = f"too few {unit} for an interval" if few else "no interval"
        scores = (_cell(findings, values.get(key, Value()), why) for key in keys)
        cells.append((str(group) or NOT_STATED, str(role), findings.full(condition), *counts, *scores))
    header = ("Group", "Role", "Condition", "Images", unit.capitalize() if unit == "patients" else "Resampled")
    return Table(_caption(results, column, unit), (*header, *map(findings.name, keys)), tuple(cells), 3)


def shown(findings: Findings, condition: Condition) -> list[str]:
    """Return the inferences of a condition that are shown: the reported one, and the one compared with it."""
    keys = findings.level_inference(condition), findings.compared_inference(condition)
    return [key for key in keys if key in condition.inferences]


def _values(rows: pd.DataFrame) -> list[Value]:
    """Return the value of each row of subgroups.csv."""
    columns = rows[["mean", "std", "seeds", "low", "high"]].itertuples(index=False, name=None)
    return [Value(mean, std, int(seeds), low, high) for mean, std, seeds, low, high in columns]


def _cell(findings: Findings, value: Value, why: str) -> str:
    """Return mean ± standard deviation with the interval, or with the reason why there is none."""
    metric = findings.headline
    if not value.known:
        return DASH
    return f"{spread(value, metric)} ({why if math.isnan(value.low) else between(value, metric)})"


def _caption(results: StudyResults, column: str, unit: str) -> str:
    metric = results.findings.headline
    numbers = {
        group.nunique()
        for data in results.plan.data
        for group in [subgroups.groups(results.plan, data, results.samples(data))[column]]
    }
    most = max(numbers, default=0)
    some = f"; the {subgroups.MOST} largest of {most} groups" if most > subgroups.MOST else ""
    return (
        f"{metric.title}{' (%)' if metric.percent else ''} of test images by {column}{some}: mean ± standard deviation "
        f"over seeds, with the 95% interval over {unit} in parentheses; none under {FEWEST} {unit}"
    )
