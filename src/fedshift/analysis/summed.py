"""Levels of real sites that sent sums over groups of patients in the place of rows of single images.

A group is to an interval what a patient is elsewhere. So the interval takes nothing for granted but that groups were
drawn at random; there are fewer of them than patients, and it is wider.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from ..core import registry
from ..io import checksums, identity
from ..io.guards import require_columns
from ..io.tables import read_table
from . import estimates, score
from .conditions import Condition, conditions
from .values import Value, between, inner, number

if TYPE_CHECKING:
    from ..io.paths import Paths
    from ..metrics import Metric
    from ..study.plan import Plan
    from ..study.run import Run

COLUMNS = dict.fromkeys(("inference", "site", "group", "patients", "label", "predicted", "images"), "anything")


class Level(NamedTuple):
    """The scores of a condition and an inference at a site, from sums.

    Attributes
    ----------
    condition : runs that differ in their seed only
    inference : the id of the inference
    site : name of the site
    images, patients, groups : numbers of test images, of their patients, and of the groups of these
    values : the scores, by metric, with intervals over groups and trainings
    """

    condition: Condition
    inference: str
    site: str
    images: int
    patients: int
    groups: int
    values: dict[Metric, Value]

    @property
    def line(self) -> str:
        """The scores as a line of text."""
        told = (f"{inner(m)} {number(value.mean, m)} ({between(value, m)})" for m, value in self.values.items())
        return f"{self.site}, {self.condition.title}, {self.inference}: {', '.join(told)}"


def levels(plan: Plan, paths: Paths) -> Iterator[Level]:
    """Yield what sums give of each condition, site and inference; nothing where no site sent any.

    Raises UserError for a file of sums that cannot be read, was changed, or is another run's.
    """
    metrics = [m for m in score.metrics(plan) if m.decides] or [registry.build("metric", "accuracy")]
    for condition in conditions(plan).values():
        sums = pd.concat([_read(paths, run) for run in condition.runs.values()], ignore_index=True)
        for (inference, site), rows in sums.groupby(["inference", "site"], sort=False):
            one = rows[rows["seed"] == rows["seed"].iloc[0]]
            members = one.drop_duplicates("group")["patients"]
            values = {metric: _value(metric, rows, len(condition.run.data.dataset.classes)) for metric in metrics}
            counts = int(one["images"].sum()), int(members.sum()), len(members)
            yield Level(condition, str(inference), str(site), *counts, values)


def _read(paths: Paths, run: Run) -> pd.DataFrame:
    """Return the sums of a run, with its seed; no row where no site sent any."""
    path = paths.run_files(run.id).sums
    if not path.exists():
        return pd.DataFrame(columns=[*COLUMNS, "seed"])
    checksums.require([path])
    identity.require(path, run=run.id)
    table = read_table(path)
    require_columns(path, table, COLUMNS)
    return table.assign(seed=run.seed)


def _value(metric: Metric, sums: pd.DataFrame, classes: int) -> Value:
    """Return a score at a site with its interval over groups of patients, and over trainings if there are several."""
    found = []
    for seed in sums["seed"].unique().tolist():
        rows = sums[sums["seed"] == seed]
        # a line for each image again, of its class and the one it was taken for: all that such a metric reads
        label, predicted, group = np.repeat(rows[["label", "predicted", "group"]].to_numpy(int), rows["images"], 0).T
        one = estimates.of_metric(metric, label, np.eye(classes)[predicted], group, ("", ""), seed)
        if not math.isnan(one.mean):
            found.append(one)
    if not found:
        return Value()
    whole = estimates.over_trainings(found)
    ends = whole.bounded(metric.ends)
    return Value(whole.mean, whole.std, len(whole.values), ends.low, ends.high)
