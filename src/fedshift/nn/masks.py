"""Masks compared: overlap, and distances between their edges, in pixels or, with a spacing, in millimetres.

Definitions are those of MONAI 1.6: an edge pixel of a mask has a neighbour along an axis that is not in the mask or not
in the image. Where one of the masks is empty, MONAI has no distances, so that a mean looks the better the more is
missed. Here they have their worst value then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Overlap:
    """Pixels of a structure that were found, invented and missed. Sums over slices are those of a volume."""

    found: int
    invented: int
    missed: int

    @classmethod
    def of(cls, reference: np.ndarray, prediction: np.ndarray) -> Overlap:
        """Return the overlap of two boolean masks of one shape. Raises ValueError for two shapes."""
        _require_shapes(reference, prediction)
        found = int(np.count_nonzero(reference & prediction))
        invented = int(np.count_nonzero(prediction)) - found
        return cls(found, invented, int(np.count_nonzero(reference)) - found)

    def __add__(self, more: Overlap) -> Overlap:
        return Overlap(self.found + more.found, self.invented + more.invented, self.missed + more.missed)

    @property
    def dice(self) -> float:
        """Dice coefficient 2|A∩B| / (|A|+|B|), from 0 to 1; NaN where both masks are empty."""
        return _share(2 * self.found, 2 * self.found + self.invented + self.missed)

    @property
    def iou(self) -> float:
        """Intersection over union |A∩B| / |A∪B|, from 0 to 1; NaN where both masks are empty."""
        return _share(self.found, self.found + self.invented + self.missed)


@dataclass(frozen=True)
class Edges:
    """Distances between the edges of two masks.

    Attributes
    ----------
    forth : (edge pixels of the reference,) float64, distance of each to the edge of the prediction
    back : (edge pixels of the prediction,) float64, distance of each to the edge of the reference
    worst : largest distance that two pixels of the image can have, from corner to corner

    Where only one mask is empty, all distances are `worst`: a structure was missed or invented. Where both are, there
    are none, and every value is NaN.
    """

    forth: np.ndarray
    back: np.ndarray
    worst: float

    @classmethod
    def of(cls, reference: np.ndarray, prediction: np.ndarray, spacing: Sequence[float] | None = None) -> Edges:
        """Return the distances between two boolean masks of one shape, with any number of axes.

        `spacing` is that of the pixels along each axis; without it, distances are in pixels. Raises ValueError for two
        shapes, and for a spacing of another length or that is not positive.
        """
        _require_shapes(reference, prediction)
        lengths = tuple(spacing or (1.0,) * reference.ndim)
        if len(lengths) != reference.ndim or not all(math.isfinite(length) and length > 0 for length in lengths):
            raise ValueError(f"spacing {lengths} does not fit masks with {reference.ndim} axes")
        worst = math.hypot(*((n - 1) * length for n, length in zip(reference.shape, lengths, strict=True)))
        edges = _edge(reference), _edge(prediction)
        forth = _distances(*edges, lengths, worst)
        return cls(forth, _distances(*edges[::-1], lengths, worst), worst)

    @cached_property
    def _one_sided(self) -> bool:
        """Whether exactly one of the masks is empty."""
        return (len(self.forth) == 0) != (len(self.back) == 0)

    @property
    def hd95(self) -> float:
        """Hausdorff distance of 95 %: of the 95th percentiles of both directions the larger one."""
        directions = [distances for distances in (self.forth, self.back) if len(distances)]
        return max((float(np.percentile(distances, 95)) for distances in directions), default=math.nan)

    @property
    def assd(self) -> float:
        """Average symmetric surface distance: the mean over all edge pixels of both masks."""
        distances = np.concatenate([self.forth, self.back])
        return float(distances.mean()) if len(distances) else math.nan

    def nsd(self, tolerance: float) -> float:
        """Return the normalised surface distance: the share of edge pixels within a tolerance of the other edge.

        It is 0 where only one mask is empty, whatever the tolerance. Raises ValueError for a negative tolerance.
        """
        if tolerance < 0:
            raise ValueError(f"a tolerance of {tolerance} is negative")
        if self._one_sided:
            return 0.0
        distances = np.concatenate([self.forth, self.back])
        return _share(int(np.count_nonzero(distances <= tolerance)), len(distances))


def _require_shapes(reference: np.ndarray, prediction: np.ndarray) -> None:
    for mask in (reference, prediction):
        if mask.dtype != np.bool_:
            raise ValueError(f"a mask is boolean, not {mask.dtype}")
    if reference.shape != prediction.shape:
        raise ValueError(f"masks of shapes {reference.shape} and {prediction.shape}")


def _edge(mask: np.ndarray) -> np.ndarray:
    """Return the pixels of a mask that its erosion takes away."""
    from scipy import ndimage

    edge: np.ndarray = mask & ~ndimage.binary_erosion(mask)
    return edge


def _distances(edge: np.ndarray, target: np.ndarray, lengths: Sequence[float], worst: float) -> np.ndarray:
    """Return the distance of each pixel of an edge to the nearest of a target; `worst` where that is empty."""
    from scipy import ndimage

    if not target.any():
        return np.full(int(np.count_nonzero(edge)), worst)
    distances: np.ndarray = ndimage.distance_transform_edt(~target, sampling=lengths)[edge]
    return distances


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan
