"""OpenCV's edges, box means and equalised histograms, for stacks (n, height, width) of uint8; spatter needs them."""

from __future__ import annotations

import numpy as np
from scipy import ndimage


def canny(images: np.ndarray, low: int, high: int) -> np.ndarray:
    """Find Canny's edges like OpenCV; return bool.

    An edge pixel has a Sobel gradient of strength |dx| + |dy| above `low`, where border pixels continue outside. No
    neighbour across the edge, in one of four directions, is stronger. It is connected to such a pixel above `high`. Of
    two equal neighbours, only the left or the upper one is an edge.
    """
    across, down = (_sobel(images.astype(int), axis) for axis in (2, 1))
    strength = np.abs(across) + np.abs(down)
    around = np.pad(strength, ((0, 0), (1, 1), (1, 1)))

    def at(row: int, column: int) -> np.ndarray:
        return around[:, 1 + row : around.shape[1] - 1 + row, 1 + column : around.shape[2] - 1 + column]

    flat = np.abs(down) < np.tan(np.pi / 8) * np.abs(across)
    steep = np.abs(down) > np.tan(3 * np.pi / 8) * np.abs(across)
    falling = (strength > at(-1, -1)) & (strength > at(1, 1))
    rising = (strength > at(-1, 1)) & (strength > at(1, -1))
    peak = np.select(
        [flat, steep, across * down < 0],
        [
            (strength > at(0, -1)) & (strength >= at(0, 1)),
            (strength > at(-1, 0)) & (strength >= at(1, 0)),
            rising,
        ],
        falling,
    )
    weak = peak & (strength > low)
    touching = np.zeros((3, 3, 3))
    # neighbours in a plane only: pixels of two images never touch
    touching[1] = 1
    parts, count = ndimage.label(weak, touching)
    strong = np.zeros(count + 1, dtype=bool)
    strong[parts[weak & (strength > high)]] = True
    return strong[parts]


def _sobel(x: np.ndarray, axis: int) -> np.ndarray:
    smooth = ndimage.correlate1d(x, [1, 2, 1], axis=3 - axis, mode="nearest")
    return ndimage.correlate1d(smooth, [-1, 0, 1], axis=axis, mode="nearest")


def distance(edges: np.ndarray, limit: float) -> np.ndarray:
    """Return the distance of each pixel to the nearest edge of its image, at most `limit`."""
    # images lie so far apart along the first axis that no edge of another one is nearer than the limit
    spacing = (2 * limit, 1, 1)
    nearest = ndimage.distance_transform_edt(~edges, sampling=spacing)
    return np.where(edges.any(axis=(1, 2), keepdims=True), np.minimum(nearest, limit), limit)


def box(x: np.ndarray) -> np.ndarray:
    """Return the mean over 3x3, mirrored at the border pixels; float64."""
    rows = ndimage.correlate1d(x.astype(float), [1, 1, 1], axis=1, mode="mirror")
    return ndimage.correlate1d(rows, [1, 1, 1], axis=2, mode="mirror") / 9


def equalised(images: np.ndarray) -> np.ndarray:
    """Equalise the histogram of each image, as OpenCV does.

    The lowest value becomes 0. Any other value v becomes 255 times the share of pixels up to v among all pixels above
    the lowest value. An image with a single value stays as it is.
    """
    n = len(images)
    values = images.reshape(len(images), -1).astype(int)
    counts = np.bincount((values + 256 * np.arange(n)[:, None]).ravel(), minlength=256 * n).reshape(n, 256)
    reached = counts.cumsum(axis=1)
    lowest = np.take_along_axis(counts, values.min(axis=1, keepdims=True), axis=1)
    above = values.shape[1] - lowest
    spread = np.rint(255 * (reached - lowest) / np.maximum(above, 1))
    table = np.where(above > 0, spread.clip(0, 255), np.arange(256)).astype(np.uint8)
    return np.take_along_axis(table, values, axis=1).reshape(images.shape)
