"""The headline metric of groups of test images: those that agree in a further column of the table of images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from ..core.errors import UserError
from ..core.rng import stream
from ..datasets import SAMPLE_COLUMNS
from ..metrics import Metric
from ..study.plan import Plan
from . import predictions
from .auc import logit_interval
from .conditions import CONDITION, Condition
from .names import IDS, Names
from .predictions import INFERENCE, Predictions, Samples
from .statistics import bootstrap, by_cluster, interval

MOST = 12
"""Groups of a column: the largest ones. A column such as the age in years has too many for a table."""
COLUMNS = [
    *(*IDS, *CONDITION, *INFERENCE, "column", "group", "role", "metric"),
    *("n", "clusters", "mean", "std", "seeds", "low", "high"),
]


def table(names: Names, predicted: Predictions, samples: Samples) -> pd.DataFrame:
    """Return subgroups.csv: the headline metric of each group of test images of a role, over all its sites.

    There is a row for each condition, inference without labels, column of the study's `subgroups`, group and role. An
    empty group holds the images without a value. `n` counts images, and `clusters` what is resampled as a whole:
    patients, source images, or single images where these are unknown. `mean` and `std` are over `seeds`; `low` and
    `high` are the 95% interval over clusters. Raises UserError for a column that the data do not have.
    """
    rows = [
        row
        for condition in (names.conditions.values() if names.plan.study.subgroups else ())
        for row in _of_condition(predicted, condition, samples(condition.run.data.id))
    ]
    return names.described(pd.DataFrame(rows, columns=[c for c in COLUMNS if c not in (*CONDITION, *INFERENCE)]))[
        COLUMNS
    ]


def require(plan: Plan, where: str, known: Iterable[str]) -> dict[str, str]:
    """Return the column of each of the study's subgroups. Raises UserError if data at `where` have no such column."""
    columns = {str(name).casefold(): str(name) for name in known}
    for name in plan.study.subgroups:
        if name.strip().casefold() not in columns:
            there = ", ".join(columns.values()) or "no further columns"
            raise UserError(f"{plan.path}.subgroups", f"no column {name!r} in {where}", f"it has {there}")
    return {name: columns[name.strip().casefold()] for name in plan.study.subgroups}


def groups(plan: Plan, data: str, samples: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the group of each sample of prepared data, by the study's subgroups; empty where it is not stated.

    Raises UserError for a column that the data do not have.
    """
    columns = require(plan, f"the data {data}", [c for c in map(str, samples) if c not in SAMPLE_COLUMNS])
    return {name: samples.set_index("sample")[column].fillna("").astype(str) for name, column in columns.items()}


def largest(group: pd.Series) -> list[str]:
    """Return the MOST largest groups by name, the group of images without a value last."""
    counts = group.value_counts()
    chosen = sorted(counts.index, key=lambda name: (-counts[name], name))[:MOST]
    return sorted(chosen, key=lambda name: (name == "", name))


def _of_condition(predicted: Predictions, condition: Condition, samples: pd.DataFrame) -> Iterator[dict[str, Any]]:
    plan = predicted.plan
    metric: Metric = registry.build("metric", plan.study.headline)
    data = condition.run.data.id
    divided = groups(plan, data, samples)
    unit = samples.set_index("sample")["base" if "base" in samples else "patient"].astype(object)
    for key in condition.inferences:
        if plan.inferences[key].uses_labels:
            continue
        tables = [table for _, table in predicted.readable(condition.runs.values(), key)]
        for column, group in divided.items() if tables else ():
            for name in largest(group):
                for role in ("external", "internal"):
                    parts = [t[(t["role"] == role) & (t["sample"].map(group) == name)] for t in tables]
                    if not all(map(len, parts)):
                        continue
                    found = _score(metric, parts, unit, [data, column, name, role])
                    ids = {"condition_id": condition.id, "inference_id": key}
                    yield {**ids, "column": column, "group": name, "role": role, "metric": metric.name, **found}


def _score(metric: Metric, parts: list[pd.DataFrame], unit: pd.Series, key: list[str]) -> dict[str, Any]:
    """Return the numbers of a row from the predictions of a group, a table for each seed."""
    arrays = [(part["label"].to_numpy(), part[predictions.probabilities(part)].to_numpy(float)) for part in parts]
    values = np.array([metric.value(label, probability) for label, probability in arrays])
    samples = parts[0]["sample"]
    clusters = unit.reindex(samples)
    clusters = clusters.where(clusters.notna(), clusters.index.to_series()).astype(str)
    mean, std = values.mean(), values.std(ddof=1) if len(values) > 1 else float("nan")
    low, high = float("nan"), float("nan")
    each = [metric.per_sample(*both) for both in arrays]
    known = [one.reshape(len(samples), -1) for one in each if one is not None]
    if known and not np.isnan(mean):
        contributions = pd.DataFrame(np.mean(known, axis=0), index=samples)
        low, high = _interval(metric, contributions, clusters, float(mean), key)
    counts = {"n": len(samples), "clusters": clusters.nunique()}
    return {**counts, "mean": mean, "std": std, "seeds": len(values), "low": low, "high": high}


def _interval(
    metric: Metric, each: pd.DataFrame, clusters: pd.Series, mean: float, key: list[str]
) -> tuple[float, float]:
    """Return the interval over clusters of contributions of samples (n, columns), the means over seeds.

    All conditions and inferences see the same resamples of a group.
    """
    sums, counts = (t.to_numpy() for t in by_cluster(each, clusters.reindex(each.index).to_numpy()))
    draws = bootstrap(sums, counts, stream("subgroups", *key)).mean(axis=1)
    if not metric.logit:
        return interval(draws)
    fewest = int((counts > 0).sum(0).min())
    return logit_interval(mean, float(np.var(draws, ddof=1)) * fewest / max(1, fewest - 1))
