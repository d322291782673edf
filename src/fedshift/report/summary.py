"""From scores.csv to summary.csv, effects.csv, comparison.csv, trends.csv, unseen.csv and the tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ..analysis import effects, table, unseen
from ..analysis.predictions import CONDITION, INFERENCE, SITE
from ..analysis.score import read_tidy
from ..io.paths import Paths
from ..io.tables import write_table
from ..papers import comparison, trends
from ..papers.values import Values
from ..papers.words import Words
from ..study.plan import Plan
from . import tables

KEYS = ["study", *CONDITION, *SITE, *INFERENCE, "metric"]
COLUMNS = [*KEYS, "n", "mean", "std", "seeds", "published", "published_std", "low", "high"]


def summarise(plan: Plan, paths: Paths) -> Path:
    """Writes summary.csv, effects.csv, comparison.csv, trends.csv, unseen.csv and the tables.

    The unit of aggregation is a seed: each run gives one value a site, inference and metric, and `mean` and
    `std` (sample standard deviation, n - 1) are over the values of the seeds. `seeds` counts those that are
    there. `low` and `high` are the 95% interval of the mean score under resampling of patients (see
    `statistics`). `published` and `published_std` are as of `comparison`, in the unit of the mean.
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
    words, values = Words(plan), Values(plan, paths, scores)
    summary = _with_published(plan, summary.drop(columns="valid"), comparison.published(words, values))
    bounds, contrasts = effects.table(plan, paths, scores)
    summary = summary.merge(bounds, on=KEYS[1:], how="left")[COLUMNS]
    write_table(folder / "effects.csv", contrasts)
    write_table(folder / "summary.csv", summary)
    write_table(folder / "comparison.csv", beside := comparison.table(words, values))
    write_table(folder / "trends.csv", trends.table(words, values))
    write_table(folder / "unseen.csv", unseen.table(plan, paths))
    tables.write(plan, paths, summary, contrasts)
    table.save(paths.study(plan.name), "comparison", comparison.whole(beside))
    return folder / "summary.csv"


def _with_published(plan: Plan, summary: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """Adds the columns `published` and `published_std`, NaN where nothing was."""
    keyed = effects.with_key(plan, summary)
    return keyed.merge(printed, on=effects.LEVELS, how="left").drop(columns="key")
