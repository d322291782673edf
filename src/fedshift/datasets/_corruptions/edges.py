"""What spatter needs of OpenCV, for stacks (n, height, width) of uint8: edges, box means, equal histograms."""

from __future__ import annotations

import numpy as np
from scipy import ndimage


def canny(images: np.ndarray, low: int, high: int) -> np.ndarray:
    """Canny's edges as OpenCV finds them, bool.

    Sobel gradients (border pixels go on outside) of strength |dx| + |dy|; kept where no neighbour across the edge is
    stronger, of four directions; above `low`, and touching one above `high`. Of two equal ones side by side or one
    above the other, the right or lower stays out.
    """
    across, down = (_sobel(images.astype(int), axis) for axis in (2, 1))
    strength = np.abs(across) + np.abs(down)
    around = np.pad(strength, ((0, 0), (1, 1), (1, 1)))

    def at(row: int, column: int) -> np.ndarray:
        return around[:, 1 + row : around.shape[1] - 1 + row, 1 + column : around.shape[2] - 1 + column]

    flat, steep = (
        np.abs(down) < np.tan(np.pi / 8) * np.abs(across),
        np.abs(down) > np.tan(3 * np.pi / 8) * np.abs(across),
    )
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
    touching[1] = 1  # within an image
    parts, count = ndimage.label(weak, touching)
    held = np.zeros(count + 1, dtype=bool)
    held[parts[weak & (strength > high)]] = True
    return held[parts]


def _sobel(x: np.ndarray, axis: int) -> np.ndarray:
    smooth = ndimage.correlate1d(x, [1, 2, 1], axis=3 - axis, mode="nearest")
    return ndimage.correlate1d(smooth, [-1, 0, 1], axis=axis, mode="nearest")


def distance(edges: np.ndarray, limit: float) -> np.ndarray:
    """From each pixel to the next edge of its image, `limit` at most."""
    apart = (2 * limit, 1, 1)  # the other images are out of reach
    found = ndimage.distance_transform_edt(~edges, sampling=apart)
    return np.where(edges.any(axis=(1, 2), keepdims=True), np.minimum(found, limit), limit)


def box(x: np.ndarray) -> np.ndarray:
    """The mean over 3x3, mirrored at the border's pixels; float64."""
    rows = ndimage.correlate1d(x.astype(float), [1, 1, 1], axis=1, mode="mirror")
    return ndimage.correlate1d(rows, [1, 1, 1], axis=2, mode="mirror") / 9


def equalised(images: np.ndarray) -> np.ndarray:
    """Each image with its values spread: the lowest becomes 0, others 255 times the share of those above it that they
    reach. An image of one value stays."""
    n, values = len(images), images.reshape(len(images), -1).astype(int)
    counts = np.bincount((values + 256 * np.arange(n)[:, None]).ravel(), minlength=256 * n).reshape(n, 256)
    reached = counts.cumsum(axis=1)
    lowest = np.take_along_axis(counts, values.min(axis=1, keepdims=True), axis=1)
    above = values.shape[1] - lowest
    spread = np.rint(255 * (reached - lowest) / np.maximum(above, 1))
    table = np.where(above > 0, spread.clip(0, 255), np.arange(256)).astype(np.uint8)
    return np.take_along_axis(table, values, axis=1).reshape(images.shape)
