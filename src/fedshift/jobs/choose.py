"""The choice of a search: the training with the best value of a metric becomes the searched run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import registry
from ..core.errors import UserError
from ..io import checksums, identity
from ..io.paths import Paths
from ..io.tables import read_table
from ..io.text import require_columns, require_object, write_json
from .accept import twin
from .record import read_manifest

if TYPE_CHECKING:
    from ..inferences import Inference
    from ..metrics import Metric
    from ..study.run import Run

CHOICE = "search"
"""The entry of a searched run's manifest that records the candidates and the choice."""


@dataclass(frozen=True)
class Candidate:
    """One training of a search: its run id, the searched values, its score (None if undefined), and its seconds."""

    run: str
    values: Mapping[str, Any]
    score: float | None
    seconds: float


@dataclass(frozen=True)
class Choice:
    """The record of a search: the id of the `chosen` candidate among all, compared by a `metric`, or by `loss`.

    `inference` is the id of the inference whose test predictions were compared; None if validation values were.
    """

    metric: str
    inference: str | None
    chosen: str
    candidates: list[Candidate]

    @property
    def chosen_at_edge(self) -> str:
        """The first setting whose chosen value is the lowest or highest of the numbers tried; "" if there is none."""
        best = next(candidate for candidate in self.candidates if candidate.run == self.chosen)
        for name, value in best.values.items():
            tried = [candidate.values[name] for candidate in self.candidates]
            if all(isinstance(v, int | float) for v in tried) and value in (min(tried), max(tried)):
                return name
        return ""


@dataclass(frozen=True)
class Oracle:
    """A rule that chooses by the test data of external sites: a metric of the predictions of one inference.

    `inference` is the inference's id, and `sweep` the name of the job that makes its predictions.
    """

    metric: Metric
    inference: str
    sweep: str


def choose(run: Run, paths: Paths, oracle: Oracle | None = None) -> None:
    """Write the files of a searched run: those of its best candidate, with the record of the choice in the manifest.

    The best candidate has the best validation value in its selected round; with an `oracle`, the best mean of the
    oracle's metric over external sites. Of equal candidates the first counts. A candidate whose value is not a number
    cannot be chosen. Raises UserError if no candidate has a value.
    """
    manifests = {key: read_manifest(paths.run_files(key).manifest) for key in run.candidates}
    if oracle:
        name = oracle.metric.name
        higher = oracle.metric.higher_is_better
        for key in run.candidates:
            identity.require(paths.predictions(key, oracle.sweep), run=key)
        scores = {key: _outside(paths.predictions(key, oracle.sweep), oracle) for key in run.candidates}
    else:
        name = run.training.select_by or "accuracy"
        metric: Metric | None = None if name == "loss" else registry.build("metric", name)
        higher = metric is not None and metric.higher_is_better  # the loss is better if it is lower
        scores = {key: _finite(manifest.get("best_value")) for key, manifest in manifests.items()}
    defined = {key: score for key, score in scores.items() if score is not None}
    if not defined:
        problem = f"no candidate of the search has a value of {name}"
        raise UserError(f"run {run.id}", problem, "give this run one value of each setting")
    # Of equal candidates both return the first, in the order of the study.
    best = max(defined, key=defined.__getitem__) if higher else min(defined, key=defined.__getitem__)
    candidates = [
        Candidate(key, values, scores[key], float(manifests[key].get("seconds") or 0))
        for key, values in run.tried().items()
    ]
    record = Choice(name, oracle.inference if oracle else None, best, candidates)
    source, files = paths.run_files(best), paths.run_files(run.id)
    for file in source.trained:
        if file != source.manifest:
            twin(file, files.folder / file.name)
    write_json(files.manifest, {**manifests[best], "run": run.id, CHOICE: asdict(record)})
    checksums.record(files.manifest)


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _outside(file: Path, oracle: Oracle) -> float | None:
    """Return the mean of the oracle's metric over the external sites at which it is defined; None if it is at none.

    `file` is a table of predictions.
    """
    table = read_table(file)
    require_columns(file, table, {"site": "text", "role": "text", "split": "text", "label": "whole numbers"})
    rows = table[(table["role"] == "external") & (table["split"] == "test")]
    if "inference" in rows:
        rows = rows[rows["inference"] == oracle.inference]
    classes = list(itertools.takewhile(rows.columns.__contains__, map("p{}".format, itertools.count())))
    sites = [part for _, part in rows.groupby("site")]
    values = [oracle.metric.value(part["label"].to_numpy(), part[classes].to_numpy(dtype=float)) for part in sites]
    defined = [value for value in values if math.isfinite(value)]
    return sum(defined) / len(defined) if defined else None


def choice(path: Path, manifest: Mapping[str, Any]) -> Choice | None:
    """Return the record of the search from a run's manifest, the file `path`; None if the run was not searched.

    Raises UserError for a record that is wrong.
    """
    if CHOICE not in manifest:
        return None
    record = require_object(path, manifest[CHOICE], _RECORD, {"inference": "text"})
    candidates = []
    for entry in record["candidates"]:
        require_object(path, entry, _CANDIDATE, {"score": "a number"})
        candidates.append(Candidate(entry["run"], entry["values"], entry.get("score"), entry["seconds"]))
    settings = {tuple(candidate.values) for candidate in candidates}
    if len(settings) > 1 or record["chosen"] not in {candidate.run for candidate in candidates}:
        raise UserError(path, "the record of its search does not fit together", "remove it, and choose again")
    return Choice(record["metric"], record.get("inference"), record["chosen"], candidates)


_RECORD = {"metric": "text", "chosen": "text", "candidates": "a list"}
_CANDIDATE = {"run": "text", "values": "a mapping", "seconds": "a number"}


def oracle(metric: str, sweep: str, inferences: Mapping[str, Inference]) -> Oracle:
    """Return the rule that chooses runs by test scores: by the metric of this name, under the first of the inferences.

    `sweep` is the name of the job that makes the predictions of `inferences`, by id.
    """
    return Oracle(registry.build("metric", metric), next(iter(inferences)), sweep)
