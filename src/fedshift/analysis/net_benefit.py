"""Decision curves of two-class studies: the net benefit of a model, of treating all, and of treating none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..core.rng import stream
from .clusters import Clusters, clusters
from .conditions import CONDITION, Condition
from .names import IDS, Names
from .operating_point import Scored, scored, two_classes
from .predictions import INFERENCE, Predictions, Samples
from .statistics import bootstrap, interval

FIGURE = "decision_curve"
"""The figure that needs the table."""
POINTS = 46
"""Thresholds of a curve, in equal steps: steps of 0.01 from 0.05 to 0.5."""
COLUMNS = [
    *(*IDS, *CONDITION, "role", "site", *INFERENCE),
    *("threshold", "patients", "samples", "prevalence", "model", "all", "low", "high"),
]


class Benefit(NamedTuple):
    """Contribution of each sample to net benefit, (n, thresholds): with the model, and if all are treated."""

    model: np.ndarray
    everyone: np.ndarray


def benefit(positive: np.ndarray, score: np.ndarray, thresholds: np.ndarray) -> Benefit:
    """Return the net benefit of single samples (n,); the mean over samples is the net benefit of the site.

    A treated positive adds 1, and a treated negative takes t / (1 - t) at the threshold t, so that the mean is
    TP / n - FP / n t / (1 - t) (Vickers and Elkin, Med Decis Making 2006;26:565). Treating none has a net benefit of 0.
    """
    positive, score = np.asarray(positive, dtype=bool), np.asarray(score, dtype=float)
    everyone = np.where(positive[:, None], 1.0, -thresholds / (1 - thresholds))
    return Benefit(np.where(score[:, None] >= thresholds, everyone, 0.0), everyone)


def avoided(model: np.ndarray, everyone: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return how many treatments a model avoids per 100 samples at the same benefit: 100 (model - all) (1 - t) / t."""
    return 100 * (model - everyone) * (1 - thresholds) / thresholds


def bounds(model: np.ndarray, everyone: np.ndarray, patient: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the bounds (2, thresholds) of the model's net benefit minus that of the better default.

    The better of treating all and treating none is chosen anew in each resample of whole patients (n,). NaN below five
    patients.
    """
    _, index = np.unique(patient.astype(str), return_inverse=True)
    sums = np.zeros((index.max() + 1, 2 * model.shape[1]))
    np.add.at(sums, index, np.hstack([model, everyone]))
    counts = np.repeat(np.bincount(index)[:, None].astype(float), sums.shape[1], axis=1)
    with_model, without = np.split(bootstrap(sums, counts, rng), 2, axis=1)
    return np.array([interval(draws) for draws in (with_model - np.maximum(without, 0)).T]).T


def table(names: Names, predicted: Predictions, samples: Samples) -> pd.DataFrame:
    """Return net_benefit.csv: a row for each condition, inference, site and threshold of the declared range.

    `model` is a mean over trainings, and `all` the net benefit of treating everyone. `low` and `high` are the bounds of
    the difference between the model and the better default (see `bounds`), with trainings fixed. The table is empty
    for studies that do not ask for the figure, or have more than two classes.
    """
    plan, rows = names.plan, list[dict[str, Any]]()
    wanted = two_classes(plan) and FIGURE in plan.study.figures
    for condition in names.conditions.values() if wanted else ():
        patients = clusters(samples, condition.run.data.id)
        for key in condition.inferences:
            rows += _rows(predicted, condition, key, patients)
    return names.described(pd.DataFrame(rows))[COLUMNS] if rows else pd.DataFrame(columns=COLUMNS)


def _rows(predicted: Predictions, condition: Condition, key: str, patients: Clusters) -> Iterator[dict[str, Any]]:
    """Yield the rows of one condition and inference."""
    thresholds = np.linspace(*predicted.plan.study.decision_range, POINTS)
    for (site, role), parts in _by_site(predicted, condition, key, patients).items():
        each = [benefit(part.positive, part.score, thresholds) for part in parts]
        model, everyone = np.mean([one.model for one in each], axis=0), each[0].everyone
        rng = stream("decision curve", condition.run.data.id, site)
        low, high = bounds(model, everyone, parts[0].patient, rng)
        about: dict[str, Any] = {"condition_id": condition.id, "inference_id": key, "role": role, "site": site}
        about |= {"patients": len(set(parts[0].patient)), "samples": len(model)}
        about |= {"prevalence": parts[0].positive.mean()}
        columns = {"threshold": thresholds, "model": model.mean(0), "all": everyone.mean(0), "low": low, "high": high}
        yield from ({**about, **dict(zip(columns, row, strict=True))} for row in zip(*columns.values(), strict=True))


def _by_site(
    predicted: Predictions, condition: Condition, key: str, patients: Clusters
) -> dict[tuple[str, str], list[Scored]]:
    """Return the test samples of each site and role, as each training that can be read scores them."""
    parts: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for _, test in predicted.by_site(condition.runs.values(), key):
        for part in test:
            parts[part.site, part.role].append(scored(predicted.plan.study, part, patients))
    return parts
