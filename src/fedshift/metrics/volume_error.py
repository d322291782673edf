"""The relative error of the area or volume of a structure."""

from __future__ import annotations

import numpy as np

from ._masks import MaskMetric


class VolumeError(MaskMetric):
    """||A| - |B|| / |B| with the reference B; none where the reference is empty."""

    title = "Volume error"
    higher_is_better = False
    percent = False
    least = 0.0

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return np.where(tp + fn > 0, np.abs(fp - fn) / (tp + fn), np.nan)
