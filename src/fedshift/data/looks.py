"""Images that look alike: a short code of how an image looks, and the search for near copies by it.

A copy that was saved again, resized or mirrored has other bytes, and almost the same code. A copy that was cropped has
another one: such copies are not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

ROWS, COLUMNS = 8, 9
"""The size to which an image is reduced: each of 64 bits says whether a pixel is lighter than its left neighbour."""
BAND = 16
"""Bits of a part of the code. Codes that differ in at most FAR bits agree in one of four parts."""
FIRST = 64
FAR = 3
"""The most bits in which the codes of a pair may differ."""
CROWD = 200
"""With more images that agree in a part, they have hardly any structure, and are not compared."""
SIDE = 32
"""Side of the small grey images by which a pair is confirmed."""
ALIKE = 0.98
"""The least correlation of two small grey images that counts as a copy."""
MOST = 20_000
"""The most pairs that are confirmed."""


def is_flat(image: np.ndarray) -> bool:
    """Return whether an image has no contrast: every channel has one value throughout."""
    values = image.reshape(-1, image.shape[-1]) if image.ndim == 3 else image
    # Of most images the first pixels differ already.
    return bool((values[:FIRST] == values[:1]).all() and (values == values[:1]).all())


def look(image: np.ndarray) -> int:
    """Return the code of an image (height, width, channels), 64 bits: the same for its mirror image."""
    small = reduced(image, ROWS, COLUMNS)
    return min(_bits(small), _bits(small[:, ::-1]))


def reduced(image: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return the grey levels of an image (rows, columns), float32, which are means over rectangles."""
    from PIL import Image

    if image.shape[2] == 3 and image.dtype == np.uint8:
        grey = Image.fromarray(image).convert("L").convert("F")
    else:
        grey = Image.fromarray(np.ascontiguousarray(image.mean(axis=2, dtype=np.float32)))
    return np.asarray(grey.resize((columns, rows), Image.Resampling.BOX))


def _bits(small: np.ndarray) -> int:
    lighter = small[:, 1:] > small[:, :-1]
    return int.from_bytes(np.packbits(lighter).tobytes(), "big")


def alike(codes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the pairs of positions whose codes (n,), uint64, differ in at most FAR bits, each once, in no order.

    Codes of too many images, which agree because there is little to see, are left out (see CROWD).
    """
    seen: set[tuple[int, int]] = set()
    for part in range(64 // BAND):
        keys = (codes >> np.uint64(BAND * part)) & np.uint64(2**BAND - 1)
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(keys[order]) != 0])
        sizes = np.diff([*starts, len(order)])
        for start, size in zip(
            starts[(sizes > 1) & (sizes <= CROWD)], sizes[(sizes > 1) & (sizes <= CROWD)], strict=True
        ):
            members = order[start : start + size]
            differ = np.bitwise_count(codes[members][:, None] ^ codes[members][None, :])
            for i, j in np.argwhere(np.triu(differ <= FAR, k=1)):
                pair = (int(min(members[i], members[j])), int(max(members[i], members[j])))
                if pair not in seen:
                    seen.add(pair)
                    yield pair


def near_copies(codes: np.ndarray, image: Callable[[int], np.ndarray]) -> list[tuple[int, int]]:
    """Return the pairs of images (n) that look alike, also as mirror images; at most MOST pairs are looked at.

    `image(i)` reads an image (height, width, channels).
    """
    small: dict[int, np.ndarray] = {}

    def thumbnail(i: int) -> np.ndarray:
        if i not in small:
            levels = reduced(image(i), SIDE, SIDE)
            small[i] = (levels - levels.mean()) / (levels.std() or 1)
        return small[i]

    found = []
    for number, (i, j) in enumerate(alike(codes)):
        if number == MOST:
            break
        one, other = thumbnail(i), thumbnail(j)
        if max(float((one * other).mean()), float((one * other[:, ::-1]).mean())) >= ALIKE:
            found.append((i, j))
    return sorted(found)
