"""Images that look alike: short codes of how an image looks, and the search for near copies by them.

A copy that was saved again, resized, mirrored or slightly cropped has other bytes. Each image has a code of the whole
and codes of its crops, so that the whole of a cropped copy agrees with a crop of its source. Pairs that agree are
confirmed on their pixels.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from PIL import Image

ROWS, COLUMNS = 8, 9
"""The size to which a crop is reduced: each of 64 bits says whether a part is lighter than its left neighbour."""
BASE = 32
"""Side of the small grey image that codes are made of."""
ROUNDING = 1e-5
"""Two parts count as equal if their grey levels differ by at most this share of the image's largest level."""
CUTS = ((0.05, 3), (0.025, 3))
"""Crops of an image: the share of the side that a crop loses, and the number of its positions along each side."""
BAND = 16
"""Bits of each of the four parts of a code: codes that differ in 3 bits agree in some part; of 6 bits, many do."""
FIRST = 64
"""Number of pixels by which most images are seen to be not flat."""
FAR = 6
"""The most bits in which the codes of a pair may differ."""
CROWD = 200
"""The most images that are compared since a part of their codes agrees: of more, none has much structure."""
SIDE = 24
"""Side of the small grey images whose correlation confirms a pair."""
FINE = 96
"""Side of the grey images from which crops for this correlation are cut."""
BLOCKS = (16, 8, 4, 2)
"""Sides of blocks of pixels that a large image is first averaged over: the first that leaves FINE blocks a side."""
STEPS = (0.0125, 0.006, 0.003)
"""Steps, as shares of the side, by which the edges of a crop are moved to raise its correlation, one after another."""
WAYS = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0), (0, -1, 0), (0, 0, -1))
"""Directions in which a crop is moved: down, to the right, its side longer, and each way back."""
ALIKE = 0.97
"""The least correlation of two small grey images that counts as a copy; `Album.enough` raises it for similar images."""
SAMPLED = 1_000
"""Number of images of a set for which the most similar images at another site are looked for."""
OUTLYING = 4
"""Robust standard deviations above the median of neighbours, on Fisher's z scale, that a copy must reach."""
NEAREST = 0.999
"""The largest correlation required of a copy: an image saved again as JPEG or resized reaches little more."""
KEPT = 2_000
"""The most grey images that are kept in memory while pairs are confirmed: 74 MB."""
MOST = 10_000
"""The most pairs whose pixels are compared."""

Box = tuple[float, float, float]
"""A square crop: upper edge, left edge, and side, in shares of the image's sides."""


def is_flat(image: np.ndarray) -> bool:
    """Return whether an image has no contrast: every channel has one value throughout."""
    values = image.reshape(-1, image.shape[-1]) if image.ndim == 3 else image
    # Of most images the first pixels differ already.
    return bool((values[:FIRST] == values[:1]).all() and (values == values[:1]).all())


def is_grey(image: np.ndarray) -> bool:
    """Return whether an image (height, width, channels) has three channels that are equal everywhere."""
    if image.ndim != 3 or image.shape[2] != 3:
        return False
    # The first row tells most colour images already.
    return all(bool((part == part[..., :1]).all()) for part in (image[:1], image))


_CUT = [(start, start + 1 - lost) for lost, positions in CUTS for start in np.linspace(0, lost, positions)]
ENDS: list[tuple[float, float]] = [(0.0, 1.0), *_CUT]
"""Start and end of each crop along a side, as shares of the side; the whole side comes first."""
CROPS: list[Box] = [
    (top, left, bottom - top)
    for (top, bottom), (left, right) in itertools.product(ENDS, ENDS)
    if np.isclose(bottom - top, right - left)
]
"""The crops whose codes an image has; the first is the whole image."""


@functools.lru_cache(maxsize=4096)
def means(start: float, end: float, parts: int, side: int) -> np.ndarray:
    """Return the matrix (parts, side) whose product with a line of pixels is the mean over each of some equal parts.

    `side` is the number of pixels of the line. The parts lie between `start` and `end`, which are shares of the line.
    """
    edges = np.linspace(start * side, end * side, parts + 1)[:, None]
    pixel = np.arange(side)
    overlap = np.minimum(pixel + 1, edges[1:]) - np.maximum(pixel, edges[:-1])
    return (np.clip(overlap, 0, None) * parts / ((end - start) * side)).astype(np.float32)


_DOWN = np.concatenate([means(*ends, ROWS, BASE) for ends in ENDS])
_ACROSS = np.concatenate([means(*ends, COLUMNS, BASE) for ends in ENDS])
_SIDES = np.array([end - start for start, end in ENDS])
_SQUARE = np.isclose(_SIDES[:, None], _SIDES[None])


