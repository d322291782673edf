"""Rows of small images with text below each, as one SVG with embedded PNGs of limited size."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from ._canvas import frame, short

if TYPE_CHECKING:
    import numpy as np

EDGES = (96, 72, 56, 44, 32, 24, 16)
"""Lengths in pixels to which the longer side of images is reduced: `light` takes the first with which all images of a
figure stay below the limit."""
MOST = 48
"""Approximate limit on the number of images in one figure."""
_LIMIT = 180_000
_WIDTH = 640
_GAP = 4
_HEADING = 20
_FONT = 9
_FEW = 3
"""A figure in one column whose rows have at most this many images takes half of the width, so that images are not too
large."""
_LINE = _FONT + 3
_QUOTES = {'"': "&quot;"}
_ROW = re.compile(
    r'<svg class="row" [^>]*width="(?P<width>[\d.]+)" height="(?P<height>[\d.]+)" data-heading="(?P<heading>[^"]*)">'
    r"(?P<body>.*?)</svg>",
    re.DOTALL,
)
_LETTER = 0.56 * _FONT
"""Width of a letter in units of the SVG, a little more than the mean of most fonts."""


@dataclass(frozen=True)
class Tile:
    """An image with lines of text below it.

    Attributes
    ----------
    image : image (height, width, channels), uint8; with channels 1 it is grey, and otherwise the first three are RGB
    lines : the lines of text
    drawing : SVG elements that are drawn over the image, in coordinates of its pixels
    """

    image: np.ndarray
    lines: tuple[str, ...] = ()
    drawing: str = ""


def private(synthetic: bool) -> str:
    """Return a sentence for captions that says where the images come from and how to share the page without images.

    It begins with a space.
    """
    if synthetic:
        return " The images are synthetic: no hospital made them."
    return (
        " The page contains these images: to share it without them, write figures: [convergence, sites] in the study, "
        "and run it again."
    )


def each_row(most: int, rows: int) -> int:
    """Return the number of images in each of `rows` rows: at most `most`, about MOST in the figure, and at least 2."""
    return max(2, min(most, MOST // max(1, rows)))


def grid(name: str, title: str, rows: Sequence[tuple[str, Sequence[Tile]]], columns: int, key: str = "") -> str:
    """Return an <svg> element of rows of images, each row below its heading, `columns` rows side by side.

    `rows` holds a heading and the images of each row. `title` describes the figure to readers who cannot see it, and
    `name` makes ids unique. `key` is a legend: SVG elements of 20 units of height that stand above all rows.
    """
    tiles = [tile for _, row in rows for tile in row]
    pngs = dict(zip(map(id, tiles), light([tile.image for tile in tiles]), strict=True))
    most = max((len(row) for _, row in rows), default=1) or 1
    width: float = _WIDTH / 2 if columns == 1 and most <= _FEW else _WIDTH
    side = (width / columns - 12) / most - _GAP
    body = [key] if key else []
    top = float(_HEADING * len(body))
    for start in range(0, len(rows), columns):
        line = rows[start : start + columns]
        shown = [tile for _, row in line for tile in row]
        words = max((len(tile.lines) for tile in shown), default=0)
        height = _HEADING + side * bool(shown) + words * _LINE + 14
        for k, (heading, row) in enumerate(line):
            body += _row(heading, row, pngs, side, (k * width / columns, top, width / columns, height))
        top += height
    return frame(name, title, (width, top), "\n".join(body))


def _row(
    heading: str, row: Sequence[Tile], pngs: dict[int, str], side: float, box: tuple[float, float, float, float]
) -> Iterator[str]:
    """Yield the SVG elements of one row of images, inside an <svg class="row"> that `rows_of` can find.

    `pngs` maps `id(tile)` to the base64 PNG of its image, which is `side` units wide and high. `box` is the x, y, width
    and height of the row.
    """
    x, y, width, height = box
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    yield f'<svg class="row" role="presentation" {place} data-heading="{escape(heading, _QUOTES)}">'
    yield f'<text x="0" y="13" fill="currentColor" font-size="11">{escape(heading)}</text>'
    for n, tile in enumerate(row):
        yield from _tile(tile, pngs[id(tile)], n * (side + _GAP), _HEADING, side)
    yield "</svg>"


def rows_of(name: str, svg: str) -> list[tuple[str, str]]:
    """Return the rows of a figure that `grid` has made: the heading of each, and its images as an <svg> element.

    `svg` is the text of the figure, and `name` makes ids unique.
    """
    found = []
    for n, row in enumerate(_ROW.finditer(svg)):
        heading = html.unescape(row["heading"])
        size = (float(row["width"]), float(row["height"]) - _HEADING)
        # the heading stands above the part, so that the picture begins with its images
        images = row["body"].partition("</text>")[2]
        body = f'<g transform="translate(0 {-_HEADING})">{images}</g>'
        found.append((heading, frame(f"{name}-{n}", heading, size, body)))
    return found


def _tile(tile: Tile, data: str, x: float, y: float, side: float) -> Iterator[str]:
    """Yield the SVG elements of one image with its drawing and its lines of text.

    `data` is the base64 PNG, and `x`, `y` and `side` the position and size of the image. Lines are cut to the width of
    the image; its tooltip holds them in full.
    """
    place = f'x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}"'
    yield f'<image {place} href="data:image/png;base64,{data}"><title>{escape(", ".join(tile.lines))}</title></image>'
    if tile.drawing:
        box = f"0 0 {tile.image.shape[1]} {tile.image.shape[0]}"
        yield f'<svg {place} viewBox="{box}" role="presentation" pointer-events="none">{tile.drawing}</svg>'
    for n, text in enumerate(tile.lines, 1):
        words = escape(short(text, max(3, int(side / _LETTER))))
        yield f'<text x="{x:.1f}" y="{y + side + n * _LINE:.1f}" fill="currentColor" font-size="{_FONT}">{words}</text>'


def light(images: Sequence[np.ndarray], limit: int = _LIMIT) -> list[str]:
    """Return images as base64 PNGs, reduced in size until together they have fewer than `limit` characters.

    Images are (height, width, channels), uint8. The smallest size of EDGES is taken even where it does not suffice.
    """
    pngs: list[str] = []
    for edge in EDGES:
        pngs = [png(image, edge) for image in images]
        if sum(map(len, pngs)) < limit:
            break
    return pngs


def png(image: np.ndarray, edge: int) -> str:
    """Return an image (height, width, channels), uint8, as a base64 PNG with sides of at most `edge` pixels."""
    from PIL import Image

    grey = image.shape[-1] == 1
    picture = Image.fromarray(image[..., 0] if grey else image[..., :3])
    # Without reducing_gap=None, Pillow would first shrink by a whole factor, and the result would be another one.
    picture.thumbnail((edge, edge), Image.Resampling.BOX, reducing_gap=None)
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()
