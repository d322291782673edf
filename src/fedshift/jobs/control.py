"""A control without a network: a linear classifier of a few numbers, on the partition of a study's runs.

The control of classification sees colour and texture of whole images. Colours carry stain and scanner, and the energy
of edges carries focus and magnification: a network that does not beat such numbers at external sites has learnt nothing
that travels further than they do. The control of segmentation sees filter responses around each pixel. Pixel
classification by such filters and a classical classifier is how masks are drawn without a network (ilastik: Berg et
al., Nature Methods 2019;16:1226): a network that does not beat it has learnt no shapes.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..core.console import Progress, say, track
from ..core.errors import UserError
from ..core.rng import stream
from ..core.units import IGNORED
from ..data.prepared import Prepared
from ..io.paths import Paths
from ..io.tables import read_table, write_table
from ..study.run import Run

if TYPE_CHECKING:
    from ..tasks import Task

CS = (0.01, 0.1, 1.0, 10.0)
"""Values of C, the inverse strength of the L2 penalty, among which the validation samples choose."""
DEFAULT_C = 1.0
"""The C of a partition without validation samples."""
Facts = dict[Hashable, float]
"""What the table of a control states in its attributes: the number of features, and the settings that were chosen."""


def fit(values: np.ndarray, labels: np.ndarray, val: np.ndarray, val_labels: np.ndarray) -> tuple[object, float]:
    """Fit a logistic regression to features (n, k) and labels (n,), and return it with its C.

    Of `CS`, C has the least log loss on the validation samples `val`; of equal losses, the stronger penalty is taken.
    Without validation samples C is `DEFAULT_C`. If there is one class only, the classifier always predicts that class.
    """
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) < 2:
        return DummyClassifier(strategy="prior").fit(values, labels), DEFAULT_C
    classes = int(max(labels.max(), val_labels.max(initial=0))) + 1
    best: tuple[float, float, object] | None = None
    # Ascending C, from strong to weak penalties: of equal losses, the first has the stronger penalty.
    for penalty in CS if len(val) else (DEFAULT_C,):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=1000)).fit(values, labels)
        loss = 0.0
        if len(val):
            p = probabilities(model, val, classes)[np.arange(len(val)), val_labels]
            loss = float(-np.log(np.maximum(p, 1e-12)).mean())
        if best is None or loss < best[0]:
            best = loss, penalty, model
    assert best is not None
    return best[2], best[1]


def probabilities(model: object, values: np.ndarray, classes: int) -> np.ndarray:
    """Return a classifier's probabilities (n, classes) of features (n, k); 0 for a class that it was not trained on."""
    out = np.zeros((len(values), classes))
    if len(values):
        out[:, model.classes_] = model.predict_proba(values)  # type: ignore[attr-defined]
    return out


BLOCK = 1 << 18
"""Number of pixels that are held in memory at once, but one image at least."""
PERCENTILES = (5, 25, 50, 75, 95)
"""Percentiles of the values of each channel that are features."""
RESOLUTIONS = 3
"""Number of resolutions at which edges are measured: each has half the resolution of the one before."""
_LEAST = 1e-6
_NEIGHBOURS = ((-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1))


def by_colour_texture(
    task: Task, prepared: Prepared, train: np.ndarray, val: np.ndarray, test: np.ndarray
) -> tuple[np.ndarray, Facts]:
    """Return the probabilities (n, classes) of the images at the rows `test`, and the `Facts` of the classifier.

    A linear classifier is fitted to the features of the images at the rows `train`, and its penalty is chosen by the
    images at the rows `val`.
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
            blocks.append(image_features(block))
            bar.update(len(block))
    together = np.concatenate(blocks) if blocks else np.empty((0, 0))
    out = np.empty_like(together)
    out[order] = together
    return out


def image_features(images: np.ndarray) -> np.ndarray:
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
    """Combine the channels of planes (n, channels, height, width) by a ufunc such as np.maximum: (n, height, width)."""
    return functools.reduce(combine, np.moveaxis(planes, 1, 0))


def _colours(planes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return features (n, k) of single channels, of pairs of channels, and of saturation.

    `planes` (n, channels, height, width) are uint8, and `x` is the same as float32.
    """
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
    """Return mean and standard deviation of the gradient's magnitude in each channel, (n, 2 channels).

    `x` are images (n, channels, height, width).
    """
    corner = x[..., :-1, :-1]
    magnitude = np.hypot(x[..., :-1, 1:] - corner, x[..., 1:, :-1] - corner)
    return np.concatenate([magnitude.mean((2, 3)), magnitude.std((2, 3))], axis=1)


def _energies(grey: np.ndarray) -> np.ndarray:
    """Return the logarithms (n, k) of the mean squares of gradient and Laplacian at several resolutions.

    `grey` are images (n, height, width).
    """
    parts = []
    for _ in range(RESOLUTIONS):
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
    """Return the shares (n, 10) of local binary patterns in images (n, height, width).

    The first nine have 0 to 8 neighbours above the centre in one arc; the tenth are all others.
    """
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


