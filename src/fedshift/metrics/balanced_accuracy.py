"""Balanced accuracy: mean recall over classes."""

from __future__ import annotations

import numpy as np

from ._base import Metric


class BalancedAccuracy(Metric):
    """Mean recall over the classes that are present, independent of prevalence; NaN if there is only one class."""

    title = "Balanced accuracy"
    by_class = True

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        present = np.unique(label)
        if len(present) < 2:
            return np.full((len(label), 1), np.nan)
        right = probability.argmax(1) == label
        return np.where(label[:, None] == present, right[:, None], np.nan)

    def chance(self, shares: np.ndarray) -> float:
        return 1 / len(shares)
