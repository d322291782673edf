"""Scores of predictions: scores.csv and its reading, scores over folds and from sums, and what a guess reaches.

**Folds.** The trainings of all folds with one seed count as one training. At an internal site each patient is tested by
the one model that was not trained on that patient, and the score is of all patients together. At an external site the
models of all folds test every patient, and the score is the mean over them. Seeds that some fold lacks are left out.

**Sums.** A real site may send sums over groups of patients instead of a row for each image. An interval then treats a
group as it otherwise treats a patient. It assumes only that groups were drawn at random. There are fewer groups than
patients, so that the interval is wider.
"""

from __future__ import annotations

import io
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..core import registry
from ..core.console import say
from ..core.errors import UserError
from ..io import checksums, identity, tables
from ..io.paths import INFERENCE, LEVELS, TEXT, Paths
from ..io.text import read_json, readable, require_columns, require_object, write_json
from ..metrics import Metric
from ..study import calls
from ..study.plan import Plan
from ..study.run import Run
from . import estimates, predictions
from .conditions import CONDITION, Condition, conditions
from .estimates import Estimate
from .predictions import SITE, TYPES, Clusters, Part, Predictions, Samples
from .values import Value, between, inner, number

PLACE = ["condition_id", "role", "site", "metric"]
"""The columns that identify the level of chance of a metric at a site."""
COLUMNS = ["study", "run", *CONDITION, *SITE, *INFERENCE, "seed", "metric", "value", "n"]
OF_SUMS = dict.fromkeys(("inference", "site", "group", "patients", "label", "predicted", "images"), "anything")
"""The columns of a file of sums that a site sent."""


def score(plan: Plan, paths: Paths, out: Path | None = None) -> Path:
    """Write scores.csv, every metric of every run, inference and site, one value a row; return its path.

    The path is `out`, or the study's own. Missing or incomplete predictions are left out and listed, with the reason,
    in missing.json in the same folder; files that exist and cannot be scored are also named on the screen. Raises
    UserError for a file that cannot be read, and for a study without any predictions.
    """
    out = out or paths.study_files(plan.name).scores
    lost: list[dict[str, str]] = []
    rows = list(_score_rows(plan, paths, lost))
    if not rows:
        first = lost[0]
        problem = f"no predictions of any run (the first: run {first['run']}, {first['inference']}: {first['why']})"
        raise UserError(f"study {plan.name}", problem, f"train and predict first: {calls.snakemake(plan, paths)}")
    write_json(out.with_name("missing.json"), lost)
    tables.write_table(out, pd.DataFrame(rows, columns=COLUMNS).astype(TYPES))
    return out


def is_outdated(plan: Plan, paths: Paths) -> bool:
    """Return whether a study must be scored again: predictions are new, gone or changed, or scores.csv is missing."""
    files = paths.study_files(plan.name)
    if not (files.scores.exists() and files.missing.exists()):
        return True
    listed = {item["run"] for item in missing(plan, paths)}
    scored = files.scores.stat().st_mtime
    files_of = {run: paths.predictions(run, job) for run, job in plan.prediction_jobs.items()}
    return any(file.stat().st_mtime > scored if file.exists() else run not in listed for run, file in files_of.items())


def metrics(plan: Plan) -> list[Metric]:
    """Return the metrics of a study, including its headline metric."""
    names = dict.fromkeys([*plan.study.metrics, plan.study.headline])
    return [registry.build("metric", name) for name in names]


