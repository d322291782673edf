"""Cohen's kappa."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshift.metrics import Metric

if TYPE_CHECKING:
    import numpy as np


class Kappa(Metric):
    """Agreement beyond chance: (p - e) / (1 - e), where e is the agreement of independent answers."""

    title = "Cohen's kappa"
    percent = False

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        import numpy as np

        said = probability.argmax(1)
        classes = range(probability.shape[1])
        chance = sum(np.mean(label == k) * np.mean(said == k) for k in classes)
        if chance == 1:
            return float("nan")
        return float((np.mean(said == label) - chance) / (1 - chance))