def look(image: np.ndarray) -> np.ndarray:
    """Return perceptual hashes (len(CROPS),), uint64, of an image (height, width, channels) and its crops.

    Each bit says whether a part of the crop is lighter than its left neighbour. The first code is that of the whole
    image; the others are those of CROPS, in an order that mirroring changes. An image and its mirror image have the
    same codes.
    """
    small = _DOWN @ reduced(image, BASE) @ _ACROSS.T
    parts = small.reshape(len(ENDS), ROWS, len(ENDS), COLUMNS).transpose(0, 2, 1, 3)[_SQUARE]
    lighter = np.diff(parts, axis=2)
    # Equal parts differ by the rounding of their means.
    least = ROUNDING * np.abs(parts[0]).max()
    return np.minimum(_bits(lighter > least), _bits(lighter[:, :, ::-1] < -least))


def reduced(image: np.ndarray, side: int) -> np.ndarray:
    """Return an image (height, width, channels) as grey levels (side, side), float32: means over rectangles."""
    if image.shape[2] == 3 and image.dtype == np.uint8:
        picture = Image.fromarray(image).convert("L")
        # Large images by whole blocks of pixels first, which is faster.
        block = next((k for k in BLOCKS if not any(n % k or n < k * FINE for n in picture.size)), 1)
        grey = np.asarray(picture.reduce(block), dtype=np.float32)
    else:
        grey = image.mean(axis=2, dtype=np.float32)
    height, width = grey.shape
    return np.asarray(means(0, 1, side, height) @ grey @ means(0, 1, side, width).T)


def _bits(lighter: np.ndarray) -> np.ndarray:
    """Pack truth values (n, ROWS, COLUMNS - 1) into codes (n,), uint64."""
    return np.packbits(lighter.reshape(len(lighter), -1), axis=1).view(">u8")[:, 0].astype(np.uint64)


