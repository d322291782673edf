"""From predictions to scores.csv."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from ..core import registry
from ..core.errors import UserError
from ..io.paths import Paths
from ..io.tables import write_table
from ..io.text import read_json, write_json
from ..metrics import Metric
from ..study.plan import Plan
from . import predictions
from .predictions import CONDITION, INFERENCE, SITE

STUDIES = Path("config", "studies")
"""Where a study is found by its name."""
COLUMNS = ["study", "run", *CONDITION, *SITE, *INFERENCE, "seed", "metric", "value", "n"]
TYPES = {"momentum": "Float64", "batch_size": "Int64", "order": "Int64"}
"""Of the columns that are no plain floats."""
_TEXT = (
    "study",
    "run",
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
    *("claim", "sentence", "held", "doubt"),
)


def score(plan: Plan, paths: Paths, out: Path | None = None) -> Path:
    """Writes scores.csv: every metric of every run, inference and site, one value a row.

    What cannot be read is left out and listed, with the reason, in missing.json beside it. UserError where
    nothing can be read.
    """
    out = out or paths.study(plan.name) / "scores.csv"
    missing: list[dict[str, str]] = []
    rows = list(_rows(plan, paths, missing))
    if not rows:
        first = missing[0]
        what = f"no predictions of any run (the first: run {first['run']}, {first['inference']}: {first['why']})"
        raise UserError(f"study {plan.name}", what, f"train and predict first: {command(plan, paths)}")
    write_json(out.with_name("missing.json"), missing)
    write_table(out, pd.DataFrame(rows, columns=COLUMNS).astype(TYPES))
    return out


def command(plan: Plan, paths: Paths) -> str:
    """What repeats, or resumes, a study, called in the project's folder."""
    at_home = plan.path.resolve().parent == (paths.root / STUDIES).resolve()
    words = [f"study={plan.name if at_home else plan.path}", f"scale={plan.scale}"]
    if archives(plan):
        words.append("mirror=DIR")
    return f"snakemake --cores all --config {' '.join(map(shlex.quote, words))}"


def archives(plan: Plan) -> list[str]:
    """Archives that nothing but the mirror directory has."""
    sets = [data.dataset for data in plan.data.values() if not data.synthetic]
    return [source.filename for dataset in sets for source in dataset.sources() if source.url is None]


def metrics(plan: Plan) -> list[Metric]:
    """The metrics of a study, the headline first where it is not among them."""
    names = dict.fromkeys([*plan.study.metrics, plan.study.headline])
    return [registry.build("metric", name) for name in names]


def _rows(plan: Plan, paths: Paths, missing: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """The rows of scores.csv. Adds to `missing` what cannot be read."""
    condition, inference = predictions.conditions(plan), predictions.inferences(plan)
    for name, run in plan.runs.items():
        for how in plan.predictions(name):
            try:
                table = predictions.read(plan, paths, run, how)
            except UserError as error:
                missing.append({"run": name, "inference": how, "why": error.what})
                continue
            about = {"study": plan.name, "run": name, "seed": run.seed, **condition[name], **inference[how]}
            classes = predictions.probabilities(table)
            for (site, role), group in table.groupby(SITE, sort=False):
                label, probability = group["label"].to_numpy(), group[classes].to_numpy(dtype=float)
                for metric in metrics(plan):
                    value = metric.value(label, probability)
                    yield {
                        **about,
                        "site": site,
                        "role": role,
                        "metric": metric.name,
                        "value": value,
                        "n": len(group),
                    }


def read_tidy(path: Path) -> pd.DataFrame:
    """scores.csv, or a table that is made of it. A site called `01` or `NA` stays what it is."""
    if not path.exists():
        raise UserError(path, "no such file", "score the study first")
    known = pd.read_csv(path, nrows=0).columns
    text = {c: "str" for c in _TEXT if c in known}
    empty: dict[Any, Any] = {c: [] if c in text else [""] for c in known}
    table = pd.read_csv(path, dtype=text, keep_default_na=False, na_values=empty)
    return table.astype({k: v for k, v in TYPES.items() if k in known})


def missing(plan: Plan, paths: Paths) -> list[dict[str, str]]:
    """What could not be scored: run, inference and why."""
    path = paths.study(plan.name) / "missing.json"
    return list(read_json(path)) if path.exists() else []
