"""The base class of published images with masks: pairing of files, classes of mask values, and drawn miniatures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image, ImageOps
from pydantic import Field, field_validator

from ..core.errors import UserError
from ..core.rng import stream
from ..core.spelling import counted
from ..io.download import USE_MIRROR, Source, SourceError
from ..io.images import longer_side, read_image
from ..io.origins import Receipt, obtain
from ._base import Dataset, Opened, listed

TWO = {0: 0, 128: 1}
"""Classes of a mask by lowest grey value: 0 to 127 are class 0, the background, and 128 to 255 are class 1."""
SIDE = 64
"""Side of the images of a miniature, in pixels."""


@dataclass(frozen=True)
class Layout:
    """The official archives of a site, and where its images and masks lie in the folder of raw files.

    Attributes
    ----------
    sources : the archives
    image : regular expression of the path of an image, with / between folders; group 1 is the leading folders, which
        are not part of the sample's name
    mask : path of the mask of an image without its ending, with groups of `image` as in `re.Match.expand`
    counts : the possible numbers of images with a mask: releases differ
    drawn : returns the paths of image n of the miniature and of its mask
    patient : name of the patient at this site, with groups of `image`; empty where it is unknown
    """

    sources: tuple[Source, ...]
    image: str
    mask: str
    counts: tuple[int, ...]
    drawn: Callable[[int], tuple[str, str]]
    patient: str = ""


@dataclass(frozen=True)
class Pair:
    """An image file and its mask file. `found` matches the path with `Layout.image`; an unknown `patient` is None."""

    site: str
    sample: str
    image: Path
    mask: Path
    patient: str | None
    found: re.Match[str]


class Outlines(Dataset):
    """Base class of datasets of images with masks, in the official folders of several sites.

    A plug-in defines `layouts`, `drawing` and a card. Images are read from their authors' archives. Most need a login
    or an agreement, so that the user must download them by hand.
    """

    layouts: ClassVar[Mapping[str, Layout]]
    levels: ClassVar[Mapping[int, int]] = TWO
    """Classes of a mask by grey value: each key is the lowest grey value of a range, and its value is the class."""
    inks: ClassVar[tuple[int, ...]] = (0, 255)
    """Grey value of each class in the masks of the miniature."""
    padded = True
    miniature_fields = frozenset({"images"})
    reading_fields = frozenset({"size", "classes"})
    sites: tuple[str, ...] = Field((), description="which sites are read, and must be there; default: all")
    size: int = Field(256, ge=16, le=2048, description="side of the square images, in pixels")
    images: int = Field(10, ge=5, description="images of each site in the miniature")

    @field_validator("sites")
    @classmethod
    def _known(cls, sites: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [site for site in sites if site not in cls.layouts]
        if unknown:
            raise ValueError(f"there is no site {unknown[0]!r}: name some of {', '.join(cls.layouts)}")
        return sites

    @property
    def has_masks(self) -> bool:
        return True

    @property
    def chosen(self) -> dict[str, Layout]:
        """The layouts of the sites that the study reads, by name of the site."""
        return {site: self.layouts[site] for site in self.sites or self.layouts}

    def sources(self) -> Sequence[Source]:
        return list(dict.fromkeys(source for layout in self.chosen.values() for source in layout.sources))

    def download(self, raw: Path, mirror: Path | None) -> Receipt:
        self._require_files(raw, mirror)
        receipt = obtain(self.origins(), raw, mirror)
        self.unpacked(raw)
        found = self.pairs(raw)
        for site, layout in self.chosen.items():
            number = sum(pair.site == site for pair in found)
            if number not in layout.counts:
                expected = " or ".join(f"{count:,}" for count in layout.counts)
                problem = f"site {site} has {counted(number, 'image')} with a mask, expected {expected}"
                raise UserError(raw / layout.sources[0].unpacked_name, problem, "obtain the archive again")
        return receipt.also("the number of images with a mask of each site")

    def unpacked(self, raw: Path) -> None:
        """Decompress files in `raw` that were compressed inside of an archive. By default, do nothing."""

    def _require_files(self, raw: Path, mirror: Path | None) -> None:
        """Raise one SourceError for all archives to download by hand that are neither in `raw` nor in the mirror."""
        lacking = [
            f"{source.filename} from {source.page}"
            for source in self.sources()
            if source.url is None
            and not (raw / source.unpacked_name).is_dir()
            and not (mirror and (mirror / source.filename).is_file())
        ]
        if lacking:
            problem = f"{counted(len(lacking), 'file')} to get by hand: {'; '.join(lacking)}"
            remedy = USE_MIRROR if len(lacking) == 1 else USE_MIRROR.replace("the file", "the files")
            raise SourceError(self.card().title, problem, remedy)

    def pairs(self, raw: Path) -> list[Pair]:
        """Return all images with their masks, by site and name. Raises UserError for a site without any."""
        found = []
        for site, layout in self.chosen.items():
            pairs = sorted(_pairs(raw, site, layout), key=lambda pair: pair.sample)
            if not pairs:
                folder = raw / layout.sources[0].unpacked_name
                problem = f"holds no image of {site} with its mask"
                raise UserError(folder, problem, "expected files such as {} with the mask {}".format(*layout.drawn(0)))
            found += pairs
        return found

    def open(self, raw: Path) -> Opened:
        pairs = self.pairs(raw)
        names, patients = [pair.sample for pair in pairs], [pair.patient for pair in pairs]
        table = listed(names, [pair.site for pair in pairs], None, patients)
        return Opened(
            table,
            lambda i: square(read_image(pairs[i].image), self.size),
            reduction=lambda i: longer_side(pairs[i].image) / self.size,
            mask=lambda i: square(self.classes_of(pairs[i]), self.size, nearest=True),
        )

    def classes_of(self, pair: Pair) -> np.ndarray:
        """Read the mask of `pair`: the class of each pixel (height, width), uint8. Raises UserError if sizes differ."""
        image, grey = (read_image(file)[..., 0] for file in (pair.image, pair.mask))
        if image.shape != grey.shape:
            sizes = ["{1}x{0}".format(*pixels.shape) for pixels in (grey, image)]
            raise UserError(pair.mask, f"has {sizes[0]} pixels, and its image {sizes[1]}", "obtain the archive again")
        return in_levels(grey, self.levels)

    def drawing(self, rng: np.random.Generator) -> np.ndarray:
        """Draw a random mask for the miniature: the class of each pixel (SIDE, SIDE), uint8."""
        raise TypeError(f"{type(self).__name__} draws nothing")

    def miniature(self, raw: Path) -> None:
        """Write drawn images with their masks in the layout of each site; sites differ in light, contrast and noise."""
        for site, layout in self.chosen.items():
            for n in range(self.images):
                rng = stream(self.name, "miniature", site, n)
                classes = self.drawing(rng)
                files = [raw / name for name in layout.drawn(n)]
                inked = np.array(self.inks, dtype=np.uint8)[classes]
                for file, pixels in zip(files, (painted(rng, classes, site), inked), strict=True):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels).save(file)


def in_levels(grey: np.ndarray, levels: Mapping[int, int]) -> np.ndarray:
    """Return the classes, uint8, of grey values, uint8. `levels` maps the lowest grey value of a range to its class."""
    table = np.zeros(256, dtype=np.uint8)
    for bound in sorted(levels):
        table[bound:] = levels[bound]
    classes: np.ndarray = table[grey]
    return classes


def square(image: np.ndarray, size: int, nearest: bool = False) -> np.ndarray:
    """Scale an image (height, width, ...) uint8 so that its longer side is `size`, and add black to make it a square.

    Nothing is cut off, and the aspect ratio is kept. By default it is scaled by Lanczos; masks need the nearest pixel.
    """
    if image.shape[:2] == (size, size):
        return image
    method = Image.Resampling.NEAREST if nearest else Image.Resampling.LANCZOS
    return np.asarray(ImageOps.pad(Image.fromarray(image), (size, size), method))


def ellipse(rng: np.random.Generator, radius: tuple[float, float], side: int = SIDE) -> np.ndarray:
    """Draw an ellipse near the centre (side, side), bool; `radius` bounds its half axes, as shares of the side."""
    rows, columns = np.mgrid[:side, :side] + 0.5
    centre = rng.uniform(0.42, 0.58, 2) * side
    axes = rng.uniform(*radius, 2) * side
    inside: np.ndarray = ((rows - centre[0]) / axes[0]) ** 2 + ((columns - centre[1]) / axes[1]) ** 2 < 1
    return inside


def painted(rng: np.random.Generator, classes: np.ndarray, *look: str) -> np.ndarray:
    """Paint an image (height, width, 3) uint8 for a mask of `classes` (height, width).

    `look`, such as the name of the site, decides light, contrast and noise; `rng` draws the noise of each pixel.
    """
    look_rng = stream("outlines miniature", *look)
    ground = look_rng.uniform(50, 140, 3)
    step = look_rng.uniform(20, 60, 3)
    noise = look_rng.uniform(4, 14)
    levels = ground + step * classes[..., None] + rng.normal(0, noise, (*classes.shape, 3))
    return levels.clip(0, 255).round().astype(np.uint8)


def _pairs(raw: Path, site: str, layout: Layout) -> Iterator[Pair]:
    """Yield each image below `raw` that matches the site's `layout` and has a mask file."""
    folders = [raw / source.unpacked_name for source in layout.sources]
    paths = [file.relative_to(raw).as_posix() for folder in folders for file in folder.rglob("*")]
    # A Mac adds files of its own, with the same names, to each archive.
    paths = [path for path in paths if "__MACOSX" not in path and "/." not in path]
    # `.nii.gz` is one ending
    stems = (path.removesuffix(".gz").rpartition(".")[0] or path for path in paths)
    by_stem = {stem.casefold(): path for stem, path in zip(stems, paths, strict=True)}
    for path in paths:
        found = re.fullmatch(layout.image, path, re.IGNORECASE)
        mask = found and by_stem.get(found.expand(layout.mask).casefold())
        if found and mask and mask != path:
            patient = f"{site}_{found.expand(layout.patient)}" if layout.patient else None
            yield Pair(site, f"{site}/{path[max(found.end(1), 0) :]}", raw / path, raw / mask, patient, found)
