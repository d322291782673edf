"""Scores of masks: overlap, distance of edges, volume, and structures that are missed or invented."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..tasks.segmentation import NUMBERS, dice
from ._base import Metric


class MaskMetric(Metric):
    """A score of masks, from what is kept of each image or patient: counts of pixels and distances of surfaces.

    A score is made for each structure, as the mean over images or patients, and is then the mean over structures.
    """

    tasks: ClassVar[tuple[str, ...]] = ("segmentation",)

    def of_structure(self, *_: Any, **numbers: Any) -> np.ndarray:
        """Return the score of each image or patient and structure (n, structures); NaN where it is not defined.

        `numbers` are tp, fp, fn, hd95, assd and nsd, each (n, structures). By default, it is the one of this name.
        """
        return np.asarray(numbers[self.name])

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


class Dice(MaskMetric):
    """2 |A and B| / (|A| + |B|). A missed structure and a false alarm have 0; without both there is none."""

    name = "dice"
    title = "Dice"
    in_sentence = "Dice"

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return dice(tp, fp, fn)


class IoU(MaskMetric):
    """|A and B| / |A or B|. A missed structure and a false alarm have 0; without both there is none."""

    name = "iou"
    title = "IoU"
    in_sentence = "IoU"

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return np.asarray(tp / (tp + fp + fn))


class HD95(SurfaceDistance):
    """The larger of both directions' 95th percentiles of the distance between surfaces, as in MONAI.

    A missed structure and a false alarm count as the diagonal of the image, so that they cannot improve the mean.
    """

    name = "hd95"
    display_name = "HD95"
    title = "HD95"


class ASSD(SurfaceDistance):
    """The mean distance of the edge pixels of mask and reference to the other edge.

    A missed structure and a false alarm count as the diagonal of the image, so that they cannot improve the mean.
    """

    name = "assd"
    display_name = "ASSD"
    title = "ASSD"


class NSD(MaskMetric):
    """The share of the edge pixels of mask and reference that lie within the task's tolerance of the other edge.

    A missed structure and a false alarm have 0.
    """

    name = "nsd"
    display_name = "NSD"
    title = "Surface Dice"


class VolumeError(MaskMetric):
    """||A| - |B|| / |B| with the reference B; none where the reference is empty."""

    name = "volume_error"
    title = "Volume error"
    higher_is_better = False
    percent = False
    least = 0.0

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return np.where(tp + fn > 0, np.abs(fp - fn) / (tp + fn), np.nan)


class Missed(MaskMetric):
    """The share of the images or patients with a structure where no pixel of it is predicted."""

    name = "missed"
    title = "Missed"
    in_sentence = "share of missed structures"
    higher_is_better = False

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return np.where(tp + fn > 0, tp + fp == 0, np.nan)


class FalseAlarms(MaskMetric):
    """The share of the images or patients without a structure where a pixel of it is predicted; none if all have it."""

    name = "false_alarms"
    title = "False alarms"
    in_sentence = "share of false alarms"
    higher_is_better = False

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return np.where(tp + fn > 0, np.nan, fp > 0)
