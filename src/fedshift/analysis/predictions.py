"""The predictions of a study's runs, and the columns that describe an inference in scores.csv."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import UserError
from ..data.prepared import read_partition
from ..io.paths import Paths
from ..io.tables import read_table
from ..study.plan import Plan
from ..study.run import Run

if TYPE_CHECKING:
    import pandas as pd

INFERENCE = ["inference", "momentum", "batch_size", "order"]
"""The columns of scores.csv that describe an inference in words."""
TYPES = {"momentum": "Float64", "batch_size": "Int64", "order": "Int64"}
"""Types of the columns that are neither text nor plain floats."""
SITE = ["site", "role"]
Samples = Callable[[str], "pd.DataFrame"]
"""Returns samples.parquet of prepared data by their id, with sample and site as text, or raises UserError."""


class Missing(UserError):  # noqa: N818 - a study may lack some
    """Predictions that are not there, or that do not hold all test samples with finite probabilities."""


def inferences(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the columns INFERENCE of each inference: name, momentum, batch_size and order.

    Changed settings that have no column of their own are added to the name, so that no two inferences of a study agree
    in all columns.
    """
    columns: dict[str, dict[str, Any]] = {}
    for name, inference in plan.inferences.items():
        shown = inference.score_columns()
        rest = {k: v for k, v in inference.changed().items() if k not in shown or shown[k] != v}
        inside = ", ".join(f"{k}={v}" for k, v in rest.items())
        columns[name] = {"inference": f"{inference.name}({inside})" if inside else inference.name, **shown}
    for group in _groups((name, tuple(about.values())) for name, about in columns.items()):
        for name in group if len(group) > 1 else ():  # columns that say the same of different settings
            columns[name]["inference"] = plan.inferences[name].label
    return columns


def _groups(keyed: Iterable[tuple[str, Hashable]]) -> list[list[str]]:
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for name, key in keyed:
        groups[key].append(name)
    return list(groups.values())


def read(plan: Plan, paths: Paths, run: Run, inference: str, split: str = "test") -> pd.DataFrame:
    """Return the predictions of a run: sample, site, role, label, p0, p1, ... of every test sample, sorted.

    Test samples whose labels the model was adapted to are left out. With `split` val, returns the validation samples
    of internal sites instead, without sites that were not predicted. Raises Missing where the file is not there or is
    incomplete, or has no samples of the split, and UserError where it cannot be read.
    """
    path = paths.predictions(run.id, plan.predictions(run.id)[inference])
    if not path.exists():
        raise Missing(path, why_absent(paths, run.id))
    table = read_table(path)
    if "inference" in table:  # several in one file
        table = table[table["inference"] == inference]
    if "split" in table or split != "test":
        table = table[table["split"] == split] if "split" in table else table[:0]
        table = table.drop(columns="split", errors="ignore")
    classes = probabilities(table)
    if absent := [c for c in ("sample", *SITE, "label") if c not in table]:
        raise UserError(path, f"no column {', '.join(absent)}")
    if len(classes) < 2 or not len(table):
        none = "holds no predictions" if split == "test" else f"holds no predictions of the split {split}"
        raise Missing(path, none if not len(table) else "has no probability columns p0, p1, ...")
    if not np.isfinite(table[classes].to_numpy()).all():
        raise Missing(path, "a probability is NaN or infinite")
    if not table["label"].isin(range(len(classes))).all():
        raise Missing(path, f"a label is outside of 0 to {len(classes) - 1}")
    table = table.astype({"sample": str, "site": str, "role": str, "label": int})
    if partial := _not_whole(paths, run, table, split):
        raise Missing(path, partial)
    if "adapted" in table:
        table = table[~table["adapted"].astype(bool)]
    return table.sort_values(["site", "sample"], ignore_index=True)


def readable(plan: Plan, paths: Paths, runs: Iterable[Run], inference: str) -> Iterator[pd.DataFrame]:
    """Yield the predictions of each run that has them all. Raises UserError for a file that cannot be read."""
    for run in runs:
        try:
            yield read(plan, paths, run, inference)
        except Missing:
            continue  # score() lists it in missing.json


def probabilities(table: pd.DataFrame) -> list[str]:
    """Return the columns p0, p1, ... in this order."""
    columns: list[str] = []
    while (name := f"p{len(columns)}") in table:
        columns.append(name)
    return columns


def why_absent(paths: Paths, run: str) -> str:
    """Return how far a run without predictions came."""
    files = paths.run_files(run)
    if files.manifest.exists():
        return "trained, but not predicted"
    if files.checkpoint.exists():
        return "training stopped before its end; its checkpoint is kept"
    return "not trained, or failed before the first checkpoint"


def _not_whole(paths: Paths, run: Run, table: pd.DataFrame, split: str) -> str:
    """Return what is wrong with predictions that lack test samples, have others, or have some twice; else nothing."""
    if table["sample"].duplicated().any():
        return f"sample {table.loc[table['sample'].duplicated(), 'sample'].iloc[0]!r} is predicted twice"
    partition = paths.partition(run.partition_id)
    if not partition.exists():
        return f"its partition {partition.name} is missing"
    wanted = read_partition(partition)
    sites = run.tested if split == "test" else table["site"].unique()
    wanted = wanted[wanted["site"].astype(str).isin(sites)]
    members = set(wanted.loc[wanted["split"] == split, "sample"].astype(str))
    predicted = set(table["sample"])
    if members - predicted:
        return f"partial: {len(members - predicted)} of {len(members)} {split} samples are not predicted"
    others = len(predicted - members)
    return f"{others} samples are no {split} samples of the partition" if others else ""
