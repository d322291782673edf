"""Noise, brightness, contrast, saturation, pixels, JPEG and elastic maps of CIFAR-10-C.

The module `blur` explains functions and `TABLE`.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from scipy import ndimage

from .blur import Streams, Table

ANCHORS = np.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])
"""Coordinates x and y of three points 10 pixels off the middle, which is (16, 16)."""


def gaussian_noise(images: np.ndarray, streams: Streams, sigma: float) -> np.ndarray:
    """Add Gaussian noise: x + N(0, sigma)."""
    return images / 255 + sigma * _normal(images, streams)


def shot_noise(images: np.ndarray, streams: Streams, light: float) -> np.ndarray:
    """Replace x by Poisson(x light) / light, which has mean x and variance x / light."""
    return np.stack([rng.poisson(x) for rng, x in zip(streams, images / 255 * light, strict=True)]) / light


def impulse_noise(images: np.ndarray, streams: Streams, amount: float) -> np.ndarray:
    """Replace a random share `amount` of all values, each channel by itself: one half by 0, the other by 1."""
    u = np.stack([rng.random(images.shape[1:]) for rng in streams])
    return np.where(u < amount, np.where(u < amount / 2, 0.0, 1.0), images / 255)


def speckle_noise(images: np.ndarray, streams: Streams, sigma: float) -> np.ndarray:
    """Add noise in proportion to the value: x + x N(0, sigma)."""
    return images / 255 * (1 + sigma * _normal(images, streams))


def _normal(images: np.ndarray, streams: Streams) -> np.ndarray:
    return np.stack([rng.standard_normal(images.shape[1:]) for rng in streams])


def brightness(images: np.ndarray, streams: Streams, more: float) -> np.ndarray:
    """Raise V of HSV by `more`, at most to 1. Hue and saturation stay, so all channels grow by the same factor."""
    x = images / 255
    value = x.max(axis=-1, keepdims=True)
    raised = np.minimum(value + more, 1)
    return np.where(value > 0, x / np.where(value > 0, value, 1) * raised, raised)


def saturate(images: np.ndarray, streams: Streams, scale: float, shift: float) -> np.ndarray:
    """Replace S of HSV by S scale + shift, clipped to [0, 1].

    The distance of each channel from the largest, V, is proportional to S. Grey has hue 0, so saturation makes it red.
    """
    x = images / 255
    value = x.max(axis=-1, keepdims=True)
    span = value - x.min(axis=-1, keepdims=True)
    grey = span == 0
    saturation = np.clip(np.where(grey, 0, span / np.where(grey, 1, value)) * scale + shift, 0, 1)
    below = np.where(grey, [0.0, 1.0, 1.0], (value - x) / np.where(grey, 1, span))
    return value * (1 - saturation * below)


def contrast(images: np.ndarray, streams: Streams, factor: float) -> np.ndarray:
    """Multiply the distance to the channel's mean by `factor`."""
    x = images / 255
    mean = x.mean(axis=(1, 2), keepdims=True)
    return (x - mean) * factor + mean


def pixelate(images: np.ndarray, streams: Streams, side: int) -> np.ndarray:
    """Resize to `side` pixels and back, with Pillow's box filter."""
    small = (side, side)
    full = images.shape[1:3]
    box = Image.Resampling.BOX
    return np.stack([np.asarray(Image.fromarray(image).resize(small, box).resize(full, box)) for image in images])


def jpeg_compression(images: np.ndarray, streams: Streams, quality: int) -> np.ndarray:
    """Write each image as JPEG and read it again, with Pillow."""
    out = np.empty_like(images)
    for i, image in enumerate(images):
        Image.fromarray(image).save(file := io.BytesIO(), "JPEG", quality=quality)
        with Image.open(file) as read:
            out[i] = np.asarray(read)
    return out


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
    "gaussian_noise": (gaussian_noise, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,))),
    "shot_noise": (shot_noise, ((500,), (250,), (100,), (75,), (50,))),
    "impulse_noise": (impulse_noise, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "speckle_noise": (speckle_noise, ((0.06,), (0.10,), (0.12,), (0.16,), (0.20,))),
    "brightness": (brightness, ((0.05,), (0.10,), (0.15,), (0.20,), (0.30,))),
    "saturate": (saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
    "contrast": (contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
    "pixelate": (pixelate, ((30,), (28,), (27,), (24,), (20,))),
    "jpeg_compression": (jpeg_compression, ((80,), (65,), (58,), (50,), (40,))),
    "elastic_transform": (
        elastic_transform,
        ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)),
    ),
}
