"""Snow, frost, fog and spatter of CIFAR-10-C, with OpenCV's edges, box means and equalised histograms.

The module `blur` explains functions and `TABLE`.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
from scipy import ndimage
from scipy.stats import zscore

from ...core.rng import stream
from .blur import Streams, Table, moved, truncated, zooming

LUMA = np.array([0.299, 0.587, 0.114])
WATER, MUD = (np.array(rgb) / 255 for rgb in ((175, 238, 238), (63, 42, 20)))
# number, and side in pixels
TEXTURES = 5
TEXTURE = 128
# width of drifts of ice in pixels, and their contrast over that of needles
DRIFT = 20.0
THICKNESS = 3.0
COLOUR = np.array([130.0, 158.0, 170.0])  # mean of the photographs, RGB


def canny(images: np.ndarray, low: int, high: int) -> np.ndarray:
    """Find Canny's edges like OpenCV; return bool.

    An edge pixel has a Sobel gradient of strength |dx| + |dy| above `low`, where border pixels continue outside. No
    neighbour across the edge, in one of four directions, is stronger. It is connected to such a pixel above `high`. Of
    two equal neighbours, only the left or the upper one is an edge.
    """
    across, down = (_sobel(images.astype(int), axis) for axis in (2, 1))
    strength = np.abs(across) + np.abs(down)
    around = np.pad(strength, ((0, 0), (1, 1), (1, 1)))

    def at(row: int, column: int) -> np.ndarray:
        return around[:, 1 + row : around.shape[1] - 1 + row, 1 + column : around.shape[2] - 1 + column]

    flat = np.abs(down) < np.tan(np.pi / 8) * np.abs(across)
    steep = np.abs(down) > np.tan(3 * np.pi / 8) * np.abs(across)
    falling = (strength > at(-1, -1)) & (strength > at(1, 1))
    rising = (strength > at(-1, 1)) & (strength > at(1, -1))
    peak = np.select(
        [flat, steep, across * down < 0],
        [
            (strength > at(0, -1)) & (strength >= at(0, 1)),
            (strength > at(-1, 0)) & (strength >= at(1, 0)),
            rising,
        ],
        falling,
    )
    weak = peak & (strength > low)
    touching = np.zeros((3, 3, 3))
    # neighbours in a plane only: pixels of two images never touch
    touching[1] = 1
    parts, count = ndimage.label(weak, touching)
    strong = np.zeros(count + 1, dtype=bool)
    strong[parts[weak & (strength > high)]] = True
    return strong[parts]


def _sobel(x: np.ndarray, axis: int) -> np.ndarray:
    smooth = ndimage.correlate1d(x, [1, 2, 1], axis=3 - axis, mode="nearest")
    return ndimage.correlate1d(smooth, [-1, 0, 1], axis=axis, mode="nearest")


def distance(edges: np.ndarray, limit: float) -> np.ndarray:
    """Return the distance of each pixel to the nearest edge of its image, at most `limit`."""
    # images lie so far apart along the first axis that no edge of another one is nearer than the limit
    spacing = (2 * limit, 1, 1)
    nearest = ndimage.distance_transform_edt(~edges, sampling=spacing)
    return np.where(edges.any(axis=(1, 2), keepdims=True), np.minimum(nearest, limit), limit)


def box(x: np.ndarray) -> np.ndarray:
    """Return the mean over 3x3, mirrored at the border pixels; float64."""
    rows = ndimage.correlate1d(x.astype(float), [1, 1, 1], axis=1, mode="mirror")
    return ndimage.correlate1d(rows, [1, 1, 1], axis=2, mode="mirror") / 9


def equalised(images: np.ndarray) -> np.ndarray:
    """Equalise the histogram of each image, as OpenCV does.

    The lowest value becomes 0. Any other value v becomes 255 times the share of pixels up to v among all pixels above
    the lowest value. An image with a single value stays as it is.
    """
    n = len(images)
    values = images.reshape(len(images), -1).astype(int)
    counts = np.bincount((values + 256 * np.arange(n)[:, None]).ravel(), minlength=256 * n).reshape(n, 256)
    reached = counts.cumsum(axis=1)
    lowest = np.take_along_axis(counts, values.min(axis=1, keepdims=True), axis=1)
    above = values.shape[1] - lowest
    spread = np.rint(255 * (reached - lowest) / np.maximum(above, 1))
    table = np.where(above > 0, spread.clip(0, 255), np.arange(256)).astype(np.uint8)
    return np.take_along_axis(table, values, axis=1).reshape(images.shape)


def snow(
    images: np.ndarray,
    streams: Streams,
    mean: float,
    sigma: float,
    zoom: float,
    least: float,
    radius: int,
    spread: float,
    clear: float,
) -> np.ndarray:
    """Whiten the image, and add two layers of flakes, of which the second is rotated by 180 degrees.

    Flakes are zoomed noise above `least`, blurred in the direction of their fall. The image under them is
    clear x + (1 - clear) w, where w is the whitened image.
    """
    x = images / 255
    side = images.shape[1]
    drawn = np.stack([rng.normal(mean, sigma, (side, side)) for rng in streams])
    drawn = zooming(side, zoom) @ drawn @ zooming(side, zoom).T
    flakes = truncated(np.where(drawn < least, 0, drawn))
    flakes = moved(flakes, np.array([rng.uniform(-135, -45) for rng in streams]), radius, spread)
    layer = (flakes / 255)[..., None]
    white = np.maximum(x, 1.5 * (x @ LUMA)[..., None] + 0.5)
    return clear * x + (1 - clear) * white + layer + layer[:, ::-1, ::-1]


def frost(images: np.ndarray, streams: Streams, clear: float, ice: float) -> np.ndarray:
    """Return clear x + ice f, where f is a random piece of one of five textures of frost.

    The script's textures are photographs, reduced to a fifth; these are drawn (see `textures`).
    """
    side = images.shape[1]
    frosts = textures()
    pieces = []
    for rng in streams:
        which, row, column = rng.integers(0, [TEXTURES, TEXTURE - side + 1, TEXTURE - side + 1])
        pieces.append(frosts[which, row : row + side, column : column + side])
    return (clear * images + ice * np.stack(pieces)) / 255


@functools.cache
def textures() -> np.ndarray:
    """Draw bluish needles of ice: (5, 128, 128, 3) grey levels. Every call returns the same.

    Noise of three scales is smoothed along one direction more than across it. It is bright where it is near 0, which
    makes lines. Drifts of thick and thin ice lie over the needles. Mean colour, quantiles of brightness and the
    standard deviation of the brightness of 32x32 pieces (37) are those of the photographs.
    """
    made = []
    for k in range(TEXTURES):
        rng = stream("frost texture", k)
        ice = np.zeros((TEXTURE, TEXTURE))
        for scale, turn in itertools.product((6.0, 3.0, 1.5), (-1, 1)):
            noise = rng.standard_normal((TEXTURE, TEXTURE))
            noise = ndimage.gaussian_filter(noise, (scale / 2, 2 * scale), mode="wrap")
            angle = np.rad2deg(rng.uniform(0.2, 1.2)) * turn
            noise = ndimage.rotate(noise, angle, reshape=False, order=1, mode="grid-wrap")
            ice += scale * np.exp(-4 * np.abs(noise) / noise.std())
        drifts = ndimage.gaussian_filter(rng.standard_normal((TEXTURE, TEXTURE)), DRIFT, mode="wrap")
        ice = zscore(ice, axis=None) + THICKNESS * zscore(drifts, axis=None)
        light = np.interp(ice, np.quantile(ice, [0.02, 0.5, 0.98]), [45, 155, 230])
        made.append(np.minimum(light[..., None] * COLOUR / COLOUR.mean(), 255))
    return np.stack(made)


def fog(images: np.ndarray, streams: Streams, amount: float, decay: float) -> np.ndarray:
    """Return (x + amount plasma) max / (max + amount), where max is the largest value of the image."""
    x = images / 255
    most = x.max(axis=(1, 2, 3), keepdims=True)
    drawn = np.stack([rng.uniform(-1, 1, x.shape[1] ** 2 - 1) for rng in streams])
    return (x + amount * plasma(drawn, decay)[..., None]) * most / (most + amount)


def plasma(drawn: np.ndarray, decay: float) -> np.ndarray:
    """Make clouds (n, side, side) from 0 to 1 of side^2 - 1 draws from -1 to 1: diamond-square algorithm on a torus.

    Each new value is the mean of its four neighbours plus a shock. The size of shocks shrinks by decay^2 in each level.
    """
    side = round((drawn.shape[1] + 1) ** 0.5)
    height = np.zeros((len(drawn), side, side))
    shock = 100.0**2
    step = side
    left = drawn

    def draw(like: np.ndarray) -> np.ndarray:
        nonlocal left
        taken, left = np.split(left, [like[0].size], axis=1)
        return shock * taken.reshape(like.shape)

    while step >= 2:
        half = step // 2
        corner = height[:, ::step, ::step]
        centre = height[:, half::step, half::step]
        # the points between corners: in the row above a centre, and in the column beside it
        above = height[:, ::step, half::step]
        at_side = height[:, half::step, ::step]
        rows = corner + np.roll(corner, -1, axis=1)
        columns = corner + np.roll(corner, -1, axis=2)
        centre[:] = (rows + np.roll(rows, -1, axis=2)) / 4 + draw(centre)
        above[:] = (columns + centre + np.roll(centre, 1, axis=1)) / 4 + draw(above)
        at_side[:] = (rows + centre + np.roll(centre, 1, axis=2)) / 4 + draw(at_side)
        step = half
        shock = shock / decay**2
    height -= height.min(axis=(1, 2), keepdims=True)
    return height / height.max(axis=(1, 2), keepdims=True)


def spatter(
    images: np.ndarray,
    streams: Streams,
    mean: float,
    sigma: float,
    smooth: float,
    least: float,
    strength: float,
    mud: bool,
) -> np.ndarray:
    """Add drops where smoothed noise is above `least`: water with bright edges, or mud, which hides the image."""
    x = images / 255
    side = images.shape[1]
    drawn = np.stack([rng.normal(mean, sigma, (side, side)) for rng in streams])
    drawn = ndimage.gaussian_filter(drawn, (0, smooth, smooth), mode="nearest", truncate=4)
    if mud:
        spots = (drawn > least).astype(float)
        cover = ndimage.gaussian_filter(spots, (0, strength, strength), mode="nearest", truncate=4)
        cover = np.where(cover < 0.8, 0, cover)[..., None]
        return x * (1 - cover) + MUD * cover
    drops = truncated(np.where(drawn < least, 0, drawn))
    relief = box(distance(canny(drops, 50, 150), 20)).astype(np.uint8)
    slope = np.array([[[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]])
    relief = ndimage.correlate(equalised(relief).astype(int), slope, mode="mirror").clip(0, 255)
    shine = drops * np.rint(box(relief))
    most = shine.max(axis=(1, 2), keepdims=True)
    return x + (strength * shine / np.where(most > 0, most, 1))[..., None] * WATER


TABLE: Table = {
    "snow": (
        snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": (frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": (fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "spatter": (
        spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, False),
            (0.65, 0.1, 0.8, 0.7, 0.5, False),
            (0.65, 0.3, 1, 0.69, 0.5, False),
            (0.65, 0.1, 0.7, 0.69, 0.6, True),
            (0.65, 0.1, 0.5, 0.68, 0.6, True),
        ),
    ),
}
