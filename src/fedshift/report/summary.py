"""Results made from scores.csv: summary.csv, effects.csv, comparison.csv, trends.csv, unseen.csv and the tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ..analysis import calibration, controls, effects, reference, table, unseen
from ..analysis.conditions import CONDITION
from ..analysis.findings import Findings
from ..analysis.names import IDS, LEVELS
from ..analysis.predictions import INFERENCE, SITE
from ..analysis.results import load
from ..io.paths import Paths
from ..io.tables import write_table
from ..papers import comparison, trends
from ..papers.values import Values
from ..papers.words import Words
from ..study.plan import Plan
from . import tables

COLUMNS = [
    *("study", *IDS, *CONDITION, *SITE, *INFERENCE, "metric"),
    *("n", "mean", "std", "seeds", "published", "published_std", "low", "high", "chance", "majority"),
]


def summarise(plan: Plan, paths: Paths) -> Path:
    """Write summary.csv, effects.csv, comparison.csv, trends.csv, unseen.csv, controls.csv, calibration.csv and tables.

    The unit of aggregation is a seed: each run gives one value for a site, inference and metric, and `mean` and `std`
    (sample standard deviation, n - 1) are over the values of the seeds. `seeds` counts those that are there. `low` and
    `high` are the 95% interval of the mean score under resampling of patients (see `statistics`). `published` and
    `published_std` are the printed values (see `comparison`), in the unit of the mean. `chance` and `majority` are the
    scores of a model without knowledge (see `reference`).
    """
    results = load(plan, paths)
    words, values = Words(plan), Values(results)
    bounds, contrasts = effects.table(results.names, paths, results.scores)
    summary = _over_seeds(results.scores).join(comparison.published(words)).join(bounds).reset_index()
    summary = summary.join(reference.table(plan, paths), on=reference.PLACE)
    summary = results.names.described(summary.assign(study=plan.name))[COLUMNS]
    compared = comparison.table(words, values)
    files, findings = results.files, Findings(results.names, summary, contrasts)
    beside = controls.table(findings, results.names, paths, effects.undefined(results.names.conditions, results.scores))
    content = {
        files.effects: contrasts,
        files.summary: summary,
        files.comparison: compared,
        files.trends: trends.table(words, values),
        files.unseen: unseen.table(results.names, paths),
        files.controls: beside,
        files.calibration: calibration.table(findings, results.names, paths),
    }
    for path, rows in content.items():
        write_table(path, rows)
    tables.write(files, findings, controls.Controls(findings, beside))
    table.save(files, "comparison", comparison.whole(compared))
    return files.summary


def _over_seeds(scores: pd.DataFrame) -> pd.DataFrame:
    """Return n, mean, std and seeds by LEVELS; mean and std are NaN where the metric is not defined for a seed."""
    summary = scores.groupby(LEVELS, sort=False).agg(
        n=("n", "first"),
        mean=("value", "mean"),
        std=("value", "std"),
        seeds=("seed", "nunique"),
        valid=("value", "count"),
    )
    summary.loc[summary["valid"] < summary["seeds"], ["mean", "std"]] = float("nan")
    return summary.drop(columns="valid")
