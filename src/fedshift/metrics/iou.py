"""Intersection over union of a mask and its reference."""

from __future__ import annotations

import numpy as np

from ._masks import MaskMetric


class IoU(MaskMetric):
    """|A and B| / |A or B|. A missed structure and a false alarm have 0; without both there is none."""

    title = "IoU"
    in_sentence = "IoU"

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return np.asarray(tp / (tp + fp + fn))
