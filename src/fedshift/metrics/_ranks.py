"""Samples by their score: ranks, placements, counts above thresholds, and the classes that are compared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


def compared(label: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """Return the classes that are compared with the rest: class 1 of two; of more, those that are present."""
    if probability.shape[1] == 2:
        return np.array([1])
    return np.unique(label)


class Placements(NamedTuple):
    """The area under a ROC curve with its placements.

    Attributes
    ----------
    area : float
        The area under the curve.
    placement : np.ndarray
        For each sample (n,): the share of negatives below it if it is positive (V10), and the share of positives above
        it if it is negative (V01). Ties count one half. Their mean over either class is `area`.
    """

    area: float
    placement: np.ndarray


def midranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks (n,) of values, from 1; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[place]


def placements(positive: np.ndarray, score: np.ndarray) -> Placements:
    """Return the area under the ROC curve and the placements of samples (n,), of which both classes must be there.

    With midranks T over all samples and over each class alone, V10 = (T - T_positive) / n and
    V01 = 1 - (T - T_negative) / m for m positives and n negatives (Sun and Xu, IEEE Signal Process Lett 2014;21:1389).
    """
    positive = np.asarray(positive, dtype=bool)
    over_all = midranks(score)
    within = np.empty(len(score))
    for members in (positive, ~positive):
        within[members] = midranks(score[members])
    opposite = np.where(positive, (~positive).sum(), positive.sum())
    below = (over_all - within) / opposite
    placement = np.where(positive, below, 1 - below)
    return Placements(float(placement[positive].mean()), placement)


def reached(positive: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many positives, and how many samples, reach each distinct score, from the highest down; both (k,)."""
    order = np.argsort(-score, kind="stable")
    last = np.flatnonzero(np.append(np.diff(score[order]) != 0, True))
    return np.cumsum(positive[order])[last], last + 1
