"""Tissue on a slide: where colour is saturated, by the threshold of Otsu (1979)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from .pyramid import Pixels, Pyramid
from .rasterise import Mask
from .squares import Grid

THUMBNAIL = 320
"""The most pixels along a side of a thumbnail."""
READ = 2048
"""Pixels of a level along a side of the regions that are read at once: 16 MiB."""
MEDIAN = 7
"""Pixels of the mask along a side of the median filter."""
LEAST_AREA = 1e5
"""The least area of a piece of tissue, in square micrometres (0.1 mm²)."""
FAINT = 10
"""A threshold below it separates noise from noise, as on a blank or an unstained slide."""
MUCH = 0.9
"""A larger share of tissue is more than a slide has: the threshold has found something else."""
INK = 10
"""Green may exceed red by this many grey levels. Haematoxylin, eosin and DAB absorb more green than red; blue and green
markers do not."""
BLACK = 50
"""A pixel whose brightest colour is darker is ink or dirt."""


@dataclass(frozen=True)
class Survey:
    """A slide at the resolution of the mask.

    `saturation` is (rows, columns) of the mask, uint8; `histogram` counts its 256 values; `thumbnail` shows the slide
    `reduction` times smaller than the mask.
    """

    saturation: Pixels
    histogram: npt.NDArray[np.int64]
    thumbnail: Pixels
    reduction: int


def survey(pyramid: Pyramid, grid: Grid) -> Survey:
    """Read a whole slide at the resolution of the mask, region by region."""
    rows, columns = grid.mask
    reduction = math.ceil(max(rows, columns) / THUMBNAIL)
    down = pyramid.slide.level_downsamples[pyramid.level(grid.pixel)]
    step = max(int(READ * down / grid.pixel) // reduction, 1) * reduction
    saturations = np.empty((rows, columns), np.uint8)
    histogram = np.zeros(256, np.int64)
    thumbnail = np.empty((math.ceil(rows / reduction), math.ceil(columns / reduction), 3), np.uint8)
    for top in range(0, rows, step):
        for left in range(0, columns, step):
            size = min(step, columns - left), min(step, rows - top)
            region = pyramid.read(left * grid.pixel, top * grid.pixel, *size, grid.pixel, Image.Resampling.BOX)
            values = saturation(region)
            saturations[top : top + step, left : left + step] = values
            histogram += np.bincount(values.ravel(), minlength=256)
            y = top // reduction
            x = left // reduction
            small = np.asarray(Image.fromarray(region).reduce(reduction))
            thumbnail[y : y + small.shape[0], x : x + small.shape[1]] = small
    return Survey(saturations, histogram, thumbnail, reduction)


def saturation(rgb: Pixels) -> Pixels:
    """Return the saturation (HSV, 0 to 255) of pixels (..., 3); 0 for ink, which does not count as tissue."""
    red = rgb[..., 0].astype(np.int16)
    green = rgb[..., 1]
    most = rgb.max(-1).astype(np.int32)
    values = (255 * (most - rgb.min(-1)) + most // 2) // np.maximum(most, 1)
    values[(green > red + INK) | (most < BLACK)] = 0
    return values.astype(np.uint8)


def otsu(histogram: npt.NDArray[np.int64]) -> float:
    """Return the threshold that separates the values 0, 1, ... of a histogram best: larger ones are in front.

    It has the largest variance between both sides. Where several have, as between two single values, it is the middle
    of them. With one value alone it is the last of the histogram, so that nothing is in front.
    """
    counts = histogram.astype(np.float64)
    below = counts.cumsum()
    sums = (counts * np.arange(len(counts))).cumsum()
    above = below[-1] - below
    both = (below > 0) & (above > 0)
    if not both.any():
        return float(len(counts) - 1)
    between = np.zeros_like(counts)
    between[both] = (sums[-1] * below - below[-1] * sums)[both] ** 2 / (below * above)[both]
    best = np.flatnonzero(between == between.max())
    return float(best[0] + best[-1]) / 2


def tissue(saturations: Pixels, threshold: float, side: float) -> Mask:
    """Return where a slide has tissue: saturation above the threshold, without specks.

    A median filter of 7 x 7 pixels smooths it, and pieces below 0.1 mm² are dropped; `side` is that of a pixel in
    micrometres.
    """
    counts = (saturations > threshold).view(np.uint8)
    for axis in (0, 1):
        counts = ndimage.correlate1d(counts, np.ones(MEDIAN), axis, output=np.uint8, mode="nearest")
    # more than half of the pixels around are above the threshold: the median is
    labels, pieces = ndimage.label(counts > MEDIAN**2 // 2)
    sizes = np.zeros(pieces + 1, np.int64)
    # bincount copies what it counts: in parts, memory holds a copy of some rows only
    for block in np.array_split(labels, math.ceil(len(labels) / 256)):
        sizes += np.bincount(block.ravel(), minlength=pieces + 1)
    large = sizes * side**2 >= LEAST_AREA
    large[0] = False
    mask: Mask = large[labels]
    return mask
