"""Blur of CIFAR-10-C, and the types and the rounding that all corruptions share.

A corruption takes images (n, 32, 32, 3) uint8, a random generator for each image, and its constants. It returns uint8,
or floats, which are clipped to [0, 1]. `TABLE` of each module has its functions with their constants at the severities
1 to 5.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import ndimage

Streams = Sequence[np.random.Generator]
Table = dict[str, tuple[Callable[..., np.ndarray], tuple[tuple[Any, ...], ...]]]


def truncated(x: np.ndarray) -> np.ndarray:
    """Convert floats to grey levels, uint8: clip to [0, 1] and round down to whole levels, as the script does.

    One millionth of a level is added. Without it, rounding errors, which differ between machines, would lower flat
    surfaces by one level.
    """
    return (np.clip(x, 0, 1) * 255 + 1e-6).astype(np.uint8)


def gaussian_blur(images: np.ndarray, streams: Streams, sigma: float) -> np.ndarray:
    """Blur by a Gaussian over the two spatial axes, cut at 4 sigma; border pixels continue outside."""
    return ndimage.gaussian_filter(images / 255, (0, sigma, sigma, 0), mode="nearest", truncate=4)


def glass_blur(images: np.ndarray, streams: Streams, sigma: float, times: int) -> np.ndarray:
    """Blur, shuffle pixels locally, blur again.

    The script walks from the lower right to the upper left and is meant to swap each pixel (from row and column 2 on)
    with a pixel at most one row above and one column left of it. It swaps views of one array, so it only copies. The
    source of each copy is still unchanged, so one look-up replaces a walk.
    """
    x = truncated(gaussian_blur(images, streams, sigma))
    side = np.arange(2, x.shape[1])
    for _ in range(times):
        steps = np.stack([rng.integers(-1, 1, (2, len(side), len(side))) for rng in streams])
        rows = side[:, None] + steps[:, 0]
        columns = side + steps[:, 1]
        x[:, 2:, 2:] = x[np.arange(len(x))[:, None, None], rows, columns]
    return gaussian_blur(x, streams, sigma)


def defocus_blur(images: np.ndarray, streams: Streams, radius: float, alias: float) -> np.ndarray:
    """Average over a disk with a rim smoothed by 3x3 Gaussian weights; mirrored at the border pixels."""
    return ndimage.correlate(images / 255, disk(radius, alias)[None, :, :, None], mode="mirror")


def disk(radius: float, alias: float) -> np.ndarray:
    """Return (17, 17) weights of sum 1: equal where x^2 + y^2 <= radius^2, smoothed with sigma `alias`."""
    place = np.arange(-8, 9)
    inside = (place[:, None] ** 2 + place**2 <= radius**2).astype(float)
    near = np.exp(-0.5 * (np.arange(-1, 2) / alias) ** 2)
    return ndimage.correlate(inside / inside.sum(), np.outer(near, near) / near.sum() ** 2, mode="constant")


def motion_blur(images: np.ndarray, streams: Streams, radius: int, sigma: float) -> np.ndarray:
    """Blur each image along a line of random direction, -45 to 45 degrees."""
    return moved(images, np.array([rng.uniform(-45, 45) for rng in streams]), radius, sigma)


def moved(images: np.ndarray, degrees: np.ndarray, radius: int, sigma: float) -> np.ndarray:
    """Apply ImageMagick's motion blur to (n, side, side, ...) uint8, each image in its direction.

    The weights are half a Gaussian along a line that starts at the pixel, on the nearest pixels. Border pixels continue
    outside. ImageMagick cuts the sum down to a whole grey level; 1e-6 keeps whole sums from rounding errors.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    angle = np.deg2rad(degrees)[:, None]
    right, down = (np.ceil(steps * f(angle) - 0.5).astype(int) for f in (np.cos, np.sin))
    n = np.arange(len(images))
    place = np.arange(images.shape[1])
    out = np.zeros(images.shape)
    for k in np.flatnonzero(weights > 1e-12):
        rows, columns = (np.clip(place + step[:, k, None], 0, place[-1]) for step in (down, right))
        out += weights[k] * images[n[:, None, None], rows[:, :, None], columns[:, None, :]]
    return np.floor(out / weights.sum() + 1e-6).astype(np.uint8)


def zoom_blur(images: np.ndarray, streams: Streams, end: float) -> np.ndarray:
    """Average the image and its zooms by 1, 1.01, ... up to `end`; the zoom by 1 is one of them."""
    n, side = images.shape[:2]
    out = np.tensordot(_zooms(side, end), (images / 255).reshape(n, side * side, 3), axes=(1, 1))
    return out.transpose(1, 0, 2).reshape(images.shape)


@functools.cache
def _zooms(side: int, end: float) -> np.ndarray:
    """Return zoom_blur as one (side^2, side^2) matrix."""
    factors = np.arange(1, end, 0.01)
    zooms = [zooming(side, factor) for factor in factors]
    return (np.eye(side * side) + sum(np.kron(z, z) for z in zooms)) / (len(zooms) + 1)


def zooming(side: int, factor: float) -> np.ndarray:
    """Return the (side, side) matrix that zooms an axis about its middle.

    It takes the middle ceil(side / factor) pixels and interpolates round(that * factor) values linearly, from the
    centre of the first pixel to the centre of the last. The middle `side` values are the result.
    """
    before = int(np.ceil(side / factor))
    after = round(before * factor)
    place = (side - before) // 2 + (np.arange(side) + (after - side) // 2) * ((before - 1) / (after - 1))
    return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(side)))


TABLE: Table = {
    "gaussian_blur": (gaussian_blur, ((0.4,), (0.6,), (0.7,), (0.8,), (1,))),
    "glass_blur": (glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "defocus_blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "motion_blur": (motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    # at 1.06 and 1.11, numpy's arange makes a step too many; the script has the same error
    "zoom_blur": (zoom_blur, ((1.06,), (1.11,), (1.16,), (1.21,), (1.26,))),
}
