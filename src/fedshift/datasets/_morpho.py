"""Morpho-MNIST (Castro et al. 2019, JMLR 20(178)): its files, and perturbations of handwritten digits like its own.

The files are IDX files with the names of MNIST's and a third one of perturbations, in two folders.

To perturb digits, they are enlarged four times and thresholded at half their greatest value. The enlarged digit is
measured and changed, then blurred and reduced again. The amounts are the published defaults as remembered, not checked;
skeletons are those of Zhang and Suen 1984. So images resemble the published ones but are not equal to them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from ..core.console import Progress
from ..core.errors import UserError
from ..core.rng import stream
from ..io.download import Source, fetch
from . import _digit_files as digits
from ._base import Opened, joined, listed
from ._folders import below

KINDS: Mapping[str, tuple[int, ...]] = {"global": (0, 1, 2), "local": (0, 3, 4)}
"""Numbers of the perturbations, as in NAMES, that occur in each of the two sets."""
PAGE = "https://github.com/dccastro/Morpho-MNIST"
DRAWN = (
    "Perturbed by fedshift after the publication, with amounts from memory: similar to the published images, not equal."
)
Part = Literal["t10k", "train"]
SCALE = 4
# parts of half the stroke's thickness
THIN = 0.7
THICK = 1.0
# of the swelling
STRENGTH = 3
RADIUS = 7
# number of fractures; thickness, excess and surroundings in pixels
FRACTURES = 3
GAP = 1.5
BEYOND = 0.5
NEAR = 2
NAMES = ("plain", "thin", "thick", "swollen", "fractured")
"""The perturbations in the order of their labels."""


def sources() -> Sequence[Source]:
    """Return the archives global.zip and local.zip of Morpho-MNIST, which the user must download by hand."""
    return [Source(None, f"{kind}.zip", unpack=True, page=PAGE) for kind in KINDS]


def obtain(raw: Path, mirror: Path | None, part: Part) -> None:
    """Put Morpho-MNIST's files into `raw`/global and `raw`/local, from archives or from folders of the mirror.

    `part` is train, or t10k for the test part. The mirror's folders are called global and local, or morpho_global and
    morpho_local.
    """
    names = (*digits.mnist_names(part), _third(part))
    for kind in KINDS:
        folders = [] if mirror is None else [mirror / f"morpho_{kind}", mirror / kind]
        where = next((folder for folder in folders if (folder / names[0]).is_file()), None)
        if where is None:
            fetch(Source(None, f"{kind}.zip", unpack=True, page=PAGE), raw, mirror)
            continue
        for name in names:
            fetch(Source(None, name, page=PAGE), raw / kind, where)


def generate(raw: Path, x: np.ndarray, y: np.ndarray, part: Part) -> None:
    """Perturb digits `x` (n, 28, 28), uint8, with labels `y` (n,), and write both sets to `raw`/global and `raw`/local.

    The random perturbation of an image depends only on the set, the part and the image's number.
    """
    with Progress("perturb digits", len(x) * len(KINDS), "images") as bar:
        for kind, choice in KINDS.items():
            streams = [stream("morpho-mnist", kind, part, n) for n in range(len(x))]
            how = np.array([rng.choice(choice) for rng in streams], dtype=np.uint8)
            images = np.empty_like(x)
            for n, rng in enumerate(streams):
                images[n] = perturbed(x[n], int(how[n]), rng)
                bar.update()
            for name, array in zip((*digits.mnist_names(part), _third(part)), (images, y, how), strict=True):
                digits.write_idx(raw / kind / name, array)


def opened(raw: Path, part: Part) -> Opened:
    """Open the sites morpho_global and morpho_local; the column base of samples names the digit that both perturb."""
    parts = []
    for kind, choice in KINDS.items():
        folder = below(raw / kind, digits.mnist_names(part)[0])
        x, y = digits.read_mnist(folder, part)
        third = folder / _third(part)
        how = digits.read_idx(third, 1)
        if len(how) != len(x):
            raise UserError(third, f"has {len(how)} perturbations for {len(x)} images", "obtain it again")
        wrong = ~np.isin(how, choice)
        if wrong.any():
            first = int(wrong.argmax())
            problem = f"image {first} has perturbation {how[first]}, expected one of {', '.join(map(str, choice))}"
            raise UserError(third, problem, "obtain it again")
        base = [f"{part}{n:05}" for n in range(len(x))]
        names = [f"morpho_{kind}/{name}_{NAMES[k]}" for name, k in zip(base, how, strict=True)]
        samples = listed(names, f"morpho_{kind}", y).assign(base=base)

        def image(i: int, x: np.ndarray = x) -> np.ndarray:
            return digits.shown(x[i])

        parts.append(Opened(samples, image))
    return joined(parts)


def _third(part: Part) -> str:
    return f"{part}-pert-idx1-ubyte.gz"


class Stroke(NamedTuple):
    """An enlarged digit and measures of its stroke.

    Arrays are (112, 112): the ink (bool), its distance to the background (0 outside the ink), and its skeleton (bool).
    """

    ink: np.ndarray
    depth: np.ndarray
    skeleton: np.ndarray
    thickness: float
    """Mean thickness of the stroke, in pixels of the small image."""


def perturbed(image: np.ndarray, label: int, rng: np.random.Generator) -> np.ndarray:
    """Return a digit (28, 28) uint8, white on black, under the perturbation `NAMES[label]`; plain changes nothing."""
    if label == 0 or not image.any():
        return image
    stroke = enlarged(image)
    if label in (1, 2):
        return reduced(_grown(stroke, {1: -THIN, 2: THICK}[label]))
    if label == 3:
        return reduced(_swollen(stroke, rng))
    return reduced(_fractured(stroke, rng))


def enlarged(image: np.ndarray) -> Stroke:
    """Enlarge a digit (28, 28) uint8 four times, threshold it, and measure its stroke."""
    from scipy import ndimage

    size = (image.shape[1] * SCALE, image.shape[0] * SCALE)
    fine = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))
    ink = fine > image.max() / 2
    depth = ndimage.distance_transform_edt(ink)
    bones = skeleton(ink)
    return Stroke(ink, depth, bones, float(2 * depth[bones].mean() / SCALE))


def reduced(ink: np.ndarray) -> np.ndarray:
    """Reduce (112, 112) values from 0 to 1 to (28, 28) uint8: blur, then average the middle 2x2 of every 4x4 pixels."""
    from scipy import ndimage

    smooth = ndimage.gaussian_filter(ink.astype(np.float64), SCALE / 3)
    side = len(ink) // SCALE
    middle = smooth.reshape(side, SCALE, side, SCALE)[:, 1:3, :, 1:3].mean(axis=(1, 3))
    return (255 * middle).clip(0, 255).round().astype(np.uint8)


def _grown(stroke: Stroke, amount: float) -> np.ndarray:
    """Return the ink after erosion (`amount` < 0) or dilation by a disk of radius int(|amount| SCALE thickness / 2)."""
    from scipy import ndimage

    radius = int(abs(amount) * SCALE * stroke.thickness / 2)
    if amount < 0:
        return stroke.depth > radius
    return ndimage.distance_transform_edt(~stroke.ink) <= radius


def _swollen(stroke: Stroke, rng: np.random.Generator) -> np.ndarray:
    """Return the ink, from 0 to 1, magnified around a random point of the skeleton.

    At distance d < r from the point, the new value is the old one at the distance d (d / r)^(STRENGTH - 1).
    """
    from scipy import ndimage

    points = np.argwhere(stroke.skeleton)
    centre = points[rng.integers(len(points))][:, None, None]
    radius = RADIUS * stroke.thickness**0.5 / 2 * SCALE
    offset = np.indices(stroke.ink.shape) - centre
    pull = np.minimum(np.hypot(*offset) / radius, 1) ** (STRENGTH - 1)
    return ndimage.map_coordinates(stroke.ink.astype(np.float64), centre + pull * offset, order=1)


def _fractured(stroke: Stroke, rng: np.random.Generator) -> np.ndarray:
    """Return the ink with gaps across the stroke, at random points of the skeleton away from its ends and forks."""
    from scipy import ndimage

    ink = stroke.ink.copy()
    around = ndimage.convolve(stroke.skeleton.astype(int), np.ones((3, 3), dtype=int), mode="constant") - 1
    special = stroke.skeleton & ((around < 2) | (around > 2))
    clear = stroke.skeleton & (ndimage.distance_transform_edt(~special) > NEAR * SCALE if special.any() else True)
    points = np.argwhere(clear if clear.any() else stroke.skeleton)
    bones = np.argwhere(stroke.skeleton)
    for centre in points[rng.integers(len(points), size=FRACTURES)]:
        nearby = bones[np.hypot(*(bones - centre).T) <= NEAR * SCALE] - centre
        # the eigenvector of the largest eigenvalue is the direction in which the stroke extends
        along = np.linalg.eigh(nearby.T @ nearby)[1][:, 1]
        offset = np.indices(ink.shape) - centre[:, None, None]
        length, width = (np.abs(np.tensordot(v, offset, 1)) for v in (along, along[::-1] * (1, -1)))
        reach = stroke.depth[tuple(centre)] + BEYOND * SCALE
        ink[(length <= GAP * SCALE / 2) & (width <= reach)] = False
    return ink


def skeleton(ink: np.ndarray) -> np.ndarray:
    """Thin `ink` (height, width), bool, to its skeleton, as Zhang and Suen 1984 (Communications of the ACM 27(3))."""
    bones = np.pad(ink, 1)
    height, width = ink.shape
    tables = _peeled()
    while True:
        before = bones.sum()
        for table in tables:
            code = np.zeros(ink.shape, dtype=np.uint8)
            for bit, (down, right) in enumerate(_RING):
                code |= bones[1 + down : 1 + down + height, 1 + right : 1 + right + width].astype(np.uint8) << bit
            bones[1:-1, 1:-1] &= ~table[code]
        if bones.sum() == before:
            return bones[1:-1, 1:-1]


_RING = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
"""Steps (down, right) to a pixel's neighbours, clockwise from the one above: P2 to P9 of Zhang and Suen."""


@functools.cache
def _peeled() -> tuple[np.ndarray, np.ndarray]:
    """Return a table (256,), bool, for each of the two steps of an iteration of Zhang and Suen's thinning.

    It is True where a pixel with this neighbourhood is removed; bit k of the index is the neighbour `_RING[k]`.
    """
    ring = np.arange(256)[:, None] >> np.arange(8) & 1
    total = ring.sum(axis=1)
    steps = ((ring == 0) & (np.roll(ring, -1, axis=1) == 1)).sum(axis=1)
    rim = (total >= 2) & (total <= 6) & (steps == 1)
    north, east, south, west = (ring[:, k] == 1 for k in (0, 2, 4, 6))
    first = rim & ~(north & east & south) & ~(east & south & west)
    second = rim & ~(north & east & west) & ~(north & south & west)
    return first, second
