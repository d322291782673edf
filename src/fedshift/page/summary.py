"""The tables made from scores and predictions: summary.csv, effects.csv, operating_points.csv and others."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from ..analysis import cells, effects, published_values, score
from ..analysis.comparisons import Entry, entry
from ..analysis.conditions import CONDITION
from ..analysis.controls import Controls
from ..analysis.effects import Estimates
from ..analysis.findings import Findings
from ..analysis.numbers import IDS, LEVELS, Names, Numbers, Row
from ..analysis.predictions import INFERENCE, SITE
from ..analysis.published_values import Values
from ..analysis.published_words import Words
from ..analysis.score import PLACE
from ..analysis.study_results import PACKAGE, StudyResults
from ..analysis.values import save
from ..io.result_tables import SUMMARISED, ResultTable
from ..io.tables import write_table
from . import headline_tables as tables

COLUMNS = [
    *("study", *IDS, *CONDITION, *SITE, *INFERENCE, "metric"),
    *("n", "patients", "rarer", "mean", "std", "seeds", "published", "published_std"),
    *("low", "high", "se", "chance", "majority", "p_chance"),
]


def summarise(results: StudyResults) -> Path:
    """Write the tables of a study: for programs (see `result_tables`), and for people. Returns summary.csv."""
    inputs = Inputs(results)
    files = results.files
    write_table(files.numbers, inputs.numbers.frame)
    made = {declared.name: inputs.asked(declared, "table") for declared in SUMMARISED}
    for name, table in made.items():
        write_table(files.result(name), table)
    findings = Findings(inputs.names, inputs.numbers)
    tables.write(files, findings, Controls(findings))
    save(files, "comparison", published_values.whole(made["comparison"]))
    return files.summary


def rows(study: Estimates, words: Words, reference: pd.DataFrame) -> Iterator[Row]:
    """Yield the numbers of summary.csv (see `table`): those of the quantity `score`."""
    summary = _over_seeds(study.scores).join(published_values.published(words)).join(reference, on=PLACE)
    for level, found in zip(summary.index, summary.to_dict("records"), strict=True):
        yield effects.at_site(study, level) | {str(name): value for name, value in found.items()}


def table(names: Names, numbers: Numbers) -> pd.DataFrame:
    """Return summary.csv.

    The unit of aggregation is a seed: each run gives one value for a site, inference and metric, and `mean` and `std`
    (sample standard deviation, n - 1) are over the values of the seeds. `seeds` counts those that are there. `low` and
    `high` are the 95% interval of the mean score over `patients` (see `estimates`), `rarer` counts those of the rarer
    class, and `se` is over patients alone. `p_chance` is the one-sided p that the score is at chance or above, of
    metrics whose chance prevalence does not move. `published` and `published_std` are the printed values (see
    `published_values`), in the unit of the mean. `chance` and `majority` are the scores of a model without knowledge
    (see `score.blind`).
    """
    return names.described(numbers.view("score").assign(study=names.plan.name, p_chance=lambda t: t["p"]))[COLUMNS]


class Inputs:
    """What the workers of tables may ask for, by the names of their parameters. Each is made when it is first needed.

    Attributes
    ----------
    results, names, predicted, samples : the files of the study, its conditions, its predictions and its images
    words, values : those of published values (see `papers`)
    """

    def __init__(self, results: StudyResults) -> None:
        self.results = results
        self.names = self.results.names
        self.predicted = self.results.predictions
        self.samples = self.results.samples
        self.words = Words(results.plan)
        self.values = Values(self.results)

    @functools.cached_property
    def study(self) -> Estimates:
        """The estimates that all intervals are made of."""
        return Estimates(self.names, self.predicted, self.results.scores, self.samples)

    @functools.cached_property
    def reference(self) -> pd.DataFrame:
        """The scores of a model without knowledge."""
        return score.blind(self.predicted, self.samples)

    @functools.cached_property
    def numbers(self) -> Numbers:
        """The numbers of all tables."""
        return Numbers(row for declared in SUMMARISED for row in self.asked(declared, "rows") or ())

    @functools.cached_property
    def declared(self) -> list[tuple[Entry, Entry]]:
        """The pairs of the primary comparison that the study declares, each once."""
        pairs = [
            [entry(self.names, side.condition.id, side.inference) for side in pair]
            for pair in cells.primary_pairs(self.names.plan)
        ]
        return list(dict.fromkeys((first, second) for first, second in pairs))

    def asked(self, declared: ResultTable, name: str) -> Any:
        """Call a function of a table's worker with the attributes that its parameters name, and return its result.

        It is None where the worker has no function of this name.
        """
        worker = getattr(importlib.import_module(f"{PACKAGE}.{declared.worker}"), name, None)
        if worker is None:
            return None
        return worker(**{parameter: getattr(self, parameter) for parameter in inspect.signature(worker).parameters})


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
