"""The predicted masks with the lowest Dice at each site, outlined on their images."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from ._base import Figure, OutlinedImage, Results, SiteOutlines
from ._canvas import COLOURS, short
from ._images import Tile, each_row, grid, private

if TYPE_CHECKING:
    import numpy as np

LOOKS = (("reference", COLOURS[0], ""), ("prediction", COLOURS[1], ' stroke-dasharray="4 2.5"'))
"""Name, colour and SVG dash attribute of each outline: in a grey print, the dashes alone tell them apart."""
HEAVIEST = 200_000
"""Largest number of characters of the figure. The page holds it twice: as a picture, and as a download that takes a
third more."""


class Outlines(Figure):
    """Images of each site with the lowest Dice, with the outlines of reference and prediction."""

    tasks: ClassVar[tuple[str, ...]] = ("segmentation",)
    title = "Worst outlines"
    section = "examples"
    shows_images = True
    each: int = Field(6, ge=1, le=6, description="largest number of images of a site")

    def caption(self, results: Results) -> str:
        return (
            "The test images of each site with the lowest Dice, the worst first, by the first training of the named "
            "condition. The reference is a solid blue line, the prediction a dashed orange one. Below each image "
            "stands its Dice, the mean over structures; an image with neither a structure nor a prediction of it has "
            f"none. Picking the worst shows failures, not typical cases.{private(results.synthetic)}"
        )

    def draw(self, results: Results) -> str:
        sites = [site for site in results.outlines(self.each) if site.worst]
        if not sites:
            return self.nothing(results)
        most = each_row(self.each, len(sites))
        # Long outlines, such as those of vessels, are heavy: then fewer images are shown.
        for images in range(most, 0, -1):
            rows = [
                (_heading(site), [_tile(image, f"{self.name}-{n}-{k}") for k, image in enumerate(site.worst[:images])])
                for n, site in enumerate(sites)
            ]
            svg = grid(self.name, self.heading(results), rows, 1, _key())
            if len(svg) <= HEAVIEST:
                break
        return svg


def _heading(site: SiteOutlines) -> str:
    """Return the heading of a site's row: its role, number of images, algorithm, prediction method, and seed."""
    by = short(f"{site.condition}, {site.inference}", 60)
    return f"{short(site.site, 24)} ({site.role}): the worst of {site.total:,} images ({by}, seed {site.seed})"


def _tile(shown: OutlinedImage, name: str) -> Tile:
    """Return an image with the outlines of its reference and predicted mask, and its Dice as text below.

    `name` makes the ids of the outlines unique on the page.
    """
    error = ""
    if not shown.predicted.any():
        error = "missed"
    elif not shown.reference.any():
        error = "false alarm"
    drawing = "".join(
        _line(path, f"{name}-{words}", colour, dashes)
        for masks, (words, colour, dashes) in zip((shown.reference, shown.predicted), LOOKS, strict=True)
        if (path := "".join(map(outline, masks)))
    )
    return Tile(shown.image, tuple(filter(None, (f"Dice {100 * shown.dice:.1f} %", error))), drawing)


def _line(path: str, name: str, colour: str, dashes: str) -> str:
    """Return SVG elements that draw the outline `path` over a pale rim, which shows it on dark and coloured images.

    `dashes` is a `stroke-dasharray` attribute, or empty; `name` is the id of the path.
    """
    return (
        f'<defs><path id="{name}" d="{path}" fill="none" vector-effect="non-scaling-stroke"/></defs>'
        f'<use href="#{name}" stroke="#fff" stroke-opacity=".6" stroke-width="2.6"/>'
        f'<use href="#{name}" stroke="{colour}" stroke-width="1.4"{dashes}/>'
    )


def _key() -> str:
    """Return the legend as SVG elements: a piece of each outline with its name."""
    parts = []
    for x, (words, colour, dashes) in zip((0, 110), LOOKS, strict=True):
        parts.append(f'<path d="M{x} 9h26" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(f'<text x="{x + 32}" y="13" fill="currentColor" font-size="11">{words}</text>')
    return "".join(parts)


def outline(mask: np.ndarray) -> str:
    """Return the outline of a mask (height, width), bool, as an SVG path in pixels; empty for an empty mask.

    The path consists of closed lines midway between the centres of pixels in and out of the mask, found by marching
    squares (matplotlib's contours). A mask that touches the border of the image is closed there.
    """
    import numpy as np
    from matplotlib.figure import Figure as Canvas

    if not mask.any():
        return ""
    padded = np.pad(mask, 1).astype(float)
    # The centre of the first pixel of the image, which padding makes the second, lies at 0.5.
    lines = Canvas().subplots().contour(padded, [0.5]).allsegs[0]
    return "".join(_path(np.asarray(line) - 0.5) for line in lines)


def _path(points: np.ndarray) -> str:
    """Return a closed line (n, 2), whose last point is its first, as an SVG path without points on straight pieces."""
    import numpy as np

    steps = np.diff(points, axis=0)
    turns = np.flatnonzero((steps != np.roll(steps, 1, axis=0)).any(1))
    corners = points[turns]
    x, y = corners[0]
    moves = np.diff(corners, axis=0)
    return f"M{_number(x)} {_number(y)}l" + " ".join(f"{_number(a)} {_number(b)}" for a, b in moves) + "z"


def _number(value: float) -> str:
    """Return a multiple of 0.5 as short SVG text: .5, -1, 12."""
    return f"{value:g}".replace("0.", ".") if abs(value) < 1 else f"{value:g}"
