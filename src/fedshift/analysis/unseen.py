"""Scores on images that no client trained on, if external sites show training images under other corruptions."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from ..core.errors import UserError
from ..io.paths import IDS, INFERENCE
from ..metrics import Metric
from . import predictions
from .conditions import CONDITION
from .findings import Findings
from .numbers import Names
from .predictions import Predictions, Samples
from .values import DASH, Table, Value, inner, spread

KEYS = [*IDS, "trained_on", "metric"]
"""The columns that identify a row of unseen.csv."""
COLUMNS = [*IDS, *CONDITION, *INFERENCE, "trained_on", "metric", "n", "mean", "std", "seeds"]


def table(names: Names, predicted: Predictions, samples: Samples) -> pd.DataFrame:
    """Return unseen.csv: the headline metric at external sites, for images that were trained on and for others.

    `trained_on` says whether a client trained on the same image (column `base` of samples.parquet) under another
    corruption. Scores are means over external sites, `n` counts images over all of them, and `mean` and `std` are over
    `seeds`. The table is empty if no image is shown at several sites, or if no client trained on any of them.
    """
    rows = pd.DataFrame(_values_by_run(predicted, samples), columns=[*KEYS, "n", "value"])
    grouped = rows.groupby(KEYS, sort=False, dropna=False)
    means = grouped.agg(n=("n", "first"), mean=("value", "mean"), std=("value", "std"), seeds=("value", "count"))
    return names.described(means.reset_index())[COLUMNS]


def _values_by_run(predicted: Predictions, samples: Samples) -> Iterator[dict[str, Any]]:
    """Yield a row of scores at external sites for each run, inference, and kind of image (trained on or not)."""
    plan = predicted.plan
    metric: Metric = registry.build("metric", plan.study.headline)
    trained_on = functools.cache(lambda data, partition: _trained_on(predicted, samples, data, partition))
    for run in plan.runs.values():
        was_seen = trained_on(run.data.id, run.partition_id)
        for _, key in predicted.every([run]) if was_seen.any() else ():
            table = predicted.read(run, key)
            external = table[table["role"] == "external"]
            for seen, outside in external.groupby(was_seen.reindex(external["sample"]).to_numpy()):
                classes = predictions.probabilities(outside)
                values = [
                    metric.value(site["label"].to_numpy(), site[classes].to_numpy(dtype=float))
                    for _, site in outside.groupby("site")
                ]
                ids = {"condition_id": run.condition, "inference_id": key}
                about = {**ids, "trained_on": bool(seen), "metric": metric.name}
                yield {**about, "n": len(outside), "value": float(np.mean(values))}


def _trained_on(predicted: Predictions, samples: Samples, data: str, partition: str) -> pd.Series:
    """Return, for each sample of an external site, whether a client trained on its source image.

    The result is empty if samples have no column `base`, so that no two of them show the same image.
    """
    try:
        table = samples(data)
        assigned = predicted.partition(partition)[["sample", "role", "split"]]
    except UserError:
        table = pd.DataFrame()
    if "base" not in table:
        return pd.Series(dtype=bool)
    rows = assigned.astype({"sample": str}).merge(table[["sample", "base"]], on="sample")
    train = rows.loc[rows["split"] == "train", "base"]
    outside = rows[rows["role"] == "external"]
    return pd.Series(outside["base"].isin(train.dropna()).to_numpy(), outside["sample"])


def shown(findings: Findings, unseen: pd.DataFrame) -> Table | None:
    """Return unseen.csv as a table for the page, with a row for each condition and inference; None if it is empty."""
    if unseen.empty:
        return None
    metric = findings.headline
    columns = unseen[[*IDS, "trained_on", "mean", "std", "seeds"]].itertuples(index=False, name=None)
    values = {tuple(ids): Value(mean=mean, std=std, seeds=int(seeds)) for *ids, mean, std, seeds in columns}
    rows = []
    for condition in findings.conditions:
        for key in condition.inferences:
            both = [values.get((condition.id, key, seen)) for seen in (True, False)]
            if any(both):
                cells = (spread(value, metric) if value else DASH for value in both)
                rows.append((findings.full(condition), findings.name(key), *cells))
    caption = (
        f"External sites show training images under a different corruption. {metric.title} there, mean over external "
        "sites and seeds, of images that a client trained on, and of images that none did: only the latter say how "
        f"the model does on new images. Elsewhere {inner(metric)} is that of both together"
    )
    return Table(caption, ("Condition", "Inference", "Trained on", "Not trained on"), tuple(rows), 2)
