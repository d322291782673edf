"""The average symmetric surface distance."""

from __future__ import annotations

import numpy as np

from ._masks import SurfaceDistance


class ASSD(SurfaceDistance):
    """The mean distance of the edge pixels of mask and reference to the other edge.

    A missed structure and a false alarm count as the diagonal of the image, so that they cannot improve the mean.
    """

    display_name = "ASSD"
    title = "ASSD"

    def of_structure(self, assd: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return assd
