"""The 95th percentile of the Hausdorff distance."""

from __future__ import annotations

import numpy as np

from ._masks import MaskMetric


class HD95(MaskMetric):
    """The larger of both directions' 95th percentiles of the distance between surfaces, in pixels, as in MONAI.

    A missed structure and a false alarm count as the diagonal of the image, so that they cannot improve the mean.
    """

    display_name = "HD95"
    title = "HD95 (pixels)"
    higher_is_better = False
    percent = False
    caveat = "HD95 and ASSD of a missed structure, and of a false alarm, are the diagonal of the image."

    def of_structure(self, hd95: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return hd95
