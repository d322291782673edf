"""Curves over all thresholds for studies with two classes: net benefit (decision curves), and ROC curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..io.paths import IDS, INFERENCE
from ..metrics import reached
from . import estimates
from .conditions import CONDITION, Condition
from .estimates import Estimate, Group
from .findings import Findings
from .numbers import Names
from .operating_point import Scored, positive_class, scored, together
from .predictions import Clusters, Predictions, Samples, clusters

FIGURE = "decision_curve"
"""Name of the figure that shows net_benefit.csv, which is made only for studies with this figure."""
POINTS = 46
"""Number of thresholds of a decision curve: steps of 0.01 from 0.05 to 0.5, unless the study sets another range."""
COLUMNS = [
    *(*IDS, *CONDITION, "role", "site", *INFERENCE),
    *("threshold", "patients", "samples", "prevalence", "model", "all", "low", "high"),
]
GRID = np.linspace(0, 1, 101)
"""False-positive rates at which the ROC curves of trainings are averaged."""
CURVES = ["condition_id", "inference_id", "role", "site", "false_positives", "sensitivity"]


class Benefit(NamedTuple):
    """Contributions of samples to net benefit (n, thresholds): with the `model`, and if `everyone` is treated."""

    model: np.ndarray
    everyone: np.ndarray


def benefit(positive: np.ndarray, score: np.ndarray, thresholds: np.ndarray) -> Benefit:
    """Return the contribution of each sample (n,) to net benefit; their mean is the net benefit at the site.

    `positive` and `score` (n,) are true classes (bool) and probabilities of the positive class. A treated positive adds
    1, and a treated negative -t / (1 - t) at the threshold t, so that the mean is TP / n - FP / n t / (1 - t) (Vickers
    and Elkin, Med Decis Making 2006;26:565). Treating none has a net benefit of 0.
    """
    positive = np.asarray(positive, dtype=bool)
    score = np.asarray(score, dtype=float)
    everyone = np.where(positive[:, None], 1.0, -thresholds / (1 - thresholds))
    return Benefit(np.where(score[:, None] >= thresholds, everyone, 0.0), everyone)


def difference(given: Benefit, cluster: np.ndarray, group: Group, seed: int | None = None) -> Estimate:
    """Return the net benefit of the model minus the better of treating all and treating none, at one threshold.

    `given` has the contributions of samples (n,), and `cluster` (n,) the numbers of their patients. Which of the two is
    better is decided on these samples.
    """
    gained = given.model
    if given.everyone.mean() > 0:  # else treating none, whose net benefit is 0, is the better default
        gained = given.model - given.everyone
    return estimates.single(float(gained.mean()), (gained - gained.mean()) / len(gained), cluster, group, seed)


def table(names: Names, predicted: Predictions, samples: Samples) -> pd.DataFrame:
    """Return net_benefit.csv: a row for each condition, inference, site and threshold of the study's range.

    `model` is the net benefit of the model, as mean over trainings, and `all` the net benefit of treating everyone.
    `low` and `high` bound the difference between the model and the better of treating all and none, over patients and
    trainings. The table is empty for studies without the figure `decision_curve`, or with more than two classes.
    """
    plan = names.plan
    rows = list[dict[str, Any]]()
    wanted = plan.study.two_classes and FIGURE in plan.study.figures
    for condition in names.conditions.values() if wanted else ():
        patients = clusters(samples, condition.run.data.id)
        for key in condition.inferences:
            rows += _rows(predicted, condition, key, patients)
    return names.table(rows, COLUMNS)


def _rows(predicted: Predictions, condition: Condition, key: str, patients: Clusters) -> Iterator[dict[str, Any]]:
    """Yield the rows of net_benefit.csv for one condition and inference (`key`)."""
    thresholds = np.linspace(*predicted.plan.study.decision_range, POINTS)
    for (site, role), parts in _by_site(predicted, condition, key, patients).items():
        trainings = [benefit(part.positive, part.score, thresholds) for part in parts]
        model = np.mean([training.model for training in trainings], axis=0)
        everyone = trainings[0].everyone  # the same for all trainings
        people = parts[0].patient, parts[0].group
        low, high = zip(*(_bounds(trainings, k, *people) for k in range(POINTS)), strict=True)
        about: dict[str, Any] = {"condition_id": condition.id, "inference_id": key, "role": role, "site": site}
        about |= {"patients": len(np.unique(parts[0].patient)), "samples": len(model)}
        about |= {"prevalence": parts[0].positive.mean()}
        columns = {"threshold": thresholds, "model": model.mean(0), "all": everyone.mean(0), "low": low, "high": high}
        yield from ({**about, **dict(zip(columns, row, strict=True))} for row in zip(*columns.values(), strict=True))


def _bounds(trainings: Sequence[Benefit], k: int, cluster: np.ndarray, group: Group) -> tuple[float, float]:
    """Return the interval of the model's gain over treating all or none, whichever is better, at threshold number k.

    The interval is over patients and trainings. `cluster` (n,) are the numbers of the patients of the samples.
    """
    at_threshold = (Benefit(training.model[:, k], training.everyone[:, k]) for training in trainings)
    differences = [difference(one, cluster, group, n) for n, one in enumerate(at_threshold)]
    return estimates.over_trainings(differences).interval()


def _by_site(
    predicted: Predictions, condition: Condition, key: str, patients: Clusters
) -> dict[tuple[str, str], list[Scored]]:
    """Return the labels and scores of the test samples by site and role, with one entry for each training.

    At an internal site, the trainings of all folds with one seed are joined into one entry. Trainings without
    predictions under the inference `key` are left out.
    """
    parts: dict[tuple[str, str], dict[tuple[int, int], list[Scored]]] = defaultdict(lambda: defaultdict(list))
    for run, test in predicted.by_site(condition.runs.values(), key):
        for part in test:
            fold = 0 if part.role == "internal" else run.partition.split.fold or 0
            parts[part.site, part.role][run.seed, fold].append(scored(predicted.plan.study, part, patients))
    return {place: [*map(together, trainings.values())] for place, trainings in parts.items()}


def curve(positive: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of the ROC curve of samples (n,), from (0, 0) to (1, 1), as two arrays (k,).

    The first array has false-positive rates, the second true-positive rates (sensitivity). Thresholds are the observed
    scores from the highest down, and equal scores share a corner.
    """
    found, flagged = (np.append(0, counts) for counts in reached(positive, score))
    false = flagged - found
    return false / false[-1], found / found[-1]


