"""Balanced accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base import Metric

if TYPE_CHECKING:
    import numpy as np


class BalancedAccuracy(Metric):
    """Mean recall over the classes that are present: prevalence does not matter. NaN where there is one class only."""

    title = "Balanced accuracy"
    by_class = True

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        import numpy as np

        present = np.unique(label)
        if len(present) < 2:
            return np.full((len(label), 1), np.nan)
        right = probability.argmax(1) == label
        return np.where(label[:, None] == present, right[:, None], np.nan)
