"""Average precision."""

from __future__ import annotations

import numpy as np

from ._base import Metric, Resampler
from ._one_vs_rest import compared


class AP(Metric):
    """Average precision of class 1, the area under its steps of precision by recall; NaN if there is only one class.

    It is the sum of (R_k - R_(k-1)) P_k over distinct scores, without interpolation, as in scikit-learn. With more than
    two classes, the mean over the classes that are present, each against the rest. A model that knows nothing has the
    share of the class.
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
        "The interval of an average precision at a site has the percentiles of its own values in the resamples; those "
        "without either class are left out. With several trainings or sites, its variance is that of these values, and "
        "the interval is made on the logit scale. There is none where the value is 0 or 1. Differences between "
        "conditions take the change of the score with the weight of each patient, to first order."
    )

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        from sklearn.metrics import average_precision_score

        if len(np.unique(label)) < 2:
            return float("nan")
        scores = [average_precision_score(label == c, probability[:, c]) for c in compared(label, probability)]
        return float(np.mean(scores))

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        """Return three columns for each class, whose mean changes with the weight of a sample as the score does.

        That is so to first order: the first column is the score plus 3 n times its derivative by the weight of the
        sample (the infinitesimal jackknife). The others hold the score itself for the samples of the class and for the
        rest, without any variance: either must be there.
        """
        if len(np.unique(label)) < 2:
            return np.full((len(label), 1), np.nan)
        columns = []
        for c in compared(label, probability):
            curve = _Curve(label == c, probability[:, c])
            score = curve.resampled(np.ones((1, len(label))))[0]
            columns.append(score + 3 * len(label) * curve.derivative())
            columns += [np.where(side, score, np.nan) for side in (label == c, label != c)]
        return np.stack(columns, 1)

    def resampler(self, label: np.ndarray, probability: np.ndarray) -> Resampler:
        """Return a function from weights of samples (draws, n) to scores (draws,); NaN where a draw lacks a class."""
        curves = [_Curve(label == c, probability[:, c]) for c in compared(label, probability)]
        return lambda weights: np.mean([curve.resampled(weights) for curve in curves], axis=0)

    def chance(self, shares: np.ndarray) -> float:
        return float(shares[1]) if len(shares) == 2 else float(shares[shares > 0].mean())


class _Curve:
    """Samples in the order of their scores (n,), the highest first, with the last sample of each distinct score."""

    def __init__(self, positive: np.ndarray, score: np.ndarray) -> None:
        self.order = np.argsort(-score, kind="stable")
        self.positive = positive[self.order]
        self.last = np.flatnonzero(np.append(np.diff(score[self.order]) != 0, True))
        self.place = np.flatnonzero(self.positive)
        number = np.searchsorted(self.place, self.last, side="right")
        self.steps = np.flatnonzero(np.diff(number, prepend=0))  # only scores of positive samples add anything
        self.found = number[self.steps] - 1

    def resampled(self, weights: np.ndarray) -> np.ndarray:
        """Return the average precision (draws,) of samples that count `weights` times (draws, n)."""
        ordered = weights.take(self.order, axis=1)
        found = ordered.take(self.place, axis=1).cumsum(1).take(self.found, axis=1)
        flagged = ordered.cumsum(1)
        both = (found[:, -1] > 0) & (found[:, -1] < flagged[:, -1])
        flagged = flagged.take(self.last[self.steps], axis=1)
        precision = np.divide(found, flagged, out=np.zeros_like(found), where=flagged > 0)
        total = np.einsum("ij,ij->i", np.diff(found, axis=1, prepend=0), precision)
        return np.divide(total, found[:, -1], out=np.full(len(weights), np.nan), where=both)

    def derivative(self) -> np.ndarray:
        """Return the derivative of the average precision by the weight of each sample (n,), where all weights are 1.

        With P positives and, among the samples that score s or more, a share p(s) of positives among N(s), it is
        [y_j (p(s_j) - AP) + the sum of (y_j - p(s)) / N(s) over positives that score s_j or less] / P.
        """
        flagged, found = self.last + 1.0, self.positive.cumsum()[self.last]
        precision, gained = found / flagged, np.diff(found, prepend=0)
        score = (gained * precision).sum() / found[-1]
        below, correction = (np.cumsum(x[::-1])[::-1] for x in (gained / flagged, gained * precision / flagged))
        at = np.searchsorted(self.last, np.arange(len(self.order)))
        out = np.empty(len(self.order))
        out[self.order] = self.positive * (precision - score + below)[at] - correction[at]
        return out / found[-1]
