"""Whole slides: opened, measured in micrometres, and read region by region."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..core.errors import UserError
from ..io.guards import require_regular

if TYPE_CHECKING:
    from openslide import OpenSlide

Pixels = npt.NDArray[np.uint8]

SIDES = ("openslide.mpp-x", "openslide.mpp-y")
"""Properties with the width and the height of a pixel, in micrometres."""
LEAST = 0.05
MOST = 20.0
"""Micrometres per pixel that a scan of tissue may have. A TIFF that was saved with 72 dpi claims 353."""
SQUARE = 0.02
"""The largest relative difference between the sides of a pixel that counts as square."""
COARSER = 1.01
"""How many times coarser than asked for a level may be: its stated downsample is a quotient of rounded sizes."""
ASK = "ask who scanned it, and write the size into the column mpp"


@dataclass(frozen=True)
class Pyramid:
    """An open slide whose pixel size is known.

    `mpp` is the size of a pixel at full resolution in micrometres, `mpp_of_file` what the file says, if it does.
    Coordinates are pixels at full resolution, from the top left corner.
    """

    path: Path
    slide: OpenSlide
    mpp: float
    mpp_of_file: float | None

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height at full resolution."""
        width, height = self.slide.dimensions
        return width, height

    @property
    def vendor(self) -> str:
        """Return the format of the file, as OpenSlide calls it."""
        return str(self.slide.properties.get("openslide.vendor", "unknown"))

    def level(self, scale: float) -> int:
        """Return the coarsest level that is at least as fine as `scale` pixels of full resolution for one."""
        return self.slide.get_best_level_for_downsample(scale * COARSER)

    def read(self, x: float, y: float, columns: int, rows: int, scale: float, resample: Image.Resampling) -> Pixels:
        """Return a region as an array (rows, columns, 3), with white where the slide was not scanned.

        `x` and `y` are its top left corner, and `scale` is how many pixels of full resolution one of its pixels covers.
        Raises UserError where the file is damaged.
        """
        import openslide

        level = self.level(scale)
        down = self.slide.level_downsamples[level]
        left = x / down
        top = y / down
        right = (x + columns * scale) / down
        bottom = (y + rows * scale) / down
        first = math.floor(left)
        above = math.floor(top)
        size = math.ceil(right) - first, math.ceil(bottom) - above
        try:
            region = self.slide.read_region((round(first * down), round(above * down)), level, size)
        except openslide.OpenSlideError as error:
            problem = f"cannot be read at x {x:.0f}, y {y:.0f}: {error}"
            raise UserError(self.path, problem, "copy it again, or leave it out of the table") from error
        # the rim of the region lies between pixels of the level: the box says where
        box = (left - first, top - above, right - first, bottom - above)
        return np.asarray(on_white(region).resize((columns, rows), resample, box=box))


def on_white(image: Image.Image) -> Image.Image:
    """Return an RGB image, white where it is transparent: areas without a scan would be black otherwise."""
    if image.mode != "RGBA":
        return image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


@contextlib.contextmanager
def opened(path: Path, mpp: float | None = None) -> Iterator[Pyramid]:
    """Open a slide; `mpp` is its pixel size in micrometres where the table says it.

    Raises UserError for a file other than a slide, and for one whose pixel size nobody knows.
    """
    import openslide

    require_regular(path)
    if not path.exists():
        raise UserError(path, "no such slide", "correct the path, which counts from the folder of the table")
    if openslide.OpenSlide.detect_format(path) is None:
        remedy = "export it as a tiled TIFF; a photograph needs no cutting, and belongs into the table of the study"
        raise UserError(path, "is not a whole slide that OpenSlide reads", remedy)
    try:
        slide = openslide.OpenSlide(path)
    except openslide.OpenSlideError as error:
        raise UserError(path, f"cannot be opened: {error}", "copy it again, or leave it out of the table") from None
    with slide:
        stated = mpp_of_file(path, slide.properties, required=mpp is None)
        yield Pyramid(path, slide, mpp or stated or math.nan, stated)


def mpp_of_file(path: Path, properties: Mapping[str, Any], required: bool) -> float | None:
    """Return the side of a pixel in micrometres that a file states, or None where it states none.

    Raises UserError where it is `required`, and absent, impossible, or not the same in both directions.
    """
    try:
        across, down = (float(properties[side]) for side in SIDES)
    except (KeyError, ValueError):
        across = down = math.nan
    if not required:
        return None if math.isnan(across) else (across + down) / 2
    if math.isnan(across + down):
        raise UserError(path, "does not say how many micrometres a pixel has", ASK)
    if not LEAST <= min(across, down) <= max(across, down) <= MOST:
        problem = f"says that a pixel has {across:.4g} micrometres, as no scan of tissue has"
        raise UserError(path, problem, ASK)
    if abs(across - down) > SQUARE * max(across, down):
        problem = f"has pixels of {across:.4g} x {down:.4g} micrometres, which are not square"
        raise UserError(path, problem, "export it with square pixels")
    return (across + down) / 2
