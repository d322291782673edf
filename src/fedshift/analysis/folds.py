"""Scores over folds: at home of all folds' patients together, and outside as means over the models of the folds.

The unit is a seed: the trainings of all folds with one seed are one training of the whole. At an internal site each of
its patients is tested by the one model that was not trained on them. At an external site every patient is tested by the
models of all folds. Seeds that some fold lacks are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..metrics import Metric
from . import estimates
from .conditions import Condition
from .estimates import Estimate
from .numbers import LEVELS
from .predictions import Clusters, Part, Predictions


@dataclass(frozen=True)
class Whole:
    """What the trainings of all folds with one seed predict at a site, one part for each fold."""

    condition: Condition
    inference: str
    seed: int
    parts: tuple[Part, ...]

    @property
    def level(self) -> tuple[str, str, str, str]:
        """The ids of condition and inference with role and site, in the order of LEVELS."""
        first = self.parts[0]
        return self.condition.id, first.role, first.site, self.inference

    @property
    def samples(self) -> int:
        """The number of samples that are tested, each once: at an internal site, each fold has other patients."""
        counts = [len(part.label) for part in self.parts]
        return sum(counts) if self.parts[0].role == "internal" else counts[0]


def value(metric: Metric, parts: Sequence[Part]) -> float:
    """Return the score at a site over the folds: of all samples at home, and else the mean of the folds."""
    if parts[0].role == "internal":
        return joined(metric, parts)[0]
    return float(np.mean([metric.value(part.label, part.probability) for part in parts]))


def estimate(metric: Metric, parts: Sequence[Part], people: Clusters, seed: int | None = None) -> Estimate:
    """Return the score at a site over the folds, with the influence of each patient; a single part is one training."""
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
    """Return a score over folds with other samples each, and the influence of each sample on it (see `over_folds`)."""
    label = np.concatenate([part.label for part in parts])
    probability = np.concatenate([part.probability for part in parts])
    fold = np.repeat(np.arange(len(parts)), [len(part.label) for part in parts])
    return metric.over_folds(label, probability, fold)


def wholes(conditions: Iterable[Condition], predicted: Predictions) -> Iterator[Whole]:
    """Yield what all folds of a condition predict at a site, for each seed and inference that all of them have.

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


def together(
    scores: pd.DataFrame, conditions: Mapping[str, Condition], predicted: Predictions, metrics: Sequence[Metric]
) -> pd.DataFrame:
    """Return rows of scores.csv in which the rows of all folds with one seed are one row, in the place of the first.

    `scores` has the columns LEVELS, seed, value and n. Without folds it is returned as it is.
    """
    in_folds = {id_: condition for id_, condition in conditions.items() if condition.folded}
    folded = scores["condition_id"].isin([*in_folds])
    if not folded.any():
        return scores
    found = {
        (*whole.level, metric.name, whole.seed): (value(metric, whole.parts), whole.samples)
        for whole in wholes(in_folds.values(), predicted)
        for metric in metrics
    }
    rows = scores[folded].drop_duplicates([*LEVELS, "seed"])
    keys = [*rows[[*LEVELS, "seed"]].itertuples(index=False, name=None)]
    kept = [key in found for key in keys]
    values = [found[key] for key in keys if key in found]
    rows = rows[kept].assign(value=[value for value, _ in values], n=[n for _, n in values])
    return pd.concat([scores[~folded], rows]).sort_index().reset_index(drop=True)
