"""Brightness, contrast, saturation, pixels and JPEG of CIFAR-10-C. The module `grey` explains functions and `TABLE`."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from .grey import Streams, Table


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


TABLE: Table = {
    "brightness": (brightness, ((0.05,), (0.10,), (0.15,), (0.20,), (0.30,))),
    "saturate": (saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
    "contrast": (contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
    "pixelate": (pixelate, ((30,), (28,), (27,), (24,), (20,))),
    "jpeg_compression": (jpeg_compression, ((80,), (65,), (58,), (50,), (40,))),
}
