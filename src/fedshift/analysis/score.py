"""Scores of predictions: scores.csv."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from ..core import registry
from ..core.errors import UserError
from ..io.paths import STUDIES, Paths
from ..io.tables import write_table
from ..io.text import read_json, write_json
from ..metrics import Metric
from ..study.plan import Plan
from . import predictions
from .conditions import CONDITION, conditions
from .predictions import INFERENCE, SITE, TYPES

COLUMNS = ["study", "run", *CONDITION, *SITE, *INFERENCE, "seed", "metric", "value", "n"]
_TEXT = (
    "study",
    "run",
    *("condition_id", "inference_id", "better_ids", "than_ids"),
    "algorithm",
    "bn",
    "addon",
    "held_out",
    "site",
    "role",
    "inference",
    "metric",
    "quantity",
    *("table", "method", "variant", "condition", "verdict", "reason"),
    *("partition", "of", "claim", "sentence", "held", "doubt"),
)


def score(plan: Plan, paths: Paths, out: Path | None = None) -> Path:
    """Write scores.csv: every metric of every run, inference and site, one value a row.

    Predictions that cannot be read are left out and listed, with the reason, in missing.json beside it. Raises
    UserError where none can be read.
    """
    out = out or paths.study_files(plan.name).scores
    missing: list[dict[str, str]] = []
    rows = list(_score_rows(plan, paths, missing))
    if not rows:
        first = missing[0]
        what = f"no predictions of any run (the first: run {first['run']}, {first['inference']}: {first['why']})"
        raise UserError(f"study {plan.name}", what, f"train and predict first: {command(plan, paths)}")
    write_json(out.with_name("missing.json"), missing)
    write_table(out, pd.DataFrame(rows, columns=COLUMNS).astype(TYPES))
    return out


def command(plan: Plan, paths: Paths) -> str:
    """Return the command that repeats or resumes a study. It is called in the project's folder."""
    at_home = plan.path.resolve().parent == (paths.root / STUDIES).resolve()
    words = [f"study={plan.name if at_home else plan.path}", f"scale={plan.scale}"]
    if archives(plan):
        words.append("mirror=DIR")
    return f"snakemake --cores all --config {' '.join(map(shlex.quote, words))}"


def archives(plan: Plan) -> list[str]:
    """Return the names of the archives that cannot be downloaded and must be in the mirror directory."""
    sets = [data.dataset for data in plan.data.values() if not data.synthetic]
    return [source.filename for dataset in sets for source in dataset.sources() if source.url is None]


def metrics(plan: Plan) -> list[Metric]:
    """Return the metrics of a study, with the headline metric where it is not among them."""
    names = dict.fromkeys([*plan.study.metrics, plan.study.headline])
    return [registry.build("metric", name) for name in names]


def _score_rows(plan: Plan, paths: Paths, missing: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of scores.csv. Adds to `missing` the predictions that cannot be read."""
    condition = {name: one.words for one in conditions(plan).values() for name in one.runs}
    inference = predictions.inferences(plan)
    for name, run in plan.runs.items():
        for key in plan.predictions(name):
            try:
                table = predictions.read(plan, paths, run, key)
            except UserError as error:
                missing.append({"run": name, "inference": key, "why": error.what})
                continue
            about = {"study": plan.name, "run": name, "seed": run.seed, **condition[name], **inference[key]}
            classes = predictions.probabilities(table)
            for (site, role), rows in table.groupby(SITE, sort=False):
                label, probability = rows["label"].to_numpy(), rows[classes].to_numpy(dtype=float)
                for metric in metrics(plan):
                    value = metric.value(label, probability)
                    place = {"site": site, "role": role, "metric": metric.name}
                    yield {**about, **place, "value": value, "n": len(rows)}


def read_tidy(path: Path) -> pd.DataFrame:
    """Read scores.csv, or a table that is made of it. A site called `01` or `NA` keeps its name."""
    if not path.exists():
        raise UserError(path, "no such file", "score the study first")
    return parse_tidy(path.read_bytes())


def parse_tidy(content: bytes) -> pd.DataFrame:
    """Return the table in the content of a file; see `read_tidy`."""
    known = pd.read_csv(io.BytesIO(content), nrows=0).columns
    text = {c: "str" for c in _TEXT if c in known}
    empty: dict[Any, Any] = {c: [] if c in text else [""] for c in known}
    table = pd.read_csv(io.BytesIO(content), dtype=text, keep_default_na=False, na_values=empty)
    return table.astype({k: v for k, v in TYPES.items() if k in known})


def missing(plan: Plan, paths: Paths) -> list[dict[str, str]]:
    """Return the predictions that could not be scored: run, inference and why."""
    path = paths.study_files(plan.name).missing
    return list(read_json(path)) if path.exists() else []
