"""The elastic transform of CIFAR-10-C. The module `grey` explains functions and `TABLE`."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from .grey import Streams, Table

ANCHORS = np.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])
"""Coordinates x and y of three points 10 pixels off the middle, which is (16, 16)."""


def elastic_transform(images: np.ndarray, streams: Streams, alpha: float, sigma: float, affine: float) -> np.ndarray:
    """Apply an affine map that moves three points by up to `affine` pixels; then displace every pixel smoothly."""
    x = images / 255
    side = images.shape[1]
    places = np.mgrid[:side, :side].astype(float)
    goal = ANCHORS + np.stack([rng.uniform(-affine, affine, (3, 2)) for rng in streams])
    # shape (n, 3, 2)
    back = np.linalg.solve(np.concatenate([goal, np.ones((len(goal), 3, 1))], axis=2), ANCHORS)
    columns, rows = (
        places[1] * a[:, None, None] + places[0] * b[:, None, None] + c[:, None, None]
        for a, b, c in (back[..., k].T for k in range(2))
    )
    x = _sampled(x, rows, columns, edge_twice=False)
    if not alpha:
        return x
    drawn = np.stack([rng.uniform(-1, 1, (2, side, side)) for rng in streams])
    shift = alpha * ndimage.gaussian_filter(drawn, (0, 0, sigma, sigma), mode="reflect", truncate=3)
    return _sampled(x, places[0] + shift[:, 1], places[1] + shift[:, 0], edge_twice=True)


def _sampled(x: np.ndarray, rows: np.ndarray, columns: np.ndarray, edge_twice: bool) -> np.ndarray:
    """Interpolate (n, side, side, 3) bilinearly at places (n, side, side), mirrored at the border.

    With `edge_twice`, the mirror image repeats the border pixels.
    """
    n = np.arange(len(x))[:, None, None]
    side = x.shape[1]
    period, last = (2 * side, 2 * side - 1) if edge_twice else (2 * side - 2, 2 * side - 2)

    def folded(k: np.ndarray) -> np.ndarray:
        k = k.astype(int) % period
        return np.minimum(k, last - k)

    top = np.floor(rows)
    left = np.floor(columns)
    down = (rows - top)[..., None]
    right = (columns - left)[..., None]
    top, low, left, far = (folded(k) for k in (top, top + 1, left, left + 1))
    upper = x[n, top, left] * (1 - right) + x[n, top, far] * right
    lower = x[n, low, left] * (1 - right) + x[n, low, far] * right
    return upper * (1 - down) + lower * down


TABLE: Table = {
    "elastic_transform": (
        elastic_transform,
        ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)),
    )
}