PIXELS = 100_000
"""The most pixels drawn from all training images, and from all validation images: as many of each image."""
SCALES = (1.0, 2.0, 4.0)
"""Standard deviations of the Gaussians, in pixels."""
THRESHOLDS = tuple(k / 20 for k in range(2, 13))
"""Thresholds among which the best is chosen: a pixel whose probability of not being background reaches it belongs to a
structure."""


def by_pixel_filters(
    task: Task, prepared: Prepared, train: np.ndarray, val: np.ndarray, test: np.ndarray
) -> tuple[np.ndarray, Facts]:
    """Return the numbers (n, columns) that the task records of the images at the rows `test`, and the `Facts`.

    A linear classifier is fitted to pixels of the images at the rows `train`. Its penalty and its threshold are chosen
    by pixels of the images at the rows `val`; without any, the threshold by the training pixels. A threshold is needed
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
    for row in track(test, "control", len(test), "images"):
        reference = np.asarray(masks[row])
        p = probabilities(model, pixel_features(prepared.images[row]), classes)
        predicted = labelled(p, threshold).reshape(reference.shape)
        spacing = None if prepared.spacing is None else prepared.spacing[[row]]
        numbers.append(task.of_masks(predicted[None], reference[None], classes, spacing=spacing))
    facts: Facts = {"features": x.shape[1], "C": penalty, "threshold": threshold}
    return np.concatenate(numbers), facts


def pixel_features(image: np.ndarray) -> np.ndarray:
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
    """Return features (pixels, k) and classes (pixels,) of pixels drawn at random from the images at `rows`."""
    names = prepared.samples["sample"].to_numpy()
    area = int(np.prod(masks.shape[1:]))
    number = min(max(PIXELS // max(len(rows), 1), 1), area)
    values, labels = [], []
    for row in rows:
        # The key is the image alone, so that its pixels are the same in every partition.
        pixels = stream("control", names[row]).choice(area, number, replace=False)
        pixels = pixels[masks[row].ravel()[pixels] != IGNORED]
        values.append(pixel_features(prepared.images[row])[pixels])
        labels.append(masks[row].ravel()[pixels])
    if not values:
        return np.empty((0, 0)), np.empty(0, dtype=np.int64)
    return np.concatenate(values), np.concatenate(labels).astype(np.int64)


def labelled(p: np.ndarray, threshold: float) -> np.ndarray:
    """Return the classes (n,) of pixels from their probabilities (n, classes); class 0 is the background.

    A pixel whose probability of not being background is `threshold` at least gets its most probable other class.
    """
    return np.where(1 - p[:, 0] >= threshold, 1 + p[:, 1:].argmax(1), 0)


def best_threshold(p: np.ndarray, labels: np.ndarray) -> float:
    """Return the threshold of `THRESHOLDS` with the best Dice of all structures together; of equal ones, the lowest.

    `p` (n, classes) are probabilities of pixels, and `labels` (n,) their classes; class 0 is the background.
    """
    there = labels > 0

    def dice(threshold: float) -> float:
        found = 1 - p[:, 0] >= threshold
        return float(2 * (found & there).sum() / max(found.sum() + there.sum(), 1))

    return max(THRESHOLDS, key=dice)


WORKERS = {"colour_texture": by_colour_texture, "pixel_filters": by_pixel_filters}
"""The function that predicts the test images, by the name that a task gives its control (a classifier without a
network)."""


def control(run: Run, paths: Paths, out: Path) -> None:
    """Write `out`: sample, site, role, label, and the task's columns for the test images of all sites of the partition.

    Features of the training images of all internal sites together are standardised, and a logistic regression with an
    L2 penalty is fitted to them (scikit-learn). The penalty is the one of `CS` with the least log loss on the
    validation images of the internal sites. Images are those that training reads, before the transforms of training.
    Every call writes the same. Raises UserError where the samples are not images.
    """
    prepared = Prepared(paths.data(run.data.id))
    if prepared.images.ndim != 4:
        raise UserError(prepared.folder, "holds no images, so it has no control", "set control: false in the study")
    partition = read_table(paths.partition(run.partition_id))
    rows = prepared.rows(partition)
    split = partition["split"].to_numpy()
    train, val, test = (split == name for name in ("train", "val", "test"))
    task = run.data.task
    values, facts = WORKERS[task.control.worker](task, prepared, rows[train], rows[val], rows[test])
    table: pd.DataFrame = partition.loc[test, ["sample", "site", "role"]].reset_index(drop=True)
    label = prepared.samples["label"].to_numpy()[rows[test]].astype(np.int64)
    columns = task.columns(run.data.dataset.classes)
    table = table.assign(label=label, **dict(zip(columns, values.T, strict=True)))
    table.attrs = {**facts, "partition": run.partition_id}
    write_table(out, table)
    chosen = ", ".join(f"{name} = {value:g}" for name, value in facts.items())
    say(f"control: {train.sum()} images to train on, {chosen}")
