"""The functions of the corruptions of CIFAR-10-C, some with OpenCV's edges, box means and equalised histograms.

A corruption takes images (n, 32, 32, 3) uint8, `streams`, which is a random generator for each image, and its
constants of a severity. It returns uint8, or floats, which are clipped to [0, 1].
"""

from __future__ import annotations

import functools
import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage
from scipy.stats import zscore

from ...core.rng import stream

Streams = Sequence[np.random.Generator]
Table = dict[str, tuple[Callable[..., np.ndarray], tuple[tuple[Any, ...], ...]]]
ANCHORS = np.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])
"""The three points (x, y) that elastic_transform moves: 10 pixels along both axes from the middle, (16, 16)."""
LUMA = np.array([0.299, 0.587, 0.114])
WATER, MUD = (np.array(rgb) / 255 for rgb in ((175, 238, 238), (63, 42, 20)))
# number, and side in pixels
TEXTURES = 5
TEXTURE = 128
# width of drifts of ice in pixels, and their contrast over that of needles
DRIFT = 20.0
THICKNESS = 3.0
COLOUR = np.array([130.0, 158.0, 170.0])  # mean of the photographs, RGB


# ---- blur


def truncated(x: np.ndarray) -> np.ndarray:
    """Convert floats to grey levels, uint8: clip to [0, 1] and round down, as the benchmark's script does.

    One millionth of a level is added. Without it, rounding errors, which differ between machines, would lower flat
    surfaces by one level.
    """
    return (np.clip(x, 0, 1) * 255 + 1e-6).astype(np.uint8)


def gaussian_blur(images: np.ndarray, streams: Streams, sigma: float) -> np.ndarray:
    """Blur images by a Gaussian of `sigma` pixels, cut at 4 sigma; border pixels continue outside."""
    return ndimage.gaussian_filter(images / 255, (0, sigma, sigma, 0), mode="nearest", truncate=4)


def glass_blur(images: np.ndarray, streams: Streams, sigma: float, times: int) -> np.ndarray:
    """Blur by a Gaussian, shuffle pixels locally `times` times, and blur again.

    The benchmark's script walks from the lower right to the upper left and is meant to swap each pixel (from row and
    column 2 on) with a pixel at most one row above and one column left of it. It swaps views of one array, so it only
    copies. The source of each copy is still unchanged, so one look-up replaces a walk.
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
    """Average over a disk of `radius` pixels, with a rim smoothed by 3x3 Gaussian weights; mirrored at the border."""
    return ndimage.correlate(images / 255, disk(radius, alias)[None, :, :, None], mode="mirror")


def disk(radius: float, alias: float) -> np.ndarray:
    """Return (17, 17) weights of sum 1: equal where x^2 + y^2 <= radius^2, smoothed with sigma `alias`."""
    place = np.arange(-8, 9)
    inside = (place[:, None] ** 2 + place**2 <= radius**2).astype(float)
    near = np.exp(-0.5 * (np.arange(-1, 2) / alias) ** 2)
    return ndimage.correlate(inside / inside.sum(), np.outer(near, near) / near.sum() ** 2, mode="constant")


def motion_blur(images: np.ndarray, streams: Streams, radius: int, sigma: float) -> np.ndarray:
    """Blur each image along a line of random direction, -45 to 45 degrees; for `radius` and `sigma` see `moved`."""
    return moved(images, np.array([rng.uniform(-45, 45) for rng in streams]), radius, sigma)


def moved(images: np.ndarray, degrees: np.ndarray, radius: int, sigma: float) -> np.ndarray:
    """Apply ImageMagick's motion blur to images (n, side, side, ...) uint8, each in its direction `degrees` (n,).

    The weights are half a Gaussian of `sigma` pixels along a line that starts at the pixel and has 2 `radius` + 1
    pixels. Border pixels continue outside. ImageMagick cuts the sum down to a whole grey level; 1e-6 keeps whole sums
    from rounding errors.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    angle = np.deg2rad(degrees)[:, None]
    # offsets are rounded as ImageMagick does: halves go down
    right, down = (np.ceil(steps * f(angle) - 0.5).astype(int) for f in (np.cos, np.sin))
    n = np.arange(len(images))
    place = np.arange(images.shape[1])
    out = np.zeros(images.shape)
    for k in np.flatnonzero(weights > 1e-12):
        rows, columns = (np.clip(place + step[:, k, None], 0, place[-1]) for step in (down, right))
        out += weights[k] * images[n[:, None, None], rows[:, :, None], columns[:, None, :]]
    return np.floor(out / weights.sum() + 1e-6).astype(np.uint8)


def zoom_blur(images: np.ndarray, streams: Streams, end: float) -> np.ndarray:
    """Average the image and its zooms by 1, 1.01, ... up to `end`: the image itself counts twice, as zoom by 1 too."""
    n, side = images.shape[:2]
    out = np.tensordot(_zooms(side, end), (images / 255).reshape(n, side * side, 3), axes=(1, 1))
    return out.transpose(1, 0, 2).reshape(images.shape)


@functools.cache
def _zooms(side: int, end: float) -> np.ndarray:
    """Return the matrix (side^2, side^2) that applies `zoom_blur` to the flattened pixels of a channel."""
    factors = np.arange(1, end, 0.01)
    zooms = [zooming(side, factor) for factor in factors]
    return (np.eye(side * side) + sum(np.kron(z, z) for z in zooms)) / (len(zooms) + 1)


