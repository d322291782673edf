"""Balanced accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..metric import Metric

if TYPE_CHECKING:
    import numpy as np


class BalancedAccuracy(Metric):
    """Mean recall over the classes that are present: prevalence does not matter."""

    title = "Balanced accuracy"

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        import numpy as np
        from sklearn.metrics import recall_score

        return float(recall_score(label, probability.argmax(1), labels=np.unique(label), average="macro"))
