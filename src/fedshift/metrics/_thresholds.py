"""Counts of the samples that reach each threshold."""

from __future__ import annotations

import numpy as np


def reached(positive: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many positives, and how many samples, reach each distinct score, from the highest down; both (k,)."""
    order = np.argsort(-score, kind="stable")
    last = np.flatnonzero(np.append(np.diff(score[order]) != 0, True))
    return np.cumsum(positive[order])[last], last + 1
