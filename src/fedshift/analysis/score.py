"""Scores of predictions: scores.csv."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..core import registry
from ..core.errors import UserError
from ..io.guards import require_object
from ..io.paths import STUDIES, Paths
from ..io.tables import write_table
from ..io.text import read_json, readable, write_json
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
    *("than_condition_id", "than_inference_id", "than_condition", "than_inference"),
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
    *("column", "group"),
    *("rule", "positive"),
)


def score(plan: Plan, paths: Paths, out: Path | None = None) -> Path:
    """Write scores.csv: every metric of every run, inference and site, one value a row.

    Predictions that are not there or are incomplete are left out and listed, with the reason, in missing.json beside
    it. Raises UserError for a file that is there and cannot be read, and where there are no predictions at all.
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


def command(plan: Plan, paths: Paths, targets: Sequence[Path] = ()) -> str:
    """Return the command that repeats or resumes a study, or makes some of its files. Call it in the project folder."""
    at_home = plan.path.resolve().parent == (paths.root / STUDIES).resolve()
    words = [f"study={plan.name if at_home else plan.path}"]
    if plan.scaled:
        words.append(f"scale={plan.scale}")
    if archives(plan):
        words.append("mirror=DIR")
    files = ["--", *(str(path.relative_to(paths.root)) for path in targets)] if targets else []
    return f"snakemake --cores all --config {' '.join(map(shlex.quote, [*words, *files]))}"


def run_command(plan: Plan, paths: Paths, run: str, placeholder: str = "") -> str:
    """Return the command that trains and predicts one run of a study alone, with all that it needs.

    With a placeholder in the place of its id, the command is the one of all runs with the same inferences.
    """
    return command(plan, paths, [paths.predictions(placeholder or run, job) for job in plan.prediction_jobs[run]])


def run_commands(plan: Plan, paths: Paths) -> dict[str, list[str]]:
    """Return the command of `run_command` with RUN in the place of an id, and the runs that have this command."""
    commands: dict[str, list[str]] = {}
    for run in plan.runs:
        commands.setdefault(run_command(plan, paths, run, "RUN"), []).append(run)
    return commands


def archives(plan: Plan) -> list[str]:
    """Return the names of the archives that cannot be downloaded and must be in the mirror directory."""
    sets = [data.dataset for data in plan.data.values() if not data.synthetic]
    return [source.filename for dataset in sets for source in dataset.sources() if source.url is None]


def metrics(plan: Plan) -> list[Metric]:
    """Return the metrics of a study, with the headline metric where it is not among them."""
    names = dict.fromkeys([*plan.study.metrics, plan.study.headline])
    return [registry.build("metric", name) for name in names]


def _score_rows(plan: Plan, paths: Paths, missing: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of scores.csv. Adds to `missing` the predictions that are not there."""
    condition = {name: one.words for one in conditions(plan).values() for name in one.runs}
    inference, predicted = predictions.inferences(plan), predictions.Predictions(plan, paths)
    for name, run in plan.runs.items():
        for key in plan.predictions(name):
            try:
                table = predicted.read(run, key)
            except predictions.Missing as error:
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
    with readable(path, "table"):
        content = path.read_bytes()
    return parse_tidy(content, path)


def parse_tidy(content: bytes, path: Path) -> pd.DataFrame:
    """Return the table in the content of the file `path`; see `read_tidy`.

    Raises UserError where it is no table, or a column of numbers holds anything else.
    """
    with readable(path, "table"):
        known = pd.read_csv(io.BytesIO(content), nrows=0).columns
        text = {c: "str" for c in _TEXT if c in known}
        empty: dict[Any, Any] = {c: [] if c in text else [""] for c in known}
        table = pd.read_csv(io.BytesIO(content), dtype=text, keep_default_na=False, na_values=empty)
        table = table.astype({k: v for k, v in TYPES.items() if k in known})
    if words := [c for c in known if c not in text and table[c].notna().any() and table[c].dtype.kind not in "iufb"]:
        raise UserError(path, f"the column {words[0]!r} holds words in the place of numbers", "make it again")
    return table


def missing(plan: Plan, paths: Paths) -> list[dict[str, str]]:
    """Return the predictions that could not be scored: run, inference and why."""
    path = paths.study_files(plan.name).missing
    if not path.exists():
        return []
    content, text = read_json(path), dict.fromkeys(("run", "inference", "why"), "text")
    remedy = "score the study again"
    if not isinstance(content, list):
        raise UserError(path, "does not hold a list", remedy)
    return [require_object(path, item, text, remedy=remedy) for item in content]
