"""Dice: overlap of a mask and its reference."""

from __future__ import annotations

import numpy as np

from ..tasks.segmentation import dice
from ._masks import MaskMetric


class Dice(MaskMetric):
    """2 |A and B| / (|A| + |B|). A missed structure and a false alarm have 0; without both there is none."""

    title = "Dice"
    in_sentence = "Dice"

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return dice(tp, fp, fn)
