"""The base of all datasets: from the official source, or a mirror, to images that can be read one by one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from .errors import UserError
from .fetch import Source, fetch
from .registry import Plugin

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

Scale = Literal["paper", "mini"]
TWELVE_BITS = 4096
DAMAGE = (OSError, SyntaxError, ValueError, RuntimeError, struct.error)
"""What Pillow raises of a damaged image, beside its own errors."""


@dataclass(frozen=True)
class Card:
    """What a reader must know of a dataset."""

    title: str
    version: str
    source: str
    licence: str
    citation: str
    caveat: str = ""


@dataclass(frozen=True)
class Opened:
    """Raw files, ready to be read.

    `samples` has one row an image: sample (str, unique), site (str), label (int), patient (str, or None where unknown)
    and, where sites show the same images in another guise, base (what they share). `image(i)` is the image of row i:
    (height, width, channels), uint8, or of a dataset of vectors (features,), float32; it may be called from several
    threads, and raises UserError naming the file that cannot be read.
    """

    samples: pd.DataFrame
    image: Callable[[int], np.ndarray]


class Dataset(Plugin):
    """Raw files of one dataset and how to read them.

    A plug-in gives `card`, `classes`, `sources` (or its own `download`) and `open`; and `miniature`, which writes a
    small synthetic set in the same raw layout, if it has one.
    """

    kind: ClassVar[str] = "dataset"
    of_miniature: ClassVar[frozenset[str]] = frozenset()
    """Settings that shape the miniature alone."""
    of_reading: ClassVar[frozenset[str]] = frozenset()
    """Settings that leave the raw files as they are: they are not obtained again when these change."""
    shape: ClassVar[tuple[int, ...] | None] = None
    """(channels, height, width), or (features,), of the prepared images, where it is known before they are read."""
    classes: tuple[str, ...] = Field(("negative", "positive"), description="names of the labels 0, 1, ...")

    def card(self) -> Card:
        """Source, licence and citation, for the page."""
        raise TypeError(f"{type(self).__name__} has no card")

    def sources(self) -> Sequence[Source]:
        """The official files."""
        return ()

    def inputs(self) -> Sequence[Path]:
        """The user's own files that the dataset is read from, if any: it is prepared again when they change."""
        return ()

    def fingerprint(self) -> str:
        """Of the user's own files beyond `inputs`, such as the images of a table, cheap enough for every dry run."""
        return ""

    def download(self, raw: Path, mirror: Path | None) -> None:
        """Put the official files into `raw`, each verified; the mirror directory is looked at first."""
        for source in self.sources():
            fetch(source, raw, mirror)

    def miniature(self, raw: Path) -> None:
        """Write a small synthetic set into `raw`, in the raw layout of the real one, always the same."""
        raise TypeError(f"{type(self).__name__} has no miniature")

    def miniature_card(self) -> Card:
        """The card of the miniature, which must not pass for the real set."""
        real = self.card()
        return Card(
            title=f"Synthetic miniature in the layout of {real.title}",
            version=real.version,
            source="drawn by fedshift",
            licence="that of fedshift",
            citation=f"none; the layout is that of {real.citation}",
        )

    @property
    def has_miniature(self) -> bool:
        """Whether there is one; a dataset without is used as it is at every scale."""
        return type(self).miniature is not Dataset.miniature

    def open(self, raw: Path) -> Opened:
        """Read the raw files' index. Raises UserError where it is not as documented."""
        raise TypeError(f"{type(self).__name__} opens nothing")


def read_image(path: Path, *, own: bool = False) -> np.ndarray:
    """An image file of any format that Pillow reads, as (height, width, 3) uint8.

    Of 16 bits a pixel the upper 8 are kept. Users' `own` images are turned as their EXIF orientation says, and refused
    where all 16-bit values are below 4096 (and not all 0): little of them is in the upper 8. Raises UserError naming
    the file.
    """
    import numpy as np
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            if opened.format == "EPS":
                raise ValueError("PostScript, which would be run as a program: convert it")
            if opened.mode in ("I", "F"):
                raise ValueError("32 bits a pixel: bring it to 8 or 16")
            image = ImageOps.exif_transpose(opened) if own else opened
            if image.mode.startswith("I;16"):  # Pillow's own conversion makes all but the darkest white
                deep = np.asarray(image)
                if own:
                    _require_range(path, int(deep.max()))
                return np.repeat((deep >> 8).astype(np.uint8)[..., None], 3, axis=2)
            return np.asarray(image.convert("RGB"))
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(path, "no such image", "restore it, or remove its row") from None
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise UserError(
            path, f"cannot be read as an image ({error})", "obtain the file anew, or remove its row"
        ) from None


def _require_range(path: Path, most: int) -> None:
    """Raise UserError where 16 bits hold 12 or fewer, as in many exports of X-ray and CT."""
    if 0 < most < TWELVE_BITS:
        what = f"has 16 bits a pixel, but its brightest is {most} of 65535: it would be almost black"
        raise UserError(path, what, "rescale it to the full range of 16 bits, or export it with 8")
