"""Whole slides: read in micrometres, their squares, the tissue and the label of each, and which become patches."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from ..core.errors import UserError, require_none
from ..io.text import require_regular
from .annotations import GROUPS, Mask

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
"""How many times coarser than wanted a level may be: its stated downsample is a quotient of rounded sizes."""
ASK = "ask who scanned it, and write the size into the column mpp"


@dataclass(frozen=True)
class Pyramid:
    """An open slide (an image pyramid of several levels of resolution) whose pixel size is known.

    `mpp` is the size of a pixel at full resolution in micrometres, `mpp_of_file` the size that the file states, or
    None. Coordinates are pixels at full resolution, from the top left corner.
    """

    path: Path
    slide: OpenSlide
    mpp: float
    mpp_of_file: float | None

    @property
    def size(self) -> tuple[int, int]:
        """The width and height of the slide in pixels at full resolution."""
        width, height = self.slide.dimensions
        return width, height

    @property
    def vendor(self) -> str:
        """The format of the file, as OpenSlide calls it, such as `aperio`."""
        return str(self.slide.properties.get("openslide.vendor", "unknown"))

    def level(self, scale: float) -> int:
        """Return the number of the coarsest level whose pixels cover at most `scale` pixels of full resolution."""
        return self.slide.get_best_level_for_downsample(scale * COARSER)

    def read(self, x: float, y: float, columns: int, rows: int, scale: float, resample: Image.Resampling) -> Pixels:
        """Return a region as an RGB array (rows, columns, 3), with white where the slide was not scanned.

        `x` and `y` are the region's top left corner in pixels at full resolution, and `scale` is how many of these
        pixels one pixel of the array covers along a side. Raises UserError where the file is damaged.
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
    """Return an image in RGB, white where it is transparent: areas without a scan would be black otherwise."""
    if image.mode != "RGBA":
        return image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


@contextlib.contextmanager
def opened(path: Path, mpp: float | None = None) -> Iterator[Pyramid]:
    """Open a whole slide inside the context, and yield it with its pixel size.

    `mpp` is the pixel size in micrometres that the table states; None to read it from the file. Raises UserError for a
    file other than a slide, and for one whose pixel size nobody knows.
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
    """Return the side of a pixel in micrometres by the `properties` of a slide; None where they have none.

    Raises UserError, located at `path`, where it is `required`, and absent, impossible, or not the same in both
    directions.
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


# ---- squares


Shares = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
CLASSES = ("normal", "tumour")
THUMBNAIL = 320
"""The most pixels along a side of a thumbnail."""
READ = 2048
"""Pixels of a level along a side of the regions that are read at once: 16 MiB."""
MEDIAN = 7
"""Pixels of the mask along a side of the median filter."""
LEAST_AREA = 1e5
"""The least area of a piece of tissue, in square micrometres (0.1 mm²)."""
FAINT = 10
"""A saturation threshold below it separates noise from noise, as on a blank or an unstained slide."""
MUCH = 0.9
"""A larger share of tissue is more than a slide has: the threshold has found something else."""
INK = 10
"""Green may exceed red by this many grey levels. Haematoxylin, eosin and DAB absorb more green than red; blue and green
markers do not."""
BLACK = 50
"""A pixel whose brightest colour is darker is ink or dirt."""


@dataclass(frozen=True)
class Settings:
    """The rules by which slides are cut.

    Parameters
    ----------
    mpp : micrometres per pixel of a patch
    size : pixels along a side of a patch
    core : pixels along a side of the patch's central square, whose content decides the label
    tissue : `otsu`, or the saturation (0 to 254) above which a pixel is tissue
    tissue_share : a square is normal only if tissue covers more than this share of it
    tumour_share : a square is tumour only if it has at least this share of tumour; squares with less are left out
    per_slide : the most patches of a slide
    seed : seed of the sampling
    mask_mpp : micrometres per mask pixel, rounded so that a square has a whole number of mask pixels
    groups : role (tumour, hole or ignore) of each name of annotations
    """

    mpp: float = 1.0
    size: int = 96
    core: int = 32
    tissue: str = "otsu"
    tissue_share: float = 0.2
    tumour_share: float = 0.0
    per_slide: int = 2000
    seed: int = 0
    mask_mpp: float = 4.0
    groups: dict[str, str] = field(default_factory=lambda: dict(GROUPS))

    def require(self) -> None:
        """Raise UserErrors for impossible values, located at the options of `fedshift patches` that set them."""
        tissue = self.tissue == "otsu" or (self.tissue.isdecimal() and int(self.tissue) < 255)
        rules = [
            ("--mpp", 0.05 <= self.mpp <= 100, "lies between 0.05 and 100 micrometres"),
            ("--size", 8 <= self.size <= 2048, "lies between 8 and 2048 pixels"),
            ("--core", 1 <= self.core <= self.size, "lies between 1 and --size"),
            ("--core", (self.size - self.core) % 2 == 0, "differs from --size by an even number, to lie in the middle"),
            ("--tissue", tissue, "is otsu, or a whole number from 0 to 254"),
            ("--tissue-share", 0 <= self.tissue_share < 1, "lies between 0 and 1"),
            ("--tumour-share", 0 <= self.tumour_share <= 1, "lies between 0 and 1"),
            ("--per-slide", self.per_slide >= 1, "is at least 1"),
            ("--seed", self.seed >= 0, "is not negative"),
            ("--mask-mpp", 0.5 <= self.mask_mpp <= 64, "lies between 0.5 and 64 micrometres"),
        ]
        require_none(UserError(option, f"must be a value that {words}") for option, holds, words in rules if not holds)

    @property
    def margin(self) -> int:
        """The number of patch pixels between the rim of a patch and its central square."""
        return (self.size - self.core) // 2

    @property
    def cells(self) -> int:
        """The number of mask pixels along a side of a square."""
        return max(round(self.core * self.mpp / self.mask_mpp), 1)


