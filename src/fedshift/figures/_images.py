"""Rows of images with words below them, as one SVG that keeps the page light."""

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
"""Sides of an image in pixels: the first with which all images together are light enough is taken."""
MOST = 48
"""Images of one figure."""
_LIMIT = 180_000
_WIDTH = 640
_GAP = 4
_HEADING = 20
_FONT = 9
_FEW = 3
"""So few images in a row would be too large on the whole width."""
_LINE = _FONT + 3
_QUOTES = {'"': "&quot;"}
_ROW = re.compile(
    r'<svg class="row" [^>]*width="(?P<width>[\d.]+)" height="(?P<height>[\d.]+)" data-heading="(?P<heading>[^"]*)">'
    r"(?P<body>.*?)</svg>",
    re.DOTALL,
)
_LETTER = 0.56 * _FONT
"""Width of a letter, a little more than that of most fonts."""


@dataclass(frozen=True)
class Tile:
    """An image (height, width, channels), uint8, and lines of text below it.

    `drawing` are SVG elements over the image, in its pixels.
    """

    image: np.ndarray
    lines: tuple[str, ...] = ()
    drawing: str = ""


def private(synthetic: bool) -> str:
    """Return the sentence, after a space, that says whose images a page shows and how to share it without."""
    if synthetic:
        return " The images are synthetic: no hospital made them."
    return (
        " The page contains these images: to share it without them, write figures: [convergence, sites] in the study, "
        "and run it again."
    )


def each_row(most: int, rows: int) -> int:
    """Return how many images a row may have: at most `most`, and about MOST in a figure of so many rows."""
    return max(2, min(most, MOST // max(1, rows)))


def grid(name: str, title: str, rows: Sequence[tuple[str, Sequence[Tile]]], columns: int, key: str = "") -> str:
    """Return rows of images in so many columns, each below its heading; `title` describes the figure.

    `key` are SVG elements of a line of 20 units height above all rows.
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
    """Yield the elements of one row: an <svg> element at `box` (x, y, width, height), which `rows_of` finds again."""
    x, y, width, height = box
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    yield f'<svg class="row" role="presentation" {place} data-heading="{escape(heading, _QUOTES)}">'
    yield f'<text x="0" y="13" fill="currentColor" font-size="11">{escape(heading)}</text>'
    for n, tile in enumerate(row):
        yield from _tile(tile, pngs[id(tile)], n * (side + _GAP), _HEADING, side)
    yield "</svg>"


def rows_of(name: str, svg: str) -> list[tuple[str, str]]:
    """Return heading and SVG text of each row of a figure that `grid` has made; `name` makes ids unique."""
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
    """Yield the elements of one image and of its lines, which are cut to its width and whole in its tooltip."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}"'
    yield f'<image {place} href="data:image/png;base64,{data}"><title>{escape(", ".join(tile.lines))}</title></image>'
    if tile.drawing:
        box = f"0 0 {tile.image.shape[1]} {tile.image.shape[0]}"
        yield f'<svg {place} viewBox="{box}" role="presentation" pointer-events="none">{tile.drawing}</svg>'
    for n, text in enumerate(tile.lines, 1):
        words = escape(short(text, max(3, int(side / _LETTER))))
        yield f'<text x="{x:.1f}" y="{y + side + n * _LINE:.1f}" fill="currentColor" font-size="{_FONT}">{words}</text>'


def light(images: Sequence[np.ndarray], limit: int = _LIMIT) -> list[str]:
    """Return images (height, width, channels) as base64 PNGs, so small that together they have `limit` characters."""
    pngs: list[str] = []
    for edge in EDGES:
        pngs = [png(image, edge) for image in images]
        if sum(map(len, pngs)) < limit:
            break
    return pngs


def png(image: np.ndarray, edge: int) -> str:
    """Return an image (height, width, channels) as a base64 PNG of at most `edge` pixels a side."""
    from PIL import Image

    grey = image.shape[-1] == 1
    picture = Image.fromarray(image[..., 0] if grey else image[..., :3])
    # Without reducing_gap=None, Pillow would first shrink by a whole factor, and the result would be another one.
    picture.thumbnail((edge, edge), Image.Resampling.BOX, reducing_gap=None)
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()
