"""The tables made from scores and predictions: summary.csv, effects.csv, operating_points.csv and others."""

from __future__ import annotations

import functools
import importlib
import inspect
from pathlib import Path

import pandas as pd

from ..analysis import effects
from ..analysis import reference as blind
from ..analysis.comparisons import Entry, entry
from ..analysis.conditions import CONDITION
from ..analysis.controls import Controls
from ..analysis.effects import Estimates
from ..analysis.findings import Findings
from ..analysis.names import IDS, LEVELS
from ..analysis.predictions import INFERENCE, SITE
from ..analysis.reference import PLACE
from ..analysis.results import PACKAGE, StudyResults
from ..analysis.table import save
from ..io.result_tables import RESULT_TABLES, SUMMARISED
from ..io.tables import write_table
from ..papers import primary, published_values
from ..papers.quantities import Values
from ..papers.words import Words
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
    for declared in SUMMARISED:
        write_table(files.result(declared.name), inputs.made(declared.name))
    findings = inputs.findings
    tables.write(files, findings, Controls(findings, inputs.made("controls")))
    save(files, "comparison", published_values.whole(inputs.made("comparison")))
    return files.summary


def table(study: Estimates, words: Words, reference: pd.DataFrame) -> pd.DataFrame:
    """Return summary.csv.

    The unit of aggregation is a seed: each run gives one value for a site, inference and metric, and `mean` and `std`
    (sample standard deviation, n - 1) are over the values of the seeds. `seeds` counts those that are there. `low` and
    `high` are the 95% interval of the mean score over `patients` (see `estimates`). `effects.at_sites` describes
    `rarer`, `se` and `p_chance`. `published` and `published_std` are the printed values (see `published_values`), in
    the unit of the mean. `chance` and `majority` are the scores of a model without knowledge (see `reference`).
    """
    summary = _over_seeds(study.scores).join(published_values.published(words))
    summary = summary.join(effects.at_sites(study)).reset_index()
    summary = summary.join(reference, on=PLACE)
    return study.names.described(summary.assign(study=study.names.plan.name))[COLUMNS]


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
        self._made: dict[str, pd.DataFrame] = {}

    @functools.cached_property
    def study(self) -> Estimates:
        """The estimates that all intervals are made of."""
        return Estimates(self.names, self.predicted, self.results.scores, self.samples)

    @functools.cached_property
    def reference(self) -> pd.DataFrame:
        """The scores of a model without knowledge."""
        return blind.table(self.predicted, self.samples)

    @functools.cached_property
    def findings(self) -> Findings:
        """The numbers of summary.csv, effects.csv and comparisons.csv by their ids."""
        return Findings(self.names, *(self.made(name) for name in ("summary", "effects", "comparisons")))

    @functools.cached_property
    def declared(self) -> list[tuple[Entry, Entry]]:
        """The pairs of the primary comparison that the study declares, each once."""
        pairs = [
            [entry(self.names, side.condition.id, side.inference) for side in pair]
            for pair in primary.pairs(self.names.plan)
        ]
        return list(dict.fromkeys((first, second) for first, second in pairs))

    def made(self, name: str) -> pd.DataFrame:
        """Return a table by its name in `result_tables`. Its worker gets the attributes that its parameters name."""
        if name not in self._made:
            worker = importlib.import_module(f"{PACKAGE}.{RESULT_TABLES[name].worker}").table
            needs = {parameter: getattr(self, parameter) for parameter in inspect.signature(worker).parameters}
            self._made[name] = worker(**needs)
        return self._made[name]


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
