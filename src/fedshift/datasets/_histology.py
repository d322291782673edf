"""Synthetic tissue: lymph-node patches stained with haematoxylin and eosin, as five hospitals would see them.

A patch imitates light that passes through tissue. Two concentration maps, haematoxylin in the nuclei and eosin in the
stroma between them, absorb light according to the law of Beer and Lambert: the optical density of a pixel is the sum of
the concentrations, each times the vector of its stain, and the intensity is 255 exp(-density). Then the scanner blurs,
applies its gamma and adds noise. The tissue is the same at all hospitals; the `Stain` differs.

The label says whether the central 32x32 pixels contain tumour, and only size and shape of the nuclei show it. Both
kinds of cells lie on lattices whose spacing is proportional to the size of the nucleus: few large nuclei and many small
ones cover the same area and absorb the same light, so colour does not reveal the label.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

SIZE = 96  # pixels along a side
CORE = 32  # pixels along a side of the central region, which decides the label
MARGIN = 32  # pixels around the patch: nuclei with centres in its inner half reach into the patch

Points = npt.NDArray[np.float64]  # rows and columns
Floats = npt.NDArray[np.float32]
Vector = tuple[float, ...]


@dataclass(frozen=True)
class Stain:
    """The colours of the stains, and the properties of the scanner, of one hospital."""

    haematoxylin: Vector  # optical density of a unit concentration, in red, green and blue
    eosin: Vector
    strength: Vector  # multipliers of the two concentrations
    blur: float  # standard deviation of the Gaussian, in pixels
    gamma: float
    noise: float  # standard deviation of the sensor's noise, in grey levels

    def away(self, shift: float) -> Stain:
        """Return this stain with its differences from centre 0 (colours, strength, gamma) multiplied by `shift`.

        At 0 it has the colours of centre 0, at 1 it is unchanged. Blur and noise stay.
        """
        centre = CENTRES[0]
        return replace(
            self,
            haematoxylin=_away(shift, self.haematoxylin, centre.haematoxylin),
            eosin=_away(shift, self.eosin, centre.eosin),
            strength=_away(shift, self.strength, centre.strength),
            gamma=self.gamma + (shift - 1) * (self.gamma - centre.gamma),
        )


def _away(shift: float, values: Vector, start: Vector) -> Vector:
    """Return `values` with their differences from `start` multiplied by `shift`; at 1 they keep their bits."""
    return tuple(value + (shift - 1) * (value - first) for value, first in zip(values, start, strict=True))


CENTRES: tuple[Stain, ...] = (
    Stain((0.62, 0.72, 0.34), (0.14, 0.62, 0.28), (1.00, 1.00), blur=0.50, gamma=1.00, noise=3.0),
    Stain((0.54, 0.76, 0.34), (0.10, 0.70, 0.38), (0.90, 1.45), blur=0.60, gamma=0.85, noise=4.0),
    Stain((0.74, 0.68, 0.32), (0.24, 0.56, 0.22), (1.15, 0.95), blur=0.45, gamma=1.25, noise=3.0),
    Stain((0.64, 0.70, 0.32), (0.16, 0.60, 0.25), (0.95, 0.95), blur=0.55, gamma=1.00, noise=3.0),
    Stain((0.60, 0.73, 0.35), (0.13, 0.63, 0.31), (1.00, 1.05), blur=0.50, gamma=1.00, noise=3.5),
)


@dataclass(frozen=True)
class Cells:
    """Sizes and shapes of the nuclei of one type of cells."""

    radius: tuple[float, float]  # range of the typical radius, one value per patch, in pixels
    spread: float  # log standard deviation of the radius within a patch
    elongation: float  # log standard deviation of the axes' ratio
    dent: float  # standard deviation of the departure from an ellipse
    rim: float  # excess density of the rim over the middle; the mean is unchanged


LYMPHOCYTES = Cells((2.9, 4.3), spread=0.15, elongation=0.15, dent=0.05, rim=0.05)
TUMOUR = Cells((4.4, 6.4), spread=0.22, elongation=0.30, dent=0.15, rim=0.20)


def draw(rng: np.random.Generator, tumour: bool, stain: Stain) -> npt.NDArray[np.uint8]:
    """Draw a patch (96, 96, 3), uint8, with or without tumour in its central 32x32 pixels, as a hospital sees it."""
    nuclei = _nuclei(rng, tumour)
    chromatin = 1 + 0.10 * _smooth(rng, 48)
    haematoxylin = 1.10 * nuclei * chromatin + rng.uniform(0, 0.25) + 0.03 * _smooth(rng, 12)
    eosin = (1 - 0.8 * np.minimum(nuclei, 1)) * _stroma(rng)
    load = np.asarray(stain.strength) * rng.lognormal(0, 0.18, 2)
    vectors = (load[:, None] * [stain.haematoxylin, stain.eosin]).astype(np.float32)
    density = vectors[0, :, None, None] * haematoxylin + vectors[1, :, None, None] * eosin
    blur = _blur(stain.blur)
    seen = (blur @ np.exp(-density) @ blur.T) ** np.float32(stain.gamma)
    seen = 255 * seen + np.float32(stain.noise) * rng.standard_normal(seen.shape, dtype=np.float32)
    return np.clip(seen + 0.5, 0, 255).astype(np.uint8).transpose(1, 2, 0)


def _nuclei(rng: np.random.Generator, tumour: bool) -> Floats:
    """Draw the density of nuclei (SIZE, SIZE): lymphocytes, and tumour cells inside a round region, the nest.

    With `tumour`, the nest covers the middle; without, it lies beside the central region or outside the patch.
    """
    reach = rng.uniform(24, 48)
    crowding = rng.uniform(2.1, 2.7)
    # the nest covers the middle, or stays outside of the circle around the central region
    distance = rng.uniform(0, 12) if tumour else reach + CORE * 0.71 + rng.uniform(10, 40)
    angle = rng.uniform(0, 2 * np.pi)
    nest = SIZE / 2 + distance * np.array([np.sin(angle), np.cos(angle)])
    canvas = np.zeros((SIZE + 2 * MARGIN, SIZE + 2 * MARGIN), np.float32)
    for cells in (LYMPHOCYTES, TUMOUR):
        radius = rng.uniform(*cells.radius)
        places = _lattice(rng, crowding * radius * np.exp(cells.spread**2))
        inside = np.hypot(*(places - nest).T) < reach
        _splat(canvas, rng, places[inside == (cells is TUMOUR)], radius, cells)
    return canvas[MARGIN:-MARGIN, MARGIN:-MARGIN]


def _lattice(rng: np.random.Generator, spacing: float) -> Points:
    """Draw the centres of nuclei (n, 2) on a jittered square lattice with random offset and direction.

    They cover the patch and half of its margin. `spacing` is in pixels.
    """
    half = SIZE / 2 + MARGIN / 2
    steps = np.arange(-np.ceil(1.5 * half / spacing), np.ceil(1.5 * half / spacing) + 1)
    grid = np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 2)
    grid = (grid + rng.uniform(-0.5, 0.5, 2) + rng.uniform(-0.35, 0.35, grid.shape)) * spacing
    turn = rng.uniform(0, np.pi / 2)
    points = grid @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    return points[(np.abs(points) < half).all(1)] + SIZE / 2


def _splat(canvas: Floats, rng: np.random.Generator, places: Points, radius: float, cells: Cells) -> None:
    """Draw a nucleus at each of `places` (n, 2) into `canvas`, each in a small window of its own.

    `radius` is the typical radius in pixels. Where two nuclei overlap, the denser one shows.
    """
    count = len(places)
    draws = rng.standard_normal((4, count, 1, 1)).clip(-2, 2).astype(np.float32)
    size = np.float32(radius) * np.exp(cells.spread * draws[0])
    stretch = np.exp(0.5 * cells.elongation * draws[1])
    turn = rng.uniform(0, np.pi, (count, 1, 1)).astype(np.float32)
    # a window is smaller than half the margin, which centres reach into: it stays within the canvas
    half = min(int(np.ceil(1.5 * radius * np.exp(2 * cells.spread))), MARGIN // 2 - 1)
    corner = np.rint(places).astype(int)
    offset = (places - corner).astype(np.float32)
    window = np.arange(-half, half + 1, dtype=np.float32)
    y = window[:, None] - offset[:, 0, None, None]
    x = window - offset[:, 1, None, None]
    across = (np.cos(turn) * x + np.sin(turn) * y) / (size * stretch)
    along = (np.cos(turn) * y - np.sin(turn) * x) * (stretch / size)
    square = across**2 + along**2
    level = square + cells.dent * draws[2] * across * (square - 4 * along**2) / (1 + square)
    edge = np.clip(1.7 * (1 - level) + 0.5, 0, 1)
    stamps = edge * np.exp(0.12 * draws[3]) * (1 - cells.rim + 2 * cells.rim * np.minimum(square, 1))
    for (row, column), stamp in zip((corner + (MARGIN - half)).tolist(), stamps, strict=True):
        under = canvas[row : row + 2 * half + 1, column : column + 2 * half + 1]
        np.maximum(under, stamp, out=under)


def _stroma(rng: np.random.Generator) -> Floats:
    """Draw the concentration of eosin (SIZE, SIZE) between nuclei: clouds of cytoplasm, crossed by wavy fibres."""
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float32) / SIZE
    angle = rng.uniform(0, np.pi)
    waves = rng.uniform(25, 45)
    fibres = np.sin(waves * (np.cos(angle) * x + np.sin(angle) * y) + 2.5 * _smooth(rng, 8))
    return np.maximum(0.55 + 0.15 * _smooth(rng, 8) + 0.08 * fibres + 0.06 * _smooth(rng, 32), 0.05)


def _smooth(rng: np.random.Generator, knots: int) -> Floats:
    """Draw smooth noise (SIZE, SIZE) of unit variance: a random grid of knots, enlarged with cubic splines."""
    spline = _splines(knots)
    coarse: Floats = rng.standard_normal((knots + 3, knots + 3), dtype=np.float32)
    return np.linalg.multi_dot([spline, coarse, spline.T])


@functools.cache
def _splines(knots: int) -> Floats:
    """Return the matrix (SIZE, knots + 3) of cubic B-splines at the pixels; rows have norm 1, to keep the variance."""
    distance = np.abs(np.linspace(1, knots + 1, SIZE)[:, None] - np.arange(knots + 3))
    # the two pieces of a cubic B-spline, below and above a distance of 1
    near = 2 / 3 - distance**2 + distance**3 / 2
    far = np.clip(2 - distance, 0, None) ** 3 / 6
    spline = np.where(distance < 1, near, far)
    return (spline / np.sqrt((spline**2).sum(1, keepdims=True))).astype(np.float32)


@functools.cache
def _blur(sigma: float) -> Floats:
    """Return the matrix (SIZE, SIZE) that blurs the columns of an image by a Gaussian of `sigma` pixels."""
    pixel = np.arange(SIZE)
    kernel = np.exp(-0.5 * ((pixel[:, None] - pixel) / sigma) ** 2)
    return (kernel / kernel.sum(1, keepdims=True)).astype(np.float32)
