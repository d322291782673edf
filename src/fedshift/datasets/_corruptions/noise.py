"""Noise of CIFAR-10-C. The module `grey` explains functions and `TABLE`."""

from __future__ import annotations

import numpy as np

from .grey import Streams, Table


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


TABLE: Table = {
    "gaussian_noise": (gaussian_noise, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,))),
    "shot_noise": (shot_noise, ((500,), (250,), (100,), (75,), (50,))),
    "impulse_noise": (impulse_noise, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "speckle_noise": (speckle_noise, ((0.06,), (0.10,), (0.12,), (0.16,), (0.20,))),
}
