"""The recall of one class of a two-class problem: the base of sensitivity and specificity."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ._base import Metric


class Recall(Metric):
    """Share of the samples of class `of` that are predicted as such; NaN if there are none, or not two classes."""

    by_class = True
    of: ClassVar[int]

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        if probability.shape[1] != 2:
            return np.full(len(label), np.nan)
        return np.where(label == self.of, probability.argmax(1) == self.of, np.nan)