def mean_curve(trainings: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the mean sensitivity (101,) of the ROC curves of trainings at false-positive rates from 0 to 1.

    `trainings` holds the corners of each curve. A curve is linear between its corners, so that the area under it is its
    AUC. Where it rises vertically, its upper end counts (vertical averaging, Fawcett, Pattern Recognit Lett
    2006;27:861).
    """
    curves = []
    for false_positives, sensitivity in trainings:
        x, highest = np.unique(false_positives[::-1], return_index=True)
        curves.append(np.interp(GRID, x, sensitivity[::-1][highest]))
    return np.mean(curves, axis=0)


def roc(findings: Findings, predicted: Predictions) -> pd.DataFrame:
    """Return the mean ROC curve of each condition and external site, with rows for 101 false-positive rates.

    Without external sites, internal sites have curves. They are made for the inference whose scores are reported, and
    for the one compared with it. A site with a single class has no curve, and a study with more than two classes has
    none.
    """
    conditions = findings.conditions if findings.plan.study.two_classes else ()
    rows = [row for condition in conditions for row in _curves(findings, condition, predicted)]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=CURVES)


def _curves(findings: Findings, condition: Condition, predicted: Predictions) -> Iterator[pd.DataFrame]:
    """Yield the mean ROC curve of each site for one condition."""
    positive = positive_class(findings.plan.study)
    keys = dict.fromkeys((condition.level_inference, condition.compared_inference))
    shown = "external" if condition.partition.external else "internal"
    for key in keys:
        if key not in condition.inferences:
            continue
        trainings: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
        for _, parts in predicted.by_site(condition.runs.values(), key):
            for part in parts:
                flagged = part.label == positive
                if part.role == shown and 0 < flagged.sum() < len(flagged):
                    trainings[part.site].append(curve(flagged, part.probability[:, positive]))
        for site, corners in trainings.items():
            about = {"condition_id": condition.id, "inference_id": key, "role": shown, "site": site}
            yield pd.DataFrame({"false_positives": GRID, "sensitivity": mean_curve(corners)}).assign(**about)[CURVES]
