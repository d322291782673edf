"""The headline metric of subgroups of test images, and scores without the patients who have the most images."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from ..core.errors import UserError
from ..datasets import SAMPLE_COLUMNS
from ..io.paths import IDS, INFERENCE
from ..metrics import Metric
from ..study.plan import Plan
from . import estimates, predictions, score
from .conditions import CONDITION, Condition
from .effects import Estimates
from .estimates import Estimate
from .numbers import Names, Numbers, Row, row
from .predictions import Clusters, Part, Predictions, Samples, clusters
from .score import Whole

MOST = 12
"""The most groups of a column that are shown, the largest ones: a column such as age has too many for a table."""
ROLES = ("external", "internal")
COLUMNS = [
    *(*IDS, *CONDITION, *INFERENCE, "column", "group", "role", "metric"),
    *("n", "clusters", "mean", "std", "seeds", "low", "high"),
]


def table(names: Names, numbers: Numbers) -> pd.DataFrame:
    """Return subgroups.csv: the headline metric of each group of test images of a role, over all its sites together.

    There is a row for each condition, inference without labels, column of the study's `subgroups`, group and role. The
    empty group holds images without a value in the column. `n` counts images, and `clusters` what is resampled as a
    whole: patients, source images, or single images if neither is known. `mean` and `std` are over `seeds`; `low` and
    `high` are the 95% interval over clusters and trainings.
    """
    return names.described(numbers.view("subgroup").rename(columns={"patients": "clusters"}))[COLUMNS]


def rows(names: Names, predicted: Predictions, samples: Samples) -> Iterator[Row]:
    """Yield the numbers of subgroups.csv (see `table`) as rows of numbers.parquet.

    Raises UserError for a column that the data do not have.
    """
    for condition in names.conditions.values() if names.plan.study.subgroups else ():
        yield from _of_condition(predicted, condition, samples(condition.run.data.id))


def require(plan: Plan, where: str, known: Iterable[str]) -> dict[str, str]:
    """Return the data's column for each name in the study's `subgroups`; upper and lower case do not matter.

    `known` are the columns of the data. Raises UserError, which names the data by `where`, if a column is missing.
    """
    columns = {str(name).casefold(): str(name) for name in known}
    for name in plan.study.subgroups:
        if name.strip().casefold() not in columns:
            there = ", ".join(columns.values()) or "no further columns"
            raise UserError(f"{plan.path}.subgroups", f"no column {name!r} in {where}", f"it has {there}")
    return {name: columns[name.strip().casefold()] for name in plan.study.subgroups}


def groups(plan: Plan, data: str, samples: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the group of each sample, for each column in the study's `subgroups`; "" for a sample without a value.

    `samples` is the table of samples of the data with the id `data`. Raises UserError for a column that it does not
    have.
    """
    columns = require(plan, f"the data {data}", [c for c in map(str, samples) if c not in SAMPLE_COLUMNS])
    return {name: samples.set_index("sample")[column].fillna("").astype(str) for name, column in columns.items()}


def largest(group: pd.Series) -> list[str]:
    """Return the names of the 12 (MOST) largest groups, sorted, with the group of images without a value last.

    `group` has the group of each sample.
    """
    counts = group.value_counts()
    chosen = sorted(counts.index, key=lambda name: (-counts[name], name))[:MOST]
    return sorted(chosen, key=lambda name: (name == "", name))


def _of_condition(predicted: Predictions, condition: Condition, samples: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the scores of the groups of one condition as rows of numbers.parquet. `samples` is the table of samples."""
    plan = predicted.plan
    metric: Metric = registry.build("metric", plan.study.headline)
    data = condition.run.data.id
    divided = groups(plan, data, samples)
    people = clusters(lambda _: samples, data)
    places = [(column, name, role) for column in divided for name in largest(divided[column]) for role in ROLES]
    for key in condition.inferences:
        if plan.inferences[key].uses_labels:
            continue
        trainings = [(run.seed, table) for run, table in predicted.readable(condition.runs.values(), key)]
        for column, name, role in places if trainings else ():
            parts = [(n, t[(t["role"] == role) & (t["sample"].map(divided[column]) == name)]) for n, t in trainings]
            if all(len(part) for _, part in parts):
                ids = {"condition_id": condition.id, "inference_id": key, "metric": metric.name, "role": role}
                yield _score(metric, parts, people) | ids | {"column": column, "group": name}


def _score(metric: Metric, parts: list[tuple[int, pd.DataFrame]], people: Clusters) -> dict[str, Any]:
    """Return the score of a group of images as a row of numbers.parquet.

    `parts` has the seed of each training with its predictions of the images of the group, and `people` the patients.
    """
    _, first = parts[0]
    tested: set[int] = set()
    trainings = []
    for seed, part in parts:
        label = part["label"].to_numpy()
        probability = part[predictions.probabilities(part)].to_numpy(float)
        # A group of images may lie at several sites: patients are those of the whole dataset.
        cluster = people.of(pd.Index(part["sample"]), "")
        tested |= set(cluster)
        trainings.append(estimates.of_metric(metric, label, probability, cluster, people.group(""), seed))
    score = estimates.over_trainings(trainings)
    return row("subgroup", score, metric.ends) | {"n": len(first), "patients": len(tested)}


Place = tuple[str, str, str]
"""Role, site and id of an inference."""


class Without:
    """The scores of a study without `number` patients at each site, those with the most test samples."""

    def __init__(self, study: Estimates, number: int) -> None:
        self.study = study
        self.number = number

    def level(self, id_: str, role: str, inference: str, metric: str, site: str) -> Estimate | None:
        """Return the score of a condition at a site without its largest patients, or None if there is no score.

        `id_` is the id of the condition, and `inference` the id of the inference.
        """
        return self._of_condition(id_, metric).get((role, site, inference))

    @functools.cache  # noqa: B019 - lives as long as the table is made
    def _of_condition(self, id_: str, metric: str) -> dict[Place, Estimate]:
        """Return the scores of a condition without the largest patients, by role, site and inference."""
        condition = self.study.names.conditions[id_]
        people = self.study.clusters[condition.run.data.id]
        trainings: dict[Place, list[Estimate]] = defaultdict(list)
        for whole in sorted(score.wholes([condition], self.study.predicted), key=lambda whole: whole.seed):
            _, role, site, inference = whole.level
            parts = self._fewer(whole, people)
            trainings[role, site, inference].append(
                score.estimate(self.study.metrics[metric], parts, people, whole.seed)
            )
        return {place: estimates.over_trainings(parts) for place, parts in trainings.items()}

    def _fewer(self, whole: Whole, people: Clusters) -> list[Part]:
        """Return the predictions of all folds at a site (`whole`) without the samples of its largest patients.

        Of patients with equally many samples, the first is left out. At an external site all folds predict the same
        samples, so that the order of patients does not change.
        """
        patients = [people.of(part.samples, part.site) for part in whole.parts]
        largest = np.argsort(-np.bincount(np.concatenate(patients)), kind="stable")[: self.number]
        kept = [~np.isin(patient, largest) for patient in patients]
        return [
            part._replace(samples=part.samples[rows], label=part.label[rows], probability=part.probability[rows])
            for part, rows in zip(whole.parts, kept, strict=True)
        ]
