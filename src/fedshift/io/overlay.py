"""Images with the outlines of predicted structures."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

COLOURS = {"orange": (207, 92, 0), "blue": (31, 127, 196), "green": (0, 144, 106), "purple": (181, 85, 143)}
"""The colours of structures, in turn; those of the page's figures, which colour-blind readers can distinguish."""
LARGEST = 1024
"""The most pixels along a side of an overlay: one is looked at, and masks are written in full."""
SIDE_OF_A_LINE = 400
"""Pixels along the longer side of an overlay for each pixel of the width of its lines."""


def overlay(pixels: np.ndarray, structures: np.ndarray) -> np.ndarray:
    """Return an image (height, width, 3), uint8, in which the edge of each structure is coloured.

    `structures` (structures, height, width) are masks, bool. The edge lies within the structure; outside of the image
    nothing belongs to it. Images that are larger than `LARGEST` are made smaller first.
    """
    import numpy as np
    from PIL import Image
    from scipy.ndimage import binary_erosion

    picture = Image.fromarray(pixels)
    picture.thumbnail((LARGEST, LARGEST), Image.Resampling.BOX)
    width = max(1, round(max(picture.size) / SIDE_OF_A_LINE))
    painted = np.array(picture)
    for mask, colour in zip(structures, itertools.cycle(COLOURS.values())):
        nearest = Image.fromarray(mask.astype(np.uint8)).resize(picture.size, Image.Resampling.NEAREST)
        inside = np.asarray(nearest) > 0
        painted[inside & ~binary_erosion(inside, iterations=width)] = colour
    return painted
