"""How often a structure is missed."""

from __future__ import annotations

import numpy as np

from ._masks import MaskMetric


class Missed(MaskMetric):
    """The share of the images or patients with a structure where no pixel of it is predicted."""

    title = "Missed"
    in_sentence = "share of missed structures"
    higher_is_better = False

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return np.where(tp + fn > 0, tp + fp == 0, np.nan)
