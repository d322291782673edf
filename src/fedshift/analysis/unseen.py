"""External sites that show training images in another guise: how well images fare that no client trained on."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from ..core.errors import UserError
from ..io.paths import Paths
from ..io.tables import read_table
from ..metrics import Metric
from ..study.plan import Plan
from ..study.run import Run
from . import effects, predictions
from .findings import Findings
from .predictions import CONDITION, INFERENCE
from .table import Table
from .values import DASH, Value, inner, spread

KEYS = [*CONDITION, *INFERENCE]
COLUMNS = [*KEYS, "trained_on", "metric", "n", "mean", "std", "seeds"]


def table(plan: Plan, paths: Paths) -> pd.DataFrame:
    """unseen.csv: the headline metric, mean over external sites, of images that were trained on and of others.

    `trained_on` says whether a client trained on the same image (column `base` of samples.parquet) in another guise;
    `n` counts images over all external sites; `mean` and `std` are over `seeds`. Empty where images have no other
    guise, or none that a client trained on.
    """
    rows = pd.DataFrame(_rows(plan, paths), columns=[*KEYS, "trained_on", "metric", "n", "value"])
    grouped = rows.groupby([*KEYS, "trained_on", "metric"], sort=False, dropna=False)
    found = grouped.agg(n=("n", "first"), mean=("value", "mean"), std=("value", "std"), seeds=("value", "count"))
    return found.reset_index()[COLUMNS]


def _rows(plan: Plan, paths: Paths) -> Iterator[dict[str, Any]]:
    """A row for each run, inference, and kind of image."""
    metric: Metric = registry.build("metric", plan.study.headline)
    conditions, inferences = predictions.conditions(plan), predictions.inferences(plan)
    trained_on = functools.cache(lambda data, partition: _trained_on(paths, data, partition))
    for name, run in plan.runs.items():
        of = trained_on(run.data.id, run.partition_id)
        for key in plan.predictions(name) if of.any() else ():
            for seen, outside in _outside(plan, paths, run, key, of):
                classes = predictions.probabilities(outside)
                values = [
                    metric.value(site["label"].to_numpy(), site[classes].to_numpy(dtype=float))
                    for _, site in outside.groupby("site")
                ]
                about = {**conditions[name], **inferences[key], "trained_on": seen, "metric": metric.name}
                yield {**about, "n": len(outside), "value": float(np.mean(values))}


def _outside(plan: Plan, paths: Paths, run: Run, key: str, of: pd.Series) -> Iterator[tuple[bool, pd.DataFrame]]:
    """Predictions of external sites, those of images trained on and the others; none where they cannot be read."""
    try:
        predicted = predictions.read(plan, paths, run, key)
    except UserError:
        return  # score() lists it in missing.json
    outside = predicted[predicted["role"] == "external"]
    yield from ((bool(seen), part) for seen, part in outside.groupby(of.reindex(outside["sample"]).to_numpy()))


def _trained_on(paths: Paths, data: str, partition: str) -> pd.Series:
    """Of each sample of an external site, whether a client trained on its image; empty where images have one guise."""
    try:
        samples = read_table(paths.data(data) / "samples.parquet")
        assigned = read_table(paths.partition(partition), ["sample", "role", "split"])
    except UserError:
        return pd.Series(dtype=bool)
    if "base" not in samples:
        return pd.Series(dtype=bool)
    rows = assigned.astype({"sample": str}).merge(samples.astype({"sample": str})[["sample", "base"]], on="sample")
    train, outside = rows.loc[rows["split"] == "train", "base"], rows[rows["role"] == "external"]
    return pd.Series(outside["base"].isin(train.dropna()).to_numpy(), outside["sample"])


def shown(findings: Findings, found: pd.DataFrame) -> Table | None:
    """The same for the page: a row for each condition and inference."""
    if found.empty:
        return None
    metric, keyed = findings.headline, effects.with_key(findings.plan, found)
    values = {
        (*row[: len(CONDITION)], row[-5], row[-4]): Value(mean=row[-3], std=row[-2], seeds=int(row[-1]))
        for row in keyed[[*CONDITION, "key", "trained_on", "mean", "std", "seeds"]].itertuples(index=False, name=None)
    }
    rows = []
    for group in findings.groups:
        for key in group.asked:
            both = [values.get((*group.condition, key, seen)) for seen in (True, False)]
            if any(both):
                cells = (spread(value, metric) if value else DASH for value in both)
                rows.append((findings.full(group), findings.name(key), *cells))
    caption = (
        f"External sites show training images in another guise. {metric.title} there, mean over external sites and "
        "seeds, of images that a client trained on, and of images that none did: only the latter say how the model "
        f"does on new images. Elsewhere {inner(metric)} is that of both together"
    )
    return Table(caption, ("Condition", "Inference", "Trained on", "Not trained on"), tuple(rows), 2)