def zooming(side: int, factor: float) -> np.ndarray:
    """Return the matrix (side, side) that enlarges an axis about its middle by `factor`.

    From the middle n = ceil(side / factor) pixels, round(n * factor) values are interpolated linearly between the
    centres of the first and the last pixel. The middle `side` of these values are the result.
    """
    before = int(np.ceil(side / factor))
    after = round(before * factor)
    place = (side - before) // 2 + (np.arange(side) + (after - side) // 2) * ((before - 1) / (after - 1))
    return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(side)))


# ---- noise, grey levels, colours, pixels and places


def gaussian_noise(images: np.ndarray, streams: Streams, sigma: float) -> np.ndarray:
    """Add Gaussian noise to each value x, from 0 to 1: x + N(0, sigma)."""
    return images / 255 + sigma * _normal(images, streams)


def shot_noise(images: np.ndarray, streams: Streams, light: float) -> np.ndarray:
    """Replace each value x, from 0 to 1, by Poisson(x light) / light, which has mean x and variance x / light."""
    return np.stack([rng.poisson(x) for rng, x in zip(streams, images / 255 * light, strict=True)]) / light


def impulse_noise(images: np.ndarray, streams: Streams, amount: float) -> np.ndarray:
    """Replace a random share `amount` of all values, each channel by itself: one half by 0, the other by 1."""
    u = np.stack([rng.random(images.shape[1:]) for rng in streams])
    return np.where(u < amount, np.where(u < amount / 2, 0.0, 1.0), images / 255)


def speckle_noise(images: np.ndarray, streams: Streams, sigma: float) -> np.ndarray:
    """Add noise in proportion to each value x, from 0 to 1: x + x N(0, sigma)."""
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
    """Multiply the difference of each pixel from the mean of its channel by `factor`."""
    x = images / 255
    mean = x.mean(axis=(1, 2), keepdims=True)
    return (x - mean) * factor + mean


def pixelate(images: np.ndarray, streams: Streams, side: int) -> np.ndarray:
    """Resize images to `side` x `side` pixels and back, with Pillow's box filter."""
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
    """Apply an affine map that moves three points by up to `affine` pixels; then displace every pixel smoothly.

    The displacement is `alpha` times uniform noise from -1 to 1, smoothed by a Gaussian of `sigma` pixels.
    """
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
    """Interpolate images `x` (n, side, side, 3) bilinearly at coordinates `rows` and `columns` (n, side, side).

    Images are mirrored at the border; with `edge_twice`, the mirror image repeats the border pixels.
    """
    n = np.arange(len(x))[:, None, None]
    side = x.shape[1]
    period, last = (2 * side, 2 * side - 1) if edge_twice else (2 * side - 2, 2 * side - 2)

    # the index of a place beyond the border is that of its mirror image, with this period
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


# ---- weather


def canny(images: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return the mask (n, side, side), bool, of the edges that Canny's method finds in grey images, as in OpenCV.

    An edge pixel has a Sobel gradient of strength |dx| + |dy| above `low`, where border pixels continue outside; no
    neighbour across the edge, in one of four directions, is stronger; and it is connected to a pixel of this kind whose
    strength is above `high`. Of two equal neighbours, only the left or the upper one is an edge.
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
    """Return the distance of each pixel to the nearest pixel of `edges` (n, side, side), bool, at most `limit`."""
    # images lie so far apart along the first axis that no edge of another one is nearer than the limit
    spacing = (2 * limit, 1, 1)
    nearest = ndimage.distance_transform_edt(~edges, sampling=spacing)
    return np.where(edges.any(axis=(1, 2), keepdims=True), np.minimum(nearest, limit), limit)


def box(x: np.ndarray) -> np.ndarray:
    """Return the mean over 3x3 pixels of images (n, side, side), mirrored at the border pixels; float64."""
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

    Flakes are noise N(mean, sigma) above `least`, enlarged by `zoom` and blurred in the direction of their fall, by
    `moved` with `radius` and deviation `spread`. Under them is clear x + (1 - clear) w, where w is the whitened image.
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
    """Mix each image x with frost: clear x + ice f, where f is a random piece of one of five textures.

    The textures of the benchmark's script are photographs, reduced to a fifth; here they are drawn (see `textures`).
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
    """Draw five textures of bluish needles of ice, (5, 128, 128, 3), from 0 to 255. Every call returns the same.

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
    """Add clouds of `plasma`: (x + amount clouds) max / (max + amount), with max the largest value of the image."""
    x = images / 255
    most = x.max(axis=(1, 2, 3), keepdims=True)
    drawn = np.stack([rng.uniform(-1, 1, x.shape[1] ** 2 - 1) for rng in streams])
    return (x + amount * plasma(drawn, decay)[..., None]) * most / (most + amount)


def plasma(drawn: np.ndarray, decay: float) -> np.ndarray:
    """Return clouds (n, side, side), from 0 to 1, by the diamond-square algorithm on a torus.

    `drawn` (n, side^2 - 1) are random numbers from -1 to 1. Each new value is the mean of its four neighbours plus a
    shock. The size of shocks shrinks by decay^2 in each level.
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
    """Add drops of water with bright edges or, with `mud`, of mud, which hides the image.

    Drops are where noise N(mean, sigma), smoothed by a Gaussian of `smooth` pixels, is above `least`. `strength` is the
    brightness of the edges of water, or the deviation in pixels that smooths the edges of mud.
    """
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
    "gaussian_blur": (gaussian_blur, ((0.4,), (0.6,), (0.7,), (0.8,), (1,))),
    "glass_blur": (glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "defocus_blur": (defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "motion_blur": (motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    # at 1.06 and 1.11, numpy's arange makes a step too many; the script has the same error
    "zoom_blur": (zoom_blur, ((1.06,), (1.11,), (1.16,), (1.21,), (1.26,))),
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
"""The function of each corruption, and its constants at the severities 1 to 5."""
