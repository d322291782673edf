"""ROC curves of two-class studies: sensitivity by the share of negatives that are flagged, site by site."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..metrics import reached
from .conditions import Condition
from .findings import Findings
from .operating_point import positive_class
from .predictions import Predictions

GRID = np.linspace(0, 1, 101)
"""Shares of negatives at which the curves of trainings are averaged."""
COLUMNS = ["condition_id", "inference_id", "role", "site", "false_positives", "sensitivity"]


def curve(positive: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of the ROC curve of samples (n,), from (0, 0) to (1, 1), both (k,).

    The first array is the share of negatives that reach a threshold, the second that of positives, which is the
    sensitivity. The threshold falls over all observed scores, and equal scores share a corner.
    """
    found, flagged = (np.append(0, counts) for counts in reached(positive, score))
    false = flagged - found
    return false / false[-1], found / found[-1]


def mean_curve(trainings: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the sensitivity at each share of GRID, (101,), the mean over the ROC curves of trainings.

    Between its corners a curve is straight, so that the area under it is its AUC; where it rises upright, the upper end
    counts (vertical averaging, Fawcett, Pattern Recognit Lett 2006;27:861).
    """
    return np.mean([_at(GRID, *corners) for corners in trainings], axis=0)


def _at(shares: np.ndarray, false_positives: np.ndarray, sensitivity: np.ndarray) -> np.ndarray:
    """Return the sensitivity at shares of negatives; the highest one where a curve rises upright."""
    x, first = np.unique(false_positives[::-1], return_index=True)
    return np.interp(shares, x, sensitivity[::-1][first])


def table(findings: Findings, predicted: Predictions) -> pd.DataFrame:
    """Return the mean ROC curve of each condition and external site, with a row for each share of GRID.

    Without external sites the internal ones have curves. The inferences are that of the levels and the one compared
    with it. A site of one class has no curve, and neither has a study with more than two classes.
    """
    rows = []
    if findings.plan.study.two_classes:
        rows = [row for condition in findings.conditions for row in _rows(findings, condition, predicted)]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=COLUMNS)


def _rows(findings: Findings, condition: Condition, predicted: Predictions) -> Iterator[pd.DataFrame]:
    """Yield the curves of one condition."""
    positive = positive_class(findings.plan.study)
    keys = dict.fromkeys((findings.level_inference(condition), findings.compared_inference(condition)))
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
            yield pd.DataFrame({"false_positives": GRID, "sensitivity": mean_curve(corners)}).assign(**about)[COLUMNS]
