"""Contact sheets: all slides of a site at a glance, with what was found on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from .pyramid import Pixels
from .rasterise import Mask
from .squares import Chosen, Grid
from .tissue import THUMBNAIL, Survey

LINE = 15
GAP = 8
ACROSS = 5
"""Pixels of a line of text and between slides, and slides side by side."""
TUMOUR = (213, 94, 0)
TISSUE = (0, 114, 178)
"""Orange and blue, which colour-blind readers can tell apart."""
LEGEND = "orange: annotated tumour; blue line: rim of the tissue; dots: patches, orange tumour, blue normal"


@dataclass(frozen=True)
class Tile:
    """A slide on a contact sheet: its thumbnail with what was found, and lines of text below it."""

    picture: Pixels
    lines: tuple[str, ...]


def overlay(survey: Survey, grid: Grid, tumour: Mask, tissue: Mask, chosen: Iterable[Chosen]) -> Pixels:
    """Return the thumbnail of a slide with its tumour, the rim of its tissue and the places of its patches."""
    # the middle pixel of each block stands for it
    every = slice(survey.reduction // 2, None, survey.reduction)
    picture = survey.thumbnail.copy()
    height, width = picture.shape[:2]
    for mask, colour, strength in ((tumour[every, every], TUMOUR, 0.35), (_rim(tissue[every, every]), TISSUE, 1.0)):
        part = picture[: mask.shape[0], : mask.shape[1]]
        part[mask] = part[mask] * (1 - strength) + np.array(colour) * strength
    for squares in chosen:
        middle = ((squares.places + 0.5) * grid.settings.cells / survey.reduction).astype(int)
        rows, columns = np.minimum(middle, [height - 1, width - 1]).T
        picture[rows, columns] = TUMOUR if squares.label == "tumour" else TISSUE
    return picture


def _rim(mask: Mask) -> Mask:
    return mask & ~ndimage.binary_erosion(mask)


def sheet(tiles: Sequence[Tile]) -> Image.Image:
    """Return the contact sheet of the slides of a site."""
    lines = max(len(tile.lines) for tile in tiles)
    wide = THUMBNAIL + GAP
    high = THUMBNAIL + GAP + lines * LINE
    across = max(min(ACROSS, len(tiles)), 2)
    image = Image.new("RGB", (across * wide + GAP, math.ceil(len(tiles) / across) * high + GAP + LINE), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(11)
    draw.text((GAP, GAP // 2), LEGEND, "black", font)
    for number, tile in enumerate(tiles):
        left = GAP + number % across * wide
        top = GAP + LINE + number // across * high
        image.paste(Image.fromarray(tile.picture), (left, top))
        for line, text in enumerate(tile.lines):
            draw.text((left, top + tile.picture.shape[0] + line * LINE), text, "black", font)
    return image
