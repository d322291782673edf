"""From scores.csv to summary.csv, effects.csv and the tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ..errors import UserError
from ..files import read_table, write_table
from ..paths import Paths
from ..study import Plan
from . import effects, tables
from .predictions import CONDITION, INFERENCE, SITE
from .score import read_tidy

KEYS = ["study", *CONDITION, *SITE, *INFERENCE, "metric"]
COLUMNS = [*KEYS, "n", "mean", "std", "seeds", "published", "published_std", "low", "high"]


def summarise(plan: Plan, paths: Paths) -> Path:
    """Writes summary.csv, effects.csv and the tables.

    The unit of aggregation is a seed: each run gives one value a site, inference and metric, and `mean` and
    `std` (sample standard deviation, n - 1) are over the values of the seeds. `seeds` counts those that are
    there. `low` and `high` are the 95% interval of the mean score under resampling of patients (see
    `statistics`).
    """
    folder = paths.study(plan.name)
    scores = read_tidy(folder / "scores.csv")
    grouped = scores.groupby(KEYS, sort=False, dropna=False)
    summary = grouped.agg(
        n=("n", "first"),
        mean=("value", "mean"),
        std=("value", "std"),
        seeds=("seed", "nunique"),
        valid=("value", "count"),
    ).reset_index()
    summary.loc[summary["valid"] < summary["seeds"], ["mean", "std"]] = float("nan")
    summary = _published(plan, summary.drop(columns="valid"))
    bounds, contrasts = effects.table(plan, paths, scores)
    summary = summary.merge(bounds, on=KEYS[1:], how="left")[COLUMNS]
    write_table(folder / "effects.csv", contrasts)
    write_table(folder / "summary.csv", summary)
    tables.write(plan, paths, summary, contrasts)
    return folder / "summary.csv"


def _published(plan: Plan, summary: pd.DataFrame) -> pd.DataFrame:
    """Adds `published` and `published_std`, joined on all columns which the CSV has in common.

    A metric written as `accuracy_percent` is accuracy in percent.
    """
    summary = summary.assign(published=float("nan"), published_std=float("nan"))
    if not plan.study.published:
        return summary
    path = plan.path.parent / plan.study.published
    table = read_table(path)
    if absent := [c for c in ("site", "metric", "value") if c not in table]:
        raise UserError(path, f"no column {', '.join(absent)}", "it needs at least site, metric and value")
    on = [c for c in ("algorithm", "bn", "addon", "inference", "held_out", "site", "metric") if c in table]
    table = table.astype(dict.fromkeys(on, str))
    percent = table["metric"].str.endswith("_percent")
    table["metric"] = table["metric"].str.removesuffix("_percent")
    scale = percent.map({True: 0.01, False: 1.0})
    table["published"] = table["value"] * scale
    table["published_std"] = table["std"] * scale if "std" in table else float("nan")
    if (twice := table.duplicated(on)).any():
        row = twice.to_numpy().argmax() + 2
        remedy = "add columns that tell the rows apart: algorithm, bn, addon, inference or held_out"
        raise UserError(f"{path}, row {row}", f"a second figure for the same {', '.join(on)}", remedy)
    plain = summary.drop(columns=["published", "published_std"])
    return plain.merge(table[[*on, "published", "published_std"]], on=on, how="left")