def _score_rows(plan: Plan, paths: Paths, lost: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of scores.csv, and append predictions that are missing or incomplete to `lost`."""
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
    """Return scores.csv, or another table with its columns, from a file. A site called `01` or `NA` keeps its name.

    Raises UserError if the file does not exist or is not such a table.
    """
    if not path.exists():
        raise UserError(path, "no such file", "score the study first: fedshift score STUDY")
    with readable(path, "table"):
        content = path.read_bytes()
    return parse_table(content, path)


def parse_table(content: bytes, path: Path) -> pd.DataFrame:
    """Return the table in the bytes of a CSV file, whose `path` is named in errors.

    Text such as `01` or `NA` is kept in columns of text. Raises UserError if it is not a table, or a column of numbers
    holds text.
    """
    with readable(path, "table"):
        columns = pd.read_csv(io.BytesIO(content), nrows=0).columns
        text = {c: "str" for c in TEXT if c in columns}
        empty: dict[Any, Any] = {c: [] if c in text else [""] for c in columns}
        table = pd.read_csv(io.BytesIO(content), dtype=text, keep_default_na=False, na_values=empty)
        table = table.assign(**{k: table[k].astype(v) for k, v in TYPES.items() if k in columns})
    others = [c for c, kind in table.dtypes.items() if kind.kind not in "iufb" and c not in text]
    if words := [c for c in others if table[c].notna().any()]:
        raise UserError(
            path, f"the column {words[0]!r} holds text instead of numbers", "remove the file, and run the study again"
        )
    return tables.restored(table)


def missing(plan: Plan, paths: Paths) -> list[dict[str, str]]:
    """Return the predictions that were not scored, from missing.json: run, inference and why."""
    path = paths.study_files(plan.name).missing
    content = read_json(path) if path.exists() else []
    text, remedy = dict.fromkeys(("run", "inference", "why"), "text"), "score the study again"
    if not isinstance(content, list):
        raise UserError(path, "is not a JSON list", remedy)
    return [require_object(path, item, text, remedy=remedy) for item in content]


def blind(predicted: Predictions, samples: Samples) -> pd.DataFrame:
    """Return the scores without a model, `chance` and `majority`, indexed by condition, role, site and metric.

    Only metrics with a chance level have them. `chance` is the expected score of a guess (see `Metric.chance`).
    `majority` is the score of predicting the class frequencies of the site's test labels for every sample: for
    accuracy, the frequency of the commonest class.
    """
    rows = []
    known: dict[str, dict[str, Run]] = defaultdict(dict)
    for run in predicted.plan.runs.values():
        known[run.condition][run.partition_id] = run
    levels: dict[tuple[str, ...], list[tuple[str, str, str, float, float]]] = {}
    for condition, runs in known.items():
        # Conditions on the same partitions have the same test images, and with them the same levels.
        key = next(iter(runs.values())).data.id, *runs
        if key not in levels:
            levels[key] = list(_blind_by_site(predicted, samples, [*runs.values()]))
        rows += [(condition, *level) for level in levels[key]]
    return pd.DataFrame(rows, columns=[*PLACE, "chance", "majority"]).set_index(PLACE)


def _blind_by_site(
    predicted: Predictions, samples: Samples, runs: Sequence[Run]
) -> Iterator[tuple[str, str, str, float, float]]:
    """Yield role, site and metric with `chance` and `majority`; nothing if the partition or the labels cannot be read.

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
                yield role, site, metric.name, chance, metric.value(label.to_numpy(), given)


@dataclass(frozen=True)
class Whole:
    """The predictions at a site by the trainings of all folds with one seed.

    Each part has the test samples of one fold.
    """

    condition: Condition
    inference: str
    seed: int
    parts: tuple[Part, ...]

    @property
    def level(self) -> tuple[str, str, str, str]:
        """The id of the condition, role, site and id of the inference."""
        first = self.parts[0]
        return self.condition.id, first.role, first.site, self.inference

    @property
    def samples(self) -> int:
        """The number of tested samples, each counted once: at internal sites, folds test different patients."""
        counts = [len(part.label) for part in self.parts]
        return sum(counts) if self.parts[0].role == "internal" else counts[0]

    def value(self, metric: Metric) -> float:
        """Return the score at the site: of all samples together at an internal site, else the mean over folds."""
        if self.parts[0].role == "internal":
            return joined(metric, self.parts)[0]
        return float(np.mean([metric.value(part.label, part.probability) for part in self.parts]))


def estimate(metric: Metric, parts: Sequence[Part], people: Clusters, seed: int | None = None) -> Estimate:
    """Return the score at a site over folds, with the influence of each patient.

    `parts` has the predictions of each fold, one without folds, and `people` knows the patients of samples.
    """
    group = people.group(parts[0].site)
    patients = [people.of(part.samples, part.site) for part in parts]
    if len(parts) > 1 and parts[0].role == "internal":
        whole, influence = joined(metric, parts)
        return estimates.single(whole, influence, np.concatenate(patients), group, seed, metric.scale)
    return estimates.over_folds(
        [
            estimates.of_metric(metric, part.label, part.probability, patient, group, seed)
            for part, patient in zip(parts, patients, strict=True)
        ]
    )


def joined(metric: Metric, parts: Sequence[Part]) -> tuple[float, np.ndarray | None]:
    """Return a score over folds that test different samples, and the influence (n, ...) of each sample on it.

    The influence is None for a metric without interval. See `Metric.over_folds`.
    """
    label = np.concatenate([part.label for part in parts])
    probability = np.concatenate([part.probability for part in parts])
    fold = np.repeat(np.arange(len(parts)), [len(part.label) for part in parts])
    return metric.over_folds(label, probability, fold)


def wholes(conditions: Iterable[Condition], predicted: Predictions) -> Iterator[Whole]:
    """Yield the predictions of all folds together, for each site, inference and seed that all folds have.

    A condition without folds has one part for each seed.
    """
    for condition in conditions:
        by_seed: dict[int, list[str]] = defaultdict(list)
        for name, run in condition.runs.items():
            by_seed[run.seed].append(name)
        folds = max(map(len, by_seed.values()))
        for inference in condition.inferences:
            for seed, names in by_seed.items():
                runs = [condition.runs[name] for name in names]
                parts = [parts for _, parts in predicted.by_site(runs, inference)]
                if len(parts) == folds:
                    # Each fold has the same sites, in the same order.
                    yield from (Whole(condition, inference, seed, tuple(site)) for site in zip(*parts, strict=True))


def together(scores: pd.DataFrame, conditions: Mapping[str, Condition], predicted: Predictions) -> pd.DataFrame:
    """Return rows of scores.csv in which the folds of one seed are one row, at the place of the first fold.

    `scores` has condition_id, role, site, inference_id, metric, seed, value and n. It is returned unchanged if no
    condition has folds.
    """
    in_folds = {id_: condition for id_, condition in conditions.items() if condition.folded}
    folded = scores["condition_id"].isin([*in_folds])
    if not folded.any():
        return scores
    found = {
        (*whole.level, metric.name, whole.seed): (whole.value(metric), whole.samples)
        for whole in wholes(in_folds.values(), predicted)
        for metric in metrics(predicted.plan)
    }
    rows = scores[folded].drop_duplicates([*LEVELS, "seed"])
    keys = [*rows[[*LEVELS, "seed"]].itertuples(index=False, name=None)]
    kept = [key in found for key in keys]
    values = [found[key] for key in keys if key in found]
    rows = rows[kept].assign(value=[value for value, _ in values], n=[n for _, n in values])
    return pd.concat([scores[~folded], rows]).sort_index().reset_index(drop=True)


class Level(NamedTuple):
    """The scores of a condition at a site that sent sums over groups of patients instead of predictions.

    Attributes
    ----------
    inference : the id of the inference
    images, patients, groups : numbers of test images, of their patients, and of the groups that were summed
    values : the score by metric, with its interval over groups and trainings
    """

    condition: Condition
    inference: str
    site: str
    images: int
    patients: int
    groups: int
    values: dict[Metric, Value]

    @property
    def line(self) -> str:
        """The scores as a line of text for the terminal."""
        told = (f"{inner(m)} {number(value.mean, m)} ({between(value, m)})" for m, value in self.values.items())
        return f"{self.site}, {self.condition.title}, {self.inference}: {', '.join(told)}"


def levels(plan: Plan, paths: Paths) -> Iterator[Level]:
    """Yield the scores that follow from sums, for each condition, inference and site that sent sums.

    Raises UserError for a file of sums that cannot be read, was changed, or belongs to another run.
    """
    decided = [m for m in metrics(plan) if m.decides] or [registry.build("metric", "accuracy")]
    for condition in conditions(plan).values():
        sums = pd.concat([_sums(paths, run) for run in condition.runs.values()], ignore_index=True)
        for (inference, site), rows in sums.groupby(["inference", "site"], sort=False):
            one = rows[rows["seed"] == rows["seed"].iloc[0]]
            members = one.drop_duplicates("group")["patients"]
            values = {metric: _from_sums(metric, rows, len(condition.run.data.dataset.classes)) for metric in decided}
            counts = int(one["images"].sum()), int(members.sum()), len(members)
            yield Level(condition, str(inference), str(site), *counts, values)


def _sums(paths: Paths, run: Run) -> pd.DataFrame:
    """Return the sums that sites sent for a run, with its seed; without rows if no site sent any."""
    path = paths.run_files(run.id).sums
    if not path.exists():
        return pd.DataFrame(columns=[*OF_SUMS, "seed"])
    checksums.require([path])
    identity.require(path, run=run.id)
    table = tables.read_table(path)
    require_columns(path, table, OF_SUMS)
    return table.assign(seed=run.seed)


def _from_sums(metric: Metric, sums: pd.DataFrame, classes: int) -> Value:
    """Return a score at a site from the sums of its trainings, with the interval over groups and trainings.

    A group is a number of patients that the site summed up.
    """
    found = []
    for seed in sums["seed"].unique().tolist():
        rows = sums[sums["seed"] == seed]
        # a line for each image again, of its class and the one it was taken for: all that such a metric reads
        label, predicted, group = np.repeat(rows[["label", "predicted", "group"]].to_numpy(int), rows["images"], 0).T
        one = estimates.of_metric(metric, label, np.eye(classes)[predicted], group, ("", ""), seed)
        if not math.isnan(one.mean):
            found.append(one)
    if not found:
        return Value()
    whole = estimates.over_trainings(found)
    ends = whole.bounded(metric.ends)
    return Value(whole.mean, whole.std, len(whole.values), ends.low, ends.high)