def alike(codes: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield pairs of images such that the code of one whole image is close to a code of the other or of its crop.

    `codes` (images, crops), uint64, are those that `look` returns. Each pair is (i, j, crop): image i as a whole, and
    the crop of image j with that number. Pairs come in no order; (i, j) comes once, with the first crop that is close.
    Close codes differ in at most FAR bits and agree in a part of BAND bits. Codes that agree in a part in too many
    images, which have little to see, are left out (see CROWD).
    """
    seen: set[tuple[int, int]] = set()
    crops = codes.shape[1]
    flat = codes.reshape(-1)
    for part in range(64 // BAND):
        keys = ((flat >> np.uint64(BAND * part)) & np.uint64(2**BAND - 1)).astype(np.uint16)
        order = np.argsort(keys, kind="stable")
        ends = np.cumsum(np.bincount(keys, minlength=2**BAND))
        wholes = np.bincount(keys[::crops], minlength=2**BAND)
        for key in np.flatnonzero((wholes > 0) & (wholes <= CROWD)):
            members = order[ends[key - 1] if key else 0 : ends[key]]
            whole = members[members % crops == 0]
            if not 1 < len(members) <= CROWD * crops:
                continue
            differ = np.bitwise_count(flat[whole][:, None] ^ flat[members][None, :])
            for i, j in np.argwhere(differ <= FAR):
                first, (second, crop) = int(whole[i] // crops), divmod(int(members[j]), crops)
                if first != second and (first, second) not in seen:
                    seen.add((first, second))
                    yield first, second, crop


class Album:
    """A set of images to compare in pairs. Results are kept, since each fold of a split compares nearly the same pairs.

    Parameters
    ----------
    images : images (n), each (height, width, channels); they are read when they are compared
    sites : the site of each image (n), where it is known
    """

    def __init__(self, images: Sequence[np.ndarray] | np.ndarray, sites: Sequence[str] | None = None) -> None:
        self.images = images
        self.sites = sites
        self._read = functools.lru_cache(maxsize=KEPT)(lambda i: reduced(np.asarray(images[i]), FINE))
        # of an image to another one, near a crop of the latter
        self.likeness = functools.cache(
            lambda i, j, crop: likeness(self._read(i), self._read(j), CROPS[crop], self.enough)
        )

    @functools.cached_property
    def neighbours(self) -> np.ndarray:
        """The correlation of up to SAMPLED images with their second most similar image at another site, (m,).

        It says how alike images of this kind usually are; it is empty where sites are unknown or there is only one. The
        most similar image is passed over, since it may be a copy: a whole site may have been saved again as another.
        """
        if self.sites is None or len(set(self.sites)) < 2:
            return np.empty(0)
        rows = np.unique(np.linspace(0, len(self.images) - 1, SAMPLED).astype(int))
        grey = np.stack([reduced(np.asarray(self.images[row]), SIDE).ravel() for row in rows]).astype(np.float64)
        grey -= grey.mean(1, keepdims=True)
        size = np.linalg.norm(grey, axis=1)
        grey, rows = grey[size > 0] / size[size > 0, None], rows[size > 0]
        site = np.asarray(self.sites)[rows]
        apart = np.where(site[:, None] != site, grey @ grey.T, -1.0)
        found: np.ndarray = np.sort(apart, axis=1)[:, -2] if len(rows) > 1 else np.empty(0)
        return found[found > -1]

    @functools.cached_property
    def enough(self) -> float:
        """The least correlation that counts as a copy: ALIKE, or more if usual images of different sites reach it."""
        if not len(self.neighbours):
            return ALIKE
        fisher = np.arctanh(np.minimum(self.neighbours, NEAREST))
        middle = np.median(fisher)
        deviation = 1.4826 * np.median(np.abs(fisher - middle))
        unusual = min(float(np.tanh(middle + OUTLYING * deviation)), NEAREST)
        usual = self.neighbours[self.neighbours <= unusual]
        return unusual if usual.max() >= ALIKE else ALIKE

    @property
    def of_one_kind(self) -> bool:
        """Whether most images have two images at another site that are as alike as copies (ALIKE)."""
        return len(self.neighbours) > 0 and float((self.neighbours >= ALIKE).mean()) > 0.5


def near_copies(
    codes: np.ndarray,
    compare: Callable[[int, int, int], float],
    asked: Callable[[int, int], bool] = lambda i, j: True,
    enough: float = ALIKE,
) -> tuple[dict[tuple[int, int], float], bool]:
    """Return the pairs of images that look alike, also mirrored or cropped, and whether all pairs were compared.

    `codes` (images, crops) are those that `look` returns. `compare(i, j, crop)` returns the correlation of image i with
    image j near this crop of j, such as `Album.likeness`. Only pairs for which `asked(i, j)` is true are compared, and
    at most MOST. Pairs whose correlation is at least `enough` are returned as (i, j) -> correlation, in ascending
    order.
    """
    found: dict[tuple[int, int], float] = {}
    looked_at = 0
    for i, j, crop in alike(codes):
        pair = (min(i, j), max(i, j))
        if pair in found or not asked(*pair):
            continue
        if looked_at == MOST:
            return dict(sorted(found.items())), False
        looked_at += 1
        correlation = compare(i, j, crop)
        if correlation >= enough:
            found[pair] = correlation
    return dict(sorted(found.items())), True


def likeness(image: np.ndarray, source: np.ndarray, start: Box, enough: float = ALIKE) -> float:
    """Return the largest correlation of `image`, or of its mirror image, with a crop of `source` near `start`.

    Both are grey levels (FINE, FINE). The edges of the crop are moved by STEPS while the correlation grows, until it
    reaches `enough`.
    """
    edge = means(0, 1, SIDE, FINE)
    target = _direction(edge @ image @ edge.T)
    crop = functools.cache(functools.partial(_cut, source))
    # The code of a crop is also that of its mirror image.
    straight = _climbed(target.ravel(), crop, start, enough)
    if straight >= enough:
        return straight
    return max(straight, _climbed(target[:, ::-1].ravel(), crop, start, enough))


def _climbed(target: np.ndarray, crop: Callable[[Box], np.ndarray], start: Box, enough: float) -> float:
    """Return the largest correlation that moving and resizing the crop `start` reaches; stop once it is `enough`.

    `target` is the image with mean 0 and norm 1, flat; `crop(box)` returns a crop of the source in the same form.
    """
    best = float(target @ crop(start))
    top, left, side = start
    for step in STEPS:
        better = True
        while better and best < enough:
            better = False
            for down, right, wider in WAYS:
                box = (top + step * down, left + step * right, side + step * wider)
                found = float(target @ crop(box))
                if found > best:
                    best = found
                    top, left, side = box
                    better = True
    return best


def _cut(source: np.ndarray, box: Box) -> np.ndarray:
    """Return the crop `box` of `source` with mean 0 and norm 1, flat (SIDE * SIDE,); zeros if it leaves the source."""
    top, left, side = box
    if min(top, left) < 0 or max(top, left) + side > 1 + 1e-9:
        return np.zeros(SIDE * SIDE, np.float32)
    return _direction(means(top, top + side, SIDE, FINE) @ source @ means(left, left + side, SIDE, FINE).T).ravel()


def _direction(grey: np.ndarray) -> np.ndarray:
    """Return grey levels with mean 0 and norm 1, so that scalar products of two images are correlations.

    An image of one grey level gives zeros.
    """
    centred = grey - np.add.reduce(grey, axis=None) / grey.size  # `mean` takes longer to begin than to add up
    flat = centred.ravel()
    out: np.ndarray = centred / (math.sqrt(flat @ flat) or 1)
    return out
