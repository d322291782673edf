"""The base of all datasets: from the official source, or a mirror, to images that can be read one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ..core.registry import Plugin
from ..io.download import Source, fetch

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


Scale = Literal["paper", "mini"]


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
    miniature_fields: ClassVar[frozenset[str]] = frozenset()
    """Settings that shape the miniature alone."""
    reading_fields: ClassVar[frozenset[str]] = frozenset()
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
