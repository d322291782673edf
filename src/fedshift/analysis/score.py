"""Scores of predictions: scores.csv."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from ..core import registry
from ..core.console import say
from ..core.errors import UserError
from ..io.paths import Paths
from ..io.tables import write_table
from ..io.text import write_json
from ..metrics import Metric
from ..study import calls
from ..study.plan import Plan
from . import predictions, study_tables
from .conditions import CONDITION, conditions
from .predictions import INFERENCE, SITE, TYPES

COLUMNS = ["study", "run", *CONDITION, *SITE, *INFERENCE, "seed", "metric", "value", "n"]


def score(plan: Plan, paths: Paths, out: Path | None = None) -> Path:
    """Write scores.csv: every metric of every run, inference and site, one value a row.

    Predictions that are not there or are incomplete are left out and listed, with the reason, in missing.json beside
    it; those that are there and cannot be scored are also named on the screen. Raises UserError for a file that is
    there and cannot be read, and for a study without any predictions.
    """
    out = out or paths.study_files(plan.name).scores
    missing: list[dict[str, str]] = []
    rows = list(_score_rows(plan, paths, missing))
    if not rows:
        first = missing[0]
        problem = f"no predictions of any run (the first: run {first['run']}, {first['inference']}: {first['why']})"
        raise UserError(f"study {plan.name}", problem, f"train and predict first: {calls.snakemake(plan, paths)}")
    write_json(out.with_name("missing.json"), missing)
    write_table(out, pd.DataFrame(rows, columns=COLUMNS).astype(TYPES))
    return out


def is_outdated(plan: Plan, paths: Paths) -> bool:
    """Return whether predictions have come, gone or changed since the study was scored, or it was never scored."""
    files = paths.study_files(plan.name)
    if not (files.scores.exists() and files.missing.exists()):
        return True
    listed = {item["run"] for item in study_tables.missing(plan, paths)}
    scored = files.scores.stat().st_mtime
    tables = {run: paths.predictions(run, job) for run, job in plan.prediction_jobs.items()}
    return any(table.stat().st_mtime > scored if table.exists() else run not in listed for run, table in tables.items())


def metrics(plan: Plan) -> list[Metric]:
    """Return the metrics of a study, with the headline metric where it is not among them."""
    names = dict.fromkeys([*plan.study.metrics, plan.study.headline])
    return [registry.build("metric", name) for name in names]


def _score_rows(plan: Plan, paths: Paths, missing: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of scores.csv. Adds to `missing` the predictions that are not there."""
    condition = {name: one.words for one in conditions(plan).values() for name in one.runs}
    inference = predictions.inferences(plan)
    predicted = predictions.Predictions(plan, paths)
    measured = metrics(plan)
    for name, run in plan.runs.items():
        for key in plan.predictions(name):
            try:
                parts = predicted.parts(run, key)
            except predictions.Missing as error:
                missing.append({"run": name, "inference": key, "why": error.what})
                if Path(error.where).exists():
                    say(f"{error.where}: {key} is left out of all scores: {error.what}")
                continue
            about = {"study": plan.name, "run": name, "seed": run.seed, **condition[name], **inference[key]}
            for part, metric in itertools.product(parts, measured):
                value = metric.value(part.label, part.probability)
                place = {"site": part.site, "role": part.role, "metric": metric.name}
                yield {**about, **place, "value": value, "n": len(part.label)}
