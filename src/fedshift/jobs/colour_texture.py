"""Colour and texture of whole images: what the control of classification sees.

Colours carry stain and scanner, and the energy of edges carries focus and magnification. A network that does not beat
such numbers at external sites has learnt nothing that travels further than they do.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from ..core.console import Progress
from .linear_classifier import Facts, fit, probabilities

if TYPE_CHECKING:
    from ..data.prepared import Prepared
    from ..tasks import Task

BLOCK = 1 << 18
"""Pixels that are held in memory at once, in images of this dataset: one image at least."""
PERCENTILES = (5, 25, 50, 75, 95)
"""Percentiles of each channel."""
SCALES = 3
"""Resolutions at which edges are measured: each has half the resolution of the one before."""
_LEAST = 1e-6
_NEIGHBOURS = ((-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1))


def predictions(
    task: Task, prepared: Prepared, train: np.ndarray, val: np.ndarray, test: np.ndarray
) -> tuple[np.ndarray, Facts]:
    """Return the probabilities (n, classes) of the images at the rows `test`, and the facts that the table states.

    A linear classifier is fitted to the features of the images at the rows `train`, and its penalty is chosen by those
    at the rows `val`.
    """
    values = read_features(prepared.images, np.concatenate([train, val, test]))
    x, x_val, x_test = np.split(values, np.cumsum([len(train), len(val)]))
    labels = prepared.samples["label"].to_numpy()
    model, penalty = fit(x, labels[train], x_val, labels[val])
    return probabilities(model, x_test, len(prepared.classes)), {"features": values.shape[1], "C": penalty}


def read_features(images: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the features (n, k) of the images at `rows` (n,) of a memory-mapped array, read block by block."""
    size = max(1, BLOCK // int(np.prod(images.shape[1:3])))
    # In the order of the file, since the array is read from disk.
    order = np.argsort(rows, kind="stable")
    blocks = []
    with Progress("control", len(rows), "images") as bar:
        for start in range(0, len(rows), size):
            block = np.asarray(images[rows[order[start : start + size]]])
            blocks.append(features(block))
            bar.update(len(block))
    together = np.concatenate(blocks) if blocks else np.empty((0, 0))
    out = np.empty_like(together)
    out[order] = together
    return out


def features(images: np.ndarray) -> np.ndarray:
    """Return colour and texture statistics (n, k) of images (n, height, width, channels), uint8: 48 of RGB images.

    Of each channel: mean, standard deviation and percentiles. Of each pair of channels: the correlation. Of colour
    images: mean and standard deviation of the difference between the largest and the smallest channel. Of each
    channel: mean and standard deviation of the gradient's magnitude. Of the mean channel at three resolutions: the
    logarithm of the energies of gradient and Laplacian. Of the mean channel: the shares of the ten uniform,
    rotation-invariant local binary patterns (Ojala, Pietikainen and Maenpaa, IEEE TPAMI 2002;24:971). Energies and
    patterns need images of 4 x 4 pixels at least.
    """
    planes = np.ascontiguousarray(np.moveaxis(images, 3, 1))
    x = planes.astype(np.float32)
    parts = [_colours(planes, x)]
    if min(images.shape[1:3]) >= 4:
        grey = _over_channels(np.add, x) / np.float32(x.shape[1])
        parts += [_edges(x), _energies(grey), _patterns(grey)]
    return np.concatenate(parts, axis=1).astype(np.float64)


def _over_channels(combine: np.ufunc, planes: np.ndarray) -> np.ndarray:
    """Return the planes (n, channels, height, width) combined to one: (n, height, width)."""
    return functools.reduce(combine, np.moveaxis(planes, 1, 0))


def _colours(planes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the statistics of single channels, of pairs of channels, and of saturation."""
    mean, deviation, percentiles = _of_histogram(planes.reshape(len(planes), planes.shape[1], -1))
    parts = [mean, deviation, percentiles.reshape(len(planes), -1)]
    if planes.shape[1] > 1:
        first, second = np.triu_indices(planes.shape[1], k=1)
        flat = (x - mean[:, :, None, None].astype(np.float32)).reshape(len(x), x.shape[1], -1)
        covariance = flat @ flat.transpose(0, 2, 1) / flat.shape[2]
        scale = np.maximum(deviation[:, first] * deviation[:, second], _LEAST)
        saturation = _over_channels(np.maximum, planes) - _over_channels(np.minimum, planes)
        parts += [covariance[:, first, second] / scale, *_of_histogram(saturation.reshape(len(planes), 1, -1))[:2]]
    return np.concatenate(parts, axis=1)


def _of_histogram(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, standard deviation (n, channels) and percentiles (n, channels, 5) of bytes (n, channels, pixels)."""
    levels = np.arange(256)
    groups = values.shape[0] * values.shape[1]
    pixels = values.shape[2]
    # One histogram for all groups: each has its own range of 256 codes.
    codes = values.reshape(groups, pixels) + 256 * np.arange(groups, dtype=np.int32)[:, None]
    counts = np.bincount(codes.ravel(), minlength=256 * groups).reshape(*values.shape[:2], 256)
    mean = counts @ levels / pixels
    deviation = np.sqrt(np.maximum(counts @ levels**2 / pixels - mean**2, 0))
    ranks = np.ceil(np.array(PERCENTILES) / 100 * pixels)
    percentiles = (counts.cumsum(-1)[..., None] < ranks).sum(-2)
    return mean, deviation, percentiles


def _edges(x: np.ndarray) -> np.ndarray:
    """Return mean and standard deviation of the gradient's magnitude of each channel."""
    corner = x[..., :-1, :-1]
    magnitude = np.hypot(x[..., :-1, 1:] - corner, x[..., 1:, :-1] - corner)
    return np.concatenate([magnitude.mean((2, 3)), magnitude.std((2, 3))], axis=1)


def _energies(grey: np.ndarray) -> np.ndarray:
    """Return the logarithm of the mean squares of gradient and Laplacian at several resolutions."""
    parts = []
    for _ in range(SCALES):
        if min(grey.shape[1:]) < 3:
            break
        gradient = (np.diff(grey, axis=1) ** 2).mean((1, 2)) + (np.diff(grey, axis=2) ** 2).mean((1, 2))
        inner = grey[:, 1:-1, 1:-1]
        sides = grey[:, :-2, 1:-1] + grey[:, 2:, 1:-1] + grey[:, 1:-1, :-2] + grey[:, 1:-1, 2:]
        laplacian = ((sides - 4 * inner) ** 2).mean((1, 2))
        parts += [np.log1p(gradient), np.log1p(laplacian)]
        even = grey[:, : grey.shape[1] // 2 * 2, : grey.shape[2] // 2 * 2]
        grey = (even[:, ::2, ::2] + even[:, 1::2, ::2] + even[:, ::2, 1::2] + even[:, 1::2, 1::2]) / 4
    return np.stack(parts, axis=1)


def _patterns(grey: np.ndarray) -> np.ndarray:
    """Return the shares of local binary patterns: 0 to 8 neighbours above the centre in one arc, and all others."""
    height, width = grey.shape[1] - 2, grey.shape[2] - 2
    centre = grey[:, 1:-1, 1:-1]
    above = [grey[:, 1 + i : 1 + i + height, 1 + j : 1 + j + width] >= centre for i, j in _NEIGHBOURS]
    number = np.zeros(centre.shape, np.uint8)
    changes = np.zeros(centre.shape, np.uint8)
    for neighbour, following in zip(above, [*above[1:], above[0]], strict=True):
        number += neighbour
        changes += neighbour != following
    # More than two changes around the centre: no single arc, so all such patterns count as one.
    number[changes > 2] = len(_NEIGHBOURS) + 1
    codes = len(_NEIGHBOURS) + 2
    image = np.arange(len(grey))[:, None] * codes
    counts = np.bincount((number.reshape(len(grey), -1) + image).ravel(), minlength=len(grey) * codes)
    return counts.reshape(-1, codes) / (height * width)
