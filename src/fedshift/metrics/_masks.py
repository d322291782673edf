"""Scores of masks: overlap, distance of edges, volume, and structures that are missed or falsely predicted."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..tasks.segmentation import NUMBERS, dice
from ._base import Metric


class MaskMetric(Metric):
    """A score of predicted masks, from the counts of pixels and the distances of edges of each image or patient.

    The score of each structure is the mean over images or patients; the score is the mean over structures.
    """

    tasks: ClassVar[tuple[str, ...]] = ("segmentation",)

    def of_structure(self, *_: Any, **numbers: Any) -> np.ndarray:
        """Return the score of each image or patient and structure (n, structures); NaN where it is not defined.

        `numbers` are tp, fp and fn (pixels), hd95, assd and nsd, each (n, structures). By default, the score is the
        number with the name of the metric.
        """
        return np.asarray(numbers[self.name])

    @property
    def scale(self) -> str:
        return "unit" if self.percent else "mean"

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        """Return the score of each image or patient and structure (n, structures).

        `probability` (n, structures x numbers) has, for each structure, the numbers tp, fp, fn, hd95, assd and nsd that
        the task segmentation keeps in the place of probabilities. `label` is not used.
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
    """2 |A and B| / (|A| + |B|) of mask A and reference B: 0 if only one of them is empty, NaN if both are."""

    name = "dice"
    title = "Dice"
    in_sentence = "Dice"

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return dice(tp, fp, fn)


class IoU(MaskMetric):
    """|A and B| / |A or B| of mask A and reference B: 0 if only one of them is empty, NaN if both are."""

    name = "iou"
    title = "IoU"
    in_sentence = "IoU"

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return np.asarray(tp / (tp + fp + fn))


class HD95(SurfaceDistance):
    """95th percentile of the distance between the edges of mask and reference, in the worse direction, as in MONAI.

    A missed structure and a false alarm count as the diagonal of the image, so that they cannot improve the mean.
    """

    name = "hd95"
    display_name = "HD95"
    title = "HD95"


class ASSD(SurfaceDistance):
    """Mean distance between the edges of mask and reference, over the edge pixels of both.

    A missed structure and a false alarm count as the diagonal of the image, so that they cannot improve the mean.
    """

    name = "assd"
    display_name = "ASSD"
    title = "ASSD"


class NSD(MaskMetric):
    """Share of the edge pixels of mask and reference that lie within the task's tolerance of the other one's edge.

    It is 0 for a missed structure and for a false alarm.
    """

    name = "nsd"
    display_name = "NSD"
    title = "Surface Dice"


class VolumeError(MaskMetric):
    """||A| - |B|| / |B| of mask A and reference B: NaN if the reference is empty."""

    name = "volume_error"
    title = "Volume error"
    higher_is_better = False
    percent = False
    least = 0.0

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return np.where(tp + fn > 0, np.abs(fp - fn) / (tp + fn), np.nan)


class Missed(MaskMetric):
    """Share of the images or patients with a structure of which no pixel is predicted."""

    name = "missed"
    title = "Missed"
    in_sentence = "share of missed structures"
    higher_is_better = False

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return np.where(tp + fn > 0, tp + fp == 0, np.nan)


class FalseAlarms(MaskMetric):
    """Share of the images or patients without a structure of which a pixel is predicted; NaN if all have it."""

    name = "false_alarms"
    title = "False alarms"
    in_sentence = "share of false alarms"
    higher_is_better = False

    def of_structure(self, tp: np.ndarray, fp: np.ndarray, fn: np.ndarray, **_: np.ndarray) -> np.ndarray:
        return np.where(tp + fn > 0, np.nan, fp > 0)
