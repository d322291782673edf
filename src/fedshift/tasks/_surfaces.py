"""Distances between the surfaces of two masks, with a stated value where one of them is empty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class Distances(NamedTuple):
    """Distances between the surfaces of two masks, in units of the spacing.

    Attributes
    ----------
    hd95 : the larger of both directions' 95th percentiles (MONAI's `compute_hausdorff_distance(percentile=95)`)
    assd : mean distance of the edge pixels of both masks to the other edge
    nsd : share of the edge pixels of both masks that lie within a tolerance of the other edge
    """

    hd95: float
    assd: float
    nsd: float


def distances(
    predicted: np.ndarray, reference: np.ndarray, tolerance: float, spacing: Sequence[float] = (1.0, 1.0)
) -> Distances:
    """Return the distances between the surfaces of two masks (height, width), bool.

    An edge pixel is one that a binary erosion removes; outside of the image nothing belongs to a mask. Where one mask
    is empty, the diagonal of the image is the distance, so that a missed structure counts as the worst that can be.
    Where both are empty there is no distance: NaN.
    """
    import numpy as np
    from scipy.ndimage import binary_erosion, distance_transform_edt

    if not predicted.any() and not reference.any():
        return Distances(math.nan, math.nan, math.nan)
    if not predicted.any() or not reference.any():
        diagonal = math.hypot(*(side * step for side, step in zip(predicted.shape, spacing, strict=True)))
        return Distances(diagonal, diagonal, 0.0)
    # All edges lie in the box around both masks; distances outside of it are not needed.
    rows, columns = np.nonzero(predicted | reference)
    box = slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1)
    masks = [np.pad(mask[box], 1) for mask in (predicted, reference)]
    edges = [mask ^ binary_erosion(mask) for mask in masks]
    from_predicted, from_reference = (
        distance_transform_edt(~edge, sampling=spacing)[other]
        for edge, other in zip(reversed(edges), edges, strict=True)
    )
    both = np.concatenate([from_predicted, from_reference])
    return Distances(
        float(max(np.percentile(from_predicted, 95), np.percentile(from_reference, 95))),
        float(both.mean()),
        float((both <= tolerance).mean()),
    )
