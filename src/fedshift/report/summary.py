"""The tables made from scores and predictions: summary.csv, effects.csv, operating_points.csv and others."""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd

from ..analysis import (
    calibration,
    collapse,
    comparisons,
    controls,
    effects,
    net_benefit,
    operating_point,
    reference,
    subgroups,
    table,
    unseen,
)
from ..analysis.comparisons import Entry, entry
from ..analysis.conditions import CONDITION
from ..analysis.findings import Findings
from ..analysis.names import IDS, LEVELS, Names
from ..analysis.predictions import INFERENCE, SITE
from ..analysis.results import load
from ..io.paths import Paths
from ..io.tables import write_table
from ..papers import comparison, primary, trends
from ..papers.values import Values
from ..papers.words import Words
from ..study.plan import Plan
from . import tables

COLUMNS = [
    *("study", *IDS, *CONDITION, *SITE, *INFERENCE, "metric"),
    *("n", "patients", "mean", "std", "seeds", "published", "published_std"),
    *("low", "high", "se", "chance", "majority"),
]


def summarise(plan: Plan, paths: Paths) -> Path:
    """Write the tables of a study: for programs (see `StudyFiles`), and for people.

    The unit of aggregation is a seed: each run gives one value for a site, inference and metric, and `mean` and `std`
    (sample standard deviation, n - 1) are over the values of the seeds. `seeds` counts those that are there. `low` and
    `high` are the 95% interval of the mean score under resampling of `patients` (see `statistics`), and `se` is the
    standard error over patients. `published` and `published_std` are the printed values (see `comparison`), in the unit
    of the mean. `chance` and `majority` are the scores of a model without knowledge (see `reference`).
    """
    results = load(plan, paths)
    words, values = Words(plan), Values(results)
    declared = _declared(results.names)
    arms = comparisons.arms([*comparisons.entries(results.names), *itertools.chain(*declared)])
    names, predicted, samples = results.names, results.predictions, results.samples
    numbers = effects.measured(names, predicted, results.scores, samples, arms)
    bounds, contrasts = effects.table(numbers)
    differences = comparisons.table(numbers, declared)
    summary = _over_seeds(results.scores).join(comparison.published(words)).join(bounds).reset_index()
    summary = summary.join(reference.table(predicted, samples), on=reference.PLACE)
    summary = names.described(summary.assign(study=plan.name))[COLUMNS]
    compared = comparison.table(words, values)
    files, findings = results.files, Findings(names, summary, contrasts, differences)
    beside = controls.table(findings, names, predicted, samples, numbers.left_out)
    content = {
        files.effects: contrasts,
        files.summary: summary,
        files.comparisons: differences,
        files.comparison: compared,
        files.trends: trends.table(words, values),
        files.unseen: unseen.table(names, predicted, samples),
        files.subgroups: subgroups.table(names, predicted, samples),
        files.operating_points: operating_point.table(names, predicted, samples),
        files.net_benefit: net_benefit.table(names, predicted, samples),
        files.controls: beside,
        files.calibration: calibration.table(findings, names, predicted, samples),
        files.collapse: collapse.table(names, predicted),
    }
    for path, rows in content.items():
        write_table(path, rows)
    tables.write(files, findings, controls.Controls(findings, beside))
    table.save(files, "comparison", comparison.whole(compared))
    return files.summary


def _declared(names: Names) -> list[tuple[Entry, Entry]]:
    """Return the pairs of the primary comparison that the study declares, each once."""
    pairs = [
        (entry(names, one.condition.id, one.inference), entry(names, other.condition.id, other.inference))
        for one, other in primary.pairs(names.plan)
    ]
    return list(dict.fromkeys(pairs))


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
