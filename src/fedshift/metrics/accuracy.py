"""Accuracy: share of correct predictions."""

from __future__ import annotations

import numpy as np

from ._base import Metric


class Accuracy(Metric):
    """Share of samples whose most probable class is the label."""

    title = "Accuracy"

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        return (probability.argmax(1) == label).astype(float)

    def chance(self, shares: np.ndarray) -> float:
        return 1 / len(shares)
