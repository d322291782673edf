"""Brier score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base import Metric

if TYPE_CHECKING:
    import numpy as np


class Brier(Metric):
    """Squared error of the probabilities.

    Of class 1 with two classes (0 to 1), summed over classes with more (0 to 2).
    """

    title = "Brier score"
    higher_is_better = False
    percent = False

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        import numpy as np

        if probability.shape[1] == 2:
            return (probability[:, 1] - label) ** 2
        return ((probability - np.eye(probability.shape[1])[label]) ** 2).sum(1)
