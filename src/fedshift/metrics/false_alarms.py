"""How often a structure is predicted that is not there."""

from __future__ import annotations

import numpy as np

from ._masks import MaskMetric


class FalseAlarms(MaskMetric):
    """The share of the images or patients without a structure where a pixel of it is predicted; none if all have it."""

    title = "False alarms"
    in_sentence = "share of false alarms"
    higher_is_better = False

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return np.where(tp + fn > 0, np.nan, fp > 0)
