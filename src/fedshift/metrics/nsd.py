"""The normalised surface Dice."""

from __future__ import annotations

import numpy as np

from ._masks import MaskMetric


class NSD(MaskMetric):
    """The share of the edge pixels of mask and reference that lie within the task's tolerance of the other edge.

    A missed structure and a false alarm have 0.
    """

    display_name = "NSD"
    title = "Surface Dice"

    def of_structure(self, nsd: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return nsd