@dataclass(frozen=True)
class Grid:
    """Squares side by side from the top left corner of a slide; those at the rim may be too close to it for a patch.

    Lengths are in pixels of the slide at full resolution.

    Parameters
    ----------
    settings : rules by which the slide is cut
    scale : side of a pixel of a patch
    size : width and height of the slide
    """

    settings: Settings
    scale: float
    size: tuple[int, int]

    @property
    def side(self) -> float:
        """The side of a square, in pixels of the slide."""
        return self.settings.core * self.scale

    @property
    def pixel(self) -> float:
        """The side of a mask pixel, in pixels of the slide."""
        return self.side / self.settings.cells

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and columns of squares that lie wholly on the slide."""
        columns, rows = (math.floor(length / self.side + 1e-9) for length in self.size)
        return rows, columns

    @property
    def mask(self) -> tuple[int, int]:
        """The number of rows and columns of mask pixels."""
        rows, columns = self.shape
        return rows * self.settings.cells, columns * self.settings.cells

    def shares(self, mask: Mask) -> Shares:
        """Return the share of each square that `mask`, of the shape `self.mask`, covers: (rows, columns)."""
        rows, columns = self.shape
        cells = self.settings.cells
        counts = mask.reshape(rows, cells, columns, cells).sum((1, 3), dtype=np.int64)
        return counts / cells**2

    def corners(self, places: Places) -> Places:
        """Return x and y (n, 2) of the top left corners of patches; `places` (n, 2) are rows and columns of squares."""
        return np.rint(places[:, ::-1] * self.side - self.settings.margin * self.scale).astype(np.int64)

    def whole(self) -> Mask:
        """Return a mask (rows, columns) of the squares whose whole patch lies on the slide."""
        rows, columns = self.shape
        corners = self.corners(np.argwhere(np.ones((rows, columns), bool)))
        length = self.settings.size * self.scale
        fits = (corners >= 0) & (corners + length <= np.array(self.size) + 1)
        return fits.all(1).reshape(rows, columns)


@dataclass(frozen=True)
class Labelled:
    """The squares of a slide: shares of tumour and of tissue, and masks of either label; arrays (rows, columns)."""

    tumour_share: Shares
    tissue_share: Shares
    tumour: Mask
    normal: Mask


def label(grid: Grid, tumour: Mask, tissue: Mask, ignored: Mask | None) -> Labelled:
    """Label each square of a slide as tumour or normal by the rule of WILDS.

    `tumour`, `tissue` and `ignored` are masks of the shape `grid.mask`. A square with any tumour is tumour, or one with
    at least `tumour_share` of it. A square without tumour is normal if tissue covers more than `tissue_share` of it.
    All others are left out: those with less tumour than asked for, those that an ignored area touches, and those whose
    patch would leave the slide.
    """
    settings = grid.settings
    tumour_share = grid.shares(tumour)
    tissue_share = grid.shares(tissue)
    usable = grid.whole()
    if ignored is not None:
        usable &= grid.shares(ignored) == 0
    is_tumour = usable & (tumour_share > 0) & (tumour_share >= settings.tumour_share)
    is_normal = usable & (tumour_share == 0) & (tissue_share > settings.tissue_share)
    return Labelled(tumour_share, tissue_share, is_tumour, is_normal)


@dataclass(frozen=True)
class Chosen:
    """The squares of one label that become patches: rows and columns (n, 2), and how many squares each stands for."""

    label: str
    places: Places
    weight: float


def choose(squares: Labelled, settings: Settings, slide: str) -> list[Chosen]:
    """Draw the squares of a slide that become patches: half tumour, half normal, filled up where one is scarce.

    At most `settings.per_slide` squares are drawn. The draw depends on the seed and on `slide`, the slide's name,
    alone, so that further slides in the table change nothing.
    """
    # crc32 and not hash: Python's own hash of a text differs from process to process
    rng = np.random.default_rng([settings.seed, zlib.crc32(slide.encode())])
    places = {"normal": np.argwhere(squares.normal), "tumour": np.argwhere(squares.tumour)}
    half = settings.per_slide // 2
    tumours = min(len(places["tumour"]), max(half, settings.per_slide - len(places["normal"])))
    numbers = {"tumour": tumours, "normal": min(len(places["normal"]), settings.per_slide - tumours)}
    drawn = {name: np.sort(rng.permutation(len(places[name]))[:number]) for name, number in numbers.items()}
    return [Chosen(n, places[n][drawn[n]], len(places[n]) / len(drawn[n])) for n in CLASSES if len(drawn[n])]


@dataclass(frozen=True)
class Survey:
    """A slide at the resolution of the masks.

    `saturation` (rows, columns) holds the saturation of each mask pixel, uint8; `histogram` counts its 256 values;
    `thumbnail` shows the slide `reduction` times smaller than the mask.
    """

    saturation: Pixels
    histogram: npt.NDArray[np.int64]
    thumbnail: Pixels
    reduction: int


def survey(pyramid: Pyramid, grid: Grid) -> Survey:
    """Read a whole slide at the resolution of the masks, region by region; return its saturation and thumbnail."""
    rows, columns = grid.mask
    reduction = math.ceil(max(rows, columns) / THUMBNAIL)
    down = pyramid.slide.level_downsamples[pyramid.level(grid.pixel)]
    step = max(int(READ * down / grid.pixel) // reduction, 1) * reduction
    saturations = np.empty((rows, columns), np.uint8)
    histogram = np.zeros(256, np.int64)
    thumbnail = np.empty((math.ceil(rows / reduction), math.ceil(columns / reduction), 3), np.uint8)
    for top in range(0, rows, step):
        for left in range(0, columns, step):
            size = min(step, columns - left), min(step, rows - top)
            region = pyramid.read(left * grid.pixel, top * grid.pixel, *size, grid.pixel, Image.Resampling.BOX)
            values = saturation(region)
            saturations[top : top + step, left : left + step] = values
            histogram += np.bincount(values.ravel(), minlength=256)
            y = top // reduction
            x = left // reduction
            small = np.asarray(Image.fromarray(region).reduce(reduction))
            thumbnail[y : y + small.shape[0], x : x + small.shape[1]] = small
    return Survey(saturations, histogram, thumbnail, reduction)


def saturation(rgb: Pixels) -> Pixels:
    """Return the saturation (HSV, 0 to 255) of RGB pixels (..., 3); 0 for ink, which does not count as tissue."""
    red = rgb[..., 0].astype(np.int16)
    green = rgb[..., 1]
    most = rgb.max(-1).astype(np.int32)
    values = (255 * (most - rgb.min(-1)) + most // 2) // np.maximum(most, 1)
    values[(green > red + INK) | (most < BLACK)] = 0
    return values.astype(np.uint8)


def otsu(histogram: npt.NDArray[np.int64]) -> float:
    """Return Otsu's threshold of a histogram over the values 0, 1, ...: larger values are foreground.

    The threshold maximises the variance between background and foreground. Where several do, as between two single
    values, it is the middle of them. If only one value occurs, it is the last value of the histogram: nothing is
    foreground.
    """
    counts = histogram.astype(np.float64)
    below = counts.cumsum()
    sums = (counts * np.arange(len(counts))).cumsum()
    above = below[-1] - below
    both = (below > 0) & (above > 0)
    if not both.any():
        return float(len(counts) - 1)
    between = np.zeros_like(counts)
    between[both] = (sums[-1] * below - below[-1] * sums)[both] ** 2 / (below * above)[both]
    best = np.flatnonzero(between == between.max())
    return float(best[0] + best[-1]) / 2


def tissue(saturations: Pixels, threshold: float, side: float) -> Mask:
    """Return a mask of a slide's tissue, which is more saturated than `threshold`, without specks.

    `saturations` (rows, columns) are the colour saturations of a small copy of the slide. A median filter of 7 x 7
    pixels smooths the mask, and pieces below 0.1 mm² are dropped; `side` is the side of a pixel in micrometres.
    """
    counts = (saturations > threshold).view(np.uint8)
    for axis in (0, 1):
        counts = ndimage.correlate1d(counts, np.ones(MEDIAN), axis, output=np.uint8, mode="nearest")
    # more than half of the pixels around are above the threshold: the median is
    labels, pieces = ndimage.label(counts > MEDIAN**2 // 2)
    sizes = np.zeros(pieces + 1, np.int64)
    # bincount copies what it counts: in parts, memory holds a copy of some rows only
    for block in np.array_split(labels, math.ceil(len(labels) / 256)):
        sizes += np.bincount(block.ravel(), minlength=pieces + 1)
    large = sizes * side**2 >= LEAST_AREA
    large[0] = False
    mask: Mask = large[labels]
    return mask
