"""Brier score."""

from __future__ import annotations

import numpy as np

from ._base import Metric


class Brier(Metric):
    """Squared error of the probabilities.

    With two classes, the error of class 1 (0 to 1); with more, the sum over classes (0 to 2).
    """

    title = "Brier score"
    in_sentence = "Brier score"
    higher_is_better = False
    percent = False
    least = 0.0

    @property
    def scale(self) -> str:
        return "unit"

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        if probability.shape[1] == 2:
            return (probability[:, 1] - label) ** 2
        return ((probability - np.eye(probability.shape[1])[label]) ** 2).sum(1)
