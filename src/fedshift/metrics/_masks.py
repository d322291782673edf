"""The base class of scores of masks."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..tasks.segmentation import NUMBERS
from ._base import Metric


class MaskMetric(Metric):
    """A score of masks, from what is kept of each image or patient: counts of pixels and distances of surfaces.

    A score is made for each structure, as the mean over images or patients, and is then the mean over structures. A
    subclass overrides `of_structure`.
    """

    tasks: ClassVar[tuple[str, ...]] = ("segmentation",)

    def of_structure(self, *_: Any, **numbers: Any) -> np.ndarray:
        """Return the score of each image or patient and structure (n, structures); NaN where it is not defined.

        Parameters
        ----------
        numbers : tp, fp, fn, hd95, assd and nsd, each (n, structures)
        """
        raise NotImplementedError

    @property
    def scale(self) -> str:
        return "unit" if self.percent else "mean"

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        """Return the score of each image or patient and structure (n, structures).

        `probability` (n, structures x numbers) are the predictions of the task segmentation; labels play no part.
        """
        table = probability.reshape(len(probability), -1, len(NUMBERS))
        with np.errstate(invalid="ignore", divide="ignore"):  # an empty structure has no score: NaN
            return self.of_structure(**{name: table[:, :, k] for k, name in enumerate(NUMBERS)})


class SurfaceDistance(MaskMetric):
    """A distance between the edges of mask and reference, in millimetres or in pixels (see the task segmentation).

    A missed structure and a false alarm count as the diagonal of the image, so that they cannot improve the mean.
    """

    higher_is_better = False
    percent = False
    least = 0.0
    caveat = "HD95 and ASSD of a missed structure, and of a false alarm, are the diagonal of the image."
