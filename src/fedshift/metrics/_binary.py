"""What sensitivity and specificity share: the recall of one class of a two-class problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ._base import Metric

if TYPE_CHECKING:
    import numpy as np


class Recall(Metric):
    """Share of the samples of class `of` that are found. NaN with more than two classes, or without that one."""

    by_class = True
    of: ClassVar[int]

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        import numpy as np

        if probability.shape[1] != 2:
            return np.full(len(label), np.nan)
        return np.where(label == self.of, probability.argmax(1) == self.of, np.nan)
