"""Tables of the headline metric of groups of test images, as the page shows them."""

from __future__ import annotations

from collections import defaultdict

from ..analysis import subgroups
from ..analysis.conditions import Condition
from ..analysis.estimates import FEWEST
from ..analysis.findings import Findings
from ..analysis.results import StudyResults
from ..analysis.table import Table
from ..analysis.values import DASH, Value, spread
from .phrases import bounds, heading, resampled

NOT_STATED = "not stated"
"""The name of the group of images without a value in the column."""
MEANING = (
    "Exploratory. The test images of all sites of a role are taken together and divided by a column of their table, so "
    "that groups may also differ because their sites do. Each interval is about one group alone. Of many groups, some "
    "look better or worse by chance."
)


def tables(results: StudyResults, unit: str) -> dict[str, Table]:
    """Return a table for each subgroup of the study, by its column."""
    return {name: _table(results, name, unit) for name in results.plan.study.subgroups}


def _table(results: StudyResults, column: str, unit: str) -> Table:
    findings = results.findings
    metric = results.findings.headline
    wanted = {key for condition in findings.conditions for key in shown(findings, condition)}
    keys = [key for key in findings.keys if key in wanted]
    rows: dict[tuple[str, str, str], dict[str, Value]] = defaultdict(dict)
    for about, value in findings.numbers.of("subgroup").items():
        if about.column == column:
            rows[about.condition_id, about.group, about.role][about.inference_id] = value
    cells = []
    for (id_, group, role), values in rows.items():
        first = next(iter(values.values()))
        why = "no interval"
        if first.patients < FEWEST:
            why = f"too few {unit} for an interval"
        row = [group or NOT_STATED, role, findings.full(results.names.conditions[id_])]
        row += [f"{first.n:,}", f"{first.patients:,}"]
        for key in keys:
            value = values.get(key, Value())
            text = f"{spread(value, metric)} ({bounds(value, metric, otherwise=why)})"
            row.append(text if value.known else DASH)
        cells.append(tuple(row))
    # where no patient is known, source images may be resampled in the place of images
    column_of_units = "Resampled" if unit == "images" else unit.capitalize()
    header = ("Group", "Role", "Condition", "Images", column_of_units, *map(findings.name, keys))
    trainings = [value.seeds for values in rows.values() for value in values.values()]
    over = resampled(max(trainings, default=1), unit)
    return Table(_caption(results, column, unit, over), header, tuple(cells), 3)


def shown(findings: Findings, condition: Condition) -> list[str]:
    """Return the inferences of a condition that are shown: the reported one, and the one compared with it."""
    keys = findings.level_inference(condition), findings.compared_inference(condition)
    return [key for key in keys if key in condition.inferences]


def _caption(results: StudyResults, column: str, unit: str, over: str) -> str:
    groups = [subgroups.groups(results.plan, data, results.samples(data))[column] for data in results.plan.data]
    most = max((group.nunique() for group in groups), default=0)
    largest = ""
    if most > subgroups.MOST:
        largest = f"; the {subgroups.MOST} largest of {most} groups"
    return (
        f"{heading(results.findings.headline)} of test images by {column}{largest}: mean ± standard deviation "
        f"over seeds, with the 95% interval {over} in parentheses; none under {FEWEST} {unit}"
    )
