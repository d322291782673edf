"""Average precision."""

from __future__ import annotations

import numpy as np

from ._base import Metric, compared, reached


class AP(Metric):
    """Average precision of class 1, the area under its precision-recall curve; NaN if labels have only one class.

    It is the sum of (R_k - R_(k-1)) P_k over distinct scores, without interpolation, as in scikit-learn. With more than
    two classes, it is the mean over the present classes, each against all others. The value of a random model is the
    share of positive samples.
    """

    title = "Average precision"
    percent = False
    by_class = True
    logit = True
    caveat = (
        "Average precision depends on the share of positive samples, which is its value for a model that knows nothing:"
        " sites with unlike shares cannot be compared by it."
    )
    interval_note = (
        "The interval of an average precision is made on the logit scale, with the change of the score by the weight "
        "of each patient, to first order; where it is 1, half a pair of patients counts as wrongly ordered."
    )

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        if len(np.unique(label)) < 2:
            return float("nan")
        scores = [_average(label == c, probability[:, c]) for c in compared(label, probability)]
        return float(np.mean(scores))

    def influence(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        """Return the derivative of the score by the weight of each sample, (n, 2 c) for c compared classes.

        Each class has two columns: one for its own samples, and one for all others; elsewhere they are NaN. So
        an interval needs patients of both.
        """
        if len(np.unique(label)) < 2:
            return np.full((len(label), 1), np.nan)
        classes = compared(label, probability)
        columns = []
        for c in classes:
            derivative = _derivative(label == c, probability[:, c]) / len(classes)
            columns += [np.where(side, derivative, np.nan) for side in (label == c, label != c)]
        return np.stack(columns, 1)

    def chance(self, shares: np.ndarray) -> float:
        if len(shares) == 2:
            return float(shares[1])
        return float(shares[shares > 0].mean())


def _average(positive: np.ndarray, score: np.ndarray) -> float:
    """Return the average precision of samples (n,), at least one of which is positive."""
    found, flagged = reached(positive, score)
    return float((np.diff(found, prepend=0) * (found / flagged)).sum() / found[-1])


def _derivative(positive: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Return the derivative of the average precision by the weight of each sample (n,), where all weights are 1.

    With P positives and, among the samples that score s or more, a share p(s) of positives among N(s), it is
    [y_j (p(s_j) - AP) + the sum of (y_j - p(s)) / N(s) over positives that score s_j or less] / P.
    """
    found, flagged = reached(positive, score)
    precision = found / flagged
    gained = np.diff(found, prepend=0)
    average = (gained * precision).sum() / found[-1]
    # Sums over all scores that are s_j or less: from the end.
    below = np.cumsum((gained / flagged)[::-1])[::-1]
    correction = np.cumsum((gained * precision / flagged)[::-1])[::-1]
    _, ascending = np.unique(score, return_inverse=True)
    at = len(found) - 1 - ascending
    return (positive * (precision - average + below)[at] - correction[at]) / found[-1]
