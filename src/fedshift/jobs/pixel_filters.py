"""Filter responses around each pixel: what the control of segmentation sees.

Pixel classification by such filters and a classical classifier is how masks are drawn without a network (ilastik: Berg
et al., Nature Methods 2019;16:1226). A network that does not beat it has learnt no shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..core.console import Progress
from ..core.rng import stream
from ..core.units import IGNORED
from .linear_classifier import Facts, fit, probabilities

if TYPE_CHECKING:
    from ..data.prepared import Prepared
    from ..tasks import Task

PIXELS = 100_000
"""Most pixels of the training images, and of the validation images, that are used: as many of each image."""
SCALES = (1.0, 2.0, 4.0)
"""Standard deviations of the Gaussians, in pixels."""
THRESHOLDS = tuple(k / 20 for k in range(2, 13))
"""Probabilities of being no background from which a pixel belongs to a structure: the best one is chosen."""


def predictions(
    task: Task, prepared: Prepared, train: np.ndarray, val: np.ndarray, test: np.ndarray
) -> tuple[np.ndarray, Facts]:
    """Return the task's numbers (n, columns) of the images at the rows `test`, and the facts that the table states.

    A linear classifier is fitted to pixels of the images at the rows `train`. Its penalty and its threshold are chosen
    by pixels of those at the rows `val`; without any, the threshold by the training pixels. A threshold is needed
    since structures are small: at a half most of their pixels are background.
    """
    masks = prepared.masks
    assert masks is not None
    classes = len(prepared.classes)
    x, y = _drawn(prepared, masks, train)
    x_val, y_val = _drawn(prepared, masks, val)
    model, penalty = fit(x, y, x_val, y_val)
    chosen_by = (x_val, y_val) if len(y_val) else (x, y)
    threshold = best_threshold(probabilities(model, chosen_by[0], classes), chosen_by[1])
    numbers = []
    with Progress("control", len(test), "images") as bar:
        for row in test:
            reference = np.asarray(masks[row])
            p = probabilities(model, features(prepared.images[row]), classes)
            predicted = labelled(p, threshold).reshape(reference.shape)
            spacing = None if prepared.spacing is None else prepared.spacing[[row]]
            numbers.append(task.of_masks(predicted[None], reference[None], classes, spacing=spacing))
            bar.update(1)
    facts: Facts = {"features": x.shape[1], "C": penalty, "threshold": threshold}
    return np.concatenate(numbers), facts


def features(image: np.ndarray) -> np.ndarray:
    """Return the filter responses (height x width, k) of an image (height, width, channels), uint8: 13 a channel.

    They are the value and, at each of `SCALES`, the Gaussian, the magnitude of its gradient, and the two eigenvalues of
    its Hessian, which tell lines from edges and blobs. Beyond the rim the nearest pixel goes on.
    """
    from scipy.ndimage import gaussian_filter

    responses = []
    for channel in np.moveaxis(image.astype(np.float32), 2, 0):
        responses.append(channel)
        for scale in SCALES:
            smooth, down, right, down2, right2, mixed = (
                gaussian_filter(channel, scale, order=order, mode="nearest")
                for order in ((0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (1, 1))
            )
            middle, half = (down2 + right2) / 2, np.hypot((down2 - right2) / 2, mixed)
            responses += [smooth, np.hypot(down, right), middle + half, middle - half]
    return np.stack(responses, axis=-1).reshape(-1, len(responses)).astype(np.float64)


def _drawn(prepared: Prepared, masks: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return features (pixels, k) and classes (pixels,) of pixels that are drawn from the images at some rows."""
    names = prepared.samples["sample"].to_numpy()
    area = int(np.prod(masks.shape[1:]))
    number = min(max(PIXELS // max(len(rows), 1), 1), area)
    values, labels = [], []
    for row in rows:
        # The key is the image alone, so that its pixels are the same in every partition.
        pixels = stream("control", names[row]).choice(area, number, replace=False)
        pixels = pixels[masks[row].ravel()[pixels] != IGNORED]
        values.append(features(prepared.images[row])[pixels])
        labels.append(masks[row].ravel()[pixels])
    if not values:
        return np.empty((0, 0)), np.empty(0, dtype=np.int64)
    return np.concatenate(values), np.concatenate(labels).astype(np.int64)


def labelled(p: np.ndarray, threshold: float) -> np.ndarray:
    """Return the classes (n,) of pixels with probabilities (n, classes); the background is class 0.

    A pixel has its most probable class but the background where the probability of being none is `threshold` at least.
    """
    return np.where(1 - p[:, 0] >= threshold, 1 + p[:, 1:].argmax(1), 0)


def best_threshold(p: np.ndarray, labels: np.ndarray) -> float:
    """Return the one of `THRESHOLDS` with the best Dice of all that is not background, of several the least."""
    there = labels > 0

    def dice(threshold: float) -> float:
        found = 1 - p[:, 0] >= threshold
        return float(2 * (found & there).sum() / max(found.sum() + there.sum(), 1))

    return max(THRESHOLDS, key=dice)
