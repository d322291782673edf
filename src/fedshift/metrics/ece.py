"""Expected calibration error."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from ._base import Metric


class ECE(Metric):
    """Gap between confidence and accuracy, averaged over bins of equal width of the top class's confidence.

    Guo et al., On Calibration of Modern Neural Networks (2017), equation 3; bins are open on the left.
    """

    title = "ECE"
    higher_is_better = False
    percent = False
    least = 0.0
    bins: int = Field(15, ge=1, description="number of bins of equal width between 0 and 1")

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        confidence = probability.max(1)
        excess = (probability.argmax(1) == label) - confidence
        member = np.clip(np.ceil(confidence * self.bins).astype(int) - 1, 0, self.bins - 1)
        return float(np.abs(np.bincount(member, excess)).sum() / len(label))
