"""Scores of predictions, scores.csv; their reading; and the scores that a model without any knowledge reaches."""

from __future__ import annotations

import io
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from ..core.console import say
from ..core.errors import UserError
from ..io.guards import require_object
from ..io.paths import Paths
from ..io.result_tables import TEXT
from ..io.tables import restored, write_table
from ..io.text import read_json, readable, write_json
from ..metrics import Metric
from ..study import calls
from ..study.plan import Plan
from ..study.run import Run
from . import predictions
from .conditions import CONDITION, conditions
from .predictions import INFERENCE, SITE, TYPES, Predictions, Samples

PLACE = ["condition_id", "role", "site", "metric"]
COLUMNS = ["study", "run", *CONDITION, *SITE, *INFERENCE, "seed", "metric", "value", "n"]


def score(plan: Plan, paths: Paths, out: Path | None = None) -> Path:
    """Write scores.csv: every metric of every run, inference and site, one value a row.

    Predictions that are not there or are incomplete are left out and listed, with the reason, in missing.json beside
    it; those that are there and cannot be scored are also named on the screen. Raises UserError for a file that is
    there and cannot be read, and for a study without any predictions.
    """
    out = out or paths.study_files(plan.name).scores
    lost: list[dict[str, str]] = []
    rows = list(_score_rows(plan, paths, lost))
    if not rows:
        first = lost[0]
        problem = f"no predictions of any run (the first: run {first['run']}, {first['inference']}: {first['why']})"
        raise UserError(f"study {plan.name}", problem, f"train and predict first: {calls.snakemake(plan, paths)}")
    write_json(out.with_name("missing.json"), lost)
    write_table(out, pd.DataFrame(rows, columns=COLUMNS).astype(TYPES))
    return out


def is_outdated(plan: Plan, paths: Paths) -> bool:
    """Return whether predictions have come, gone or changed since the study was scored, or it was never scored."""
    files = paths.study_files(plan.name)
    if not (files.scores.exists() and files.missing.exists()):
        return True
    listed = {item["run"] for item in missing(plan, paths)}
    scored = files.scores.stat().st_mtime
    tables = {run: paths.predictions(run, job) for run, job in plan.prediction_jobs.items()}
    return any(table.stat().st_mtime > scored if table.exists() else run not in listed for run, table in tables.items())


def metrics(plan: Plan) -> list[Metric]:
    """Return the metrics of a study, with the headline metric where it is not among them."""
    names = dict.fromkeys([*plan.study.metrics, plan.study.headline])
    return [registry.build("metric", name) for name in names]


def _score_rows(plan: Plan, paths: Paths, lost: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of scores.csv. Adds to `lost` the predictions that are not there."""
    condition = {name: one.words for one in conditions(plan).values() for name in one.runs}
    inference = predictions.inferences(plan)
    predicted = Predictions(plan, paths)
    measured = metrics(plan)
    for name, run in plan.runs.items():
        for key in plan.predictions(name):
            try:
                parts = predicted.parts(run, key)
            except predictions.Missing as error:
                lost.append({"run": name, "inference": key, "why": error.what})
                if Path(error.where).exists():
                    say(f"{error.where}: {key} is left out of all scores: {error.what}")
                continue
            about = {"study": plan.name, "run": name, "seed": run.seed, **condition[name], **inference[key]}
            for part, metric in itertools.product(parts, measured):
                value = metric.value(part.label, part.probability)
                place = {"site": part.site, "role": part.role, "metric": metric.name}
                yield {**about, **place, "value": value, "n": len(part.label)}


def read_table(path: Path) -> pd.DataFrame:
    """Read scores.csv, or a table that is made of it. A site called `01` or `NA` keeps its name."""
    if not path.exists():
        raise UserError(path, "no such file", "score the study first")
    with readable(path, "table"):
        content = path.read_bytes()
    return parse_table(content, path)


def parse_table(content: bytes, path: Path) -> pd.DataFrame:
    """Return the table in the content of the file `path`; see `read_table`.

    Raises UserError where it is not a table, or a column of numbers holds anything else.
    """
    with readable(path, "table"):
        columns = pd.read_csv(io.BytesIO(content), nrows=0).columns
        text = {c: "str" for c in TEXT if c in columns}
        empty: dict[Any, Any] = {c: [] if c in text else [""] for c in columns}
        table = pd.read_csv(io.BytesIO(content), dtype=text, keep_default_na=False, na_values=empty)
        table = table.assign(**{k: table[k].astype(v) for k, v in TYPES.items() if k in columns})
    others = [c for c, kind in table.dtypes.items() if kind.kind not in "iufb" and c not in text]
    if words := [c for c in others if table[c].notna().any()]:
        raise UserError(path, f"the column {words[0]!r} holds words in the place of numbers", "make it again")
    return restored(table)


def missing(plan: Plan, paths: Paths) -> list[dict[str, str]]:
    """Return the predictions that could not be scored: run, inference and why."""
    path = paths.study_files(plan.name).missing
    if not path.exists():
        return []
    content = read_json(path)
    text = dict.fromkeys(("run", "inference", "why"), "text")
    remedy = "score the study again"
    if not isinstance(content, list):
        raise UserError(path, "does not hold a list", remedy)
    return [require_object(path, item, text, remedy=remedy) for item in content]


def blind(predicted: Predictions, samples: Samples) -> pd.DataFrame:
    """Return `chance` and `majority` by PLACE, for metrics that have a chance level.

    `chance` is that of a guess (see `Metric.chance`). `majority` is the score of giving the shares of the
    classes among the test labels of the site for every sample: for accuracy the share of the commonest class.
    """
    rows = []
    known: dict[str, dict[str, Run]] = defaultdict(dict)
    for run in predicted.plan.runs.values():
        known[run.condition][run.partition_id] = run
    levels: dict[tuple[str, ...], list[tuple[tuple[str, str, str], float, float]]] = {}
    for condition, runs in known.items():
        # Conditions on the same partitions have the same test images, and with them the same levels.
        key = next(iter(runs.values())).data.id, *runs
        if key not in levels:
            levels[key] = list(_blind_by_site(predicted, samples, [*runs.values()]))
        rows += [(condition, *place, chance, majority) for place, chance, majority in levels[key]]
    return pd.DataFrame(rows, columns=[*PLACE, "chance", "majority"]).set_index(PLACE)


def _blind_by_site(
    predicted: Predictions, samples: Samples, runs: Sequence[Run]
) -> Iterator[tuple[tuple[str, str, str], float, float]]:
    """Yield role, site and metric with both levels. Nothing where the partition or the labels cannot be read.

    `runs` has one run of each fold.
    """
    run = runs[0]
    try:
        assigned = pd.concat([predicted.partition(fold.partition_id) for fold in runs])
        labels = samples(run.data.id).reindex(columns=["sample", "label"])
    except UserError:
        return
    classes = len(run.data.dataset.classes)
    test = assigned[assigned["split"] == "test"].astype({"sample": str}).drop_duplicates("sample")
    rows = test.merge(labels.dropna().astype({"label": int}), on="sample")
    for place, label in rows.groupby(["role", "site"], sort=False)["label"]:
        role, site = map(str, place)
        shares = np.bincount(label, minlength=classes) / len(label)
        given = np.tile(shares, (len(label), 1))
        for metric in metrics(predicted.plan):
            if not np.isnan(chance := metric.chance(shares)):
                yield (role, site, metric.name), chance, metric.value(label.to_numpy(), given)
