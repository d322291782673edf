"""Morpho-MNIST: MNIST's digits with strokes thinned, thickened, swollen and fractured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from ..core.rng import stream
from ..io.download import Source, fetch
from . import _digit_files as digits
from . import _morpho as files
from ._base import Card, Dataset, Opened, names_of
from ._digit_drawing import digit


class MorphoMnist(Dataset):
    """The sites morpho_global (plain, thin, thick) and morpho_local (plain, swollen, fractured) have 28x28 RGB images.

    Read from IDX files with the names of MNIST's and a third one of perturbations, in the folders global and local.
    Both sites show the same digits.
    """

    site_kind = "domain"
    miniature_fields = frozenset({"images"})
    shape: ClassVar[tuple[int, int, int] | None] = (3, 28, 28)
    classes: tuple[str, ...] = names_of("0123456789")
    morpho: Literal["files", "generated"] = Field(
        "files",
        description="files: global.zip and local.zip, or folders of these names; generated: fedshift perturbs MNIST",
    )
    part: files.Part = Field("t10k", description="part of MNIST: the 10,000 test images, or the 60,000 training images")
    images: int = Field(10, ge=2, description="images of each class and site in the miniature")

    def card(self) -> Card:
        return Card(
            title="Morpho-MNIST",
            version="2018",
            source=files.PAGE,
            licence="that of MNIST, CC BY-SA 3.0; none stated for the perturbed images",
            citation="Castro et al. 2019 (JMLR 20(178)); LeCun et al. 1998 (Proceedings of the IEEE 86(11):2278-2324)",
            caveat="Both sites show the same digits of MNIST."
            + (f" {files.DRAWN}" if self.morpho == "generated" else ""),
        )

    def sources(self) -> Sequence[Source]:
        if self.morpho == "files":
            return files.sources()
        return [s for s in digits.mnist_sources() if s.filename in digits.mnist_names(self.part)]

    def download(self, raw: Path, mirror: Path | None) -> None:
        if self.morpho == "files":
            files.obtain(raw, mirror, self.part)
            return
        for source in self.sources():
            fetch(source, raw, digits.place(mirror, "mnist", source.filename))
        files.generate(raw, *digits.read_mnist(raw, self.part), self.part)

    def open(self, raw: Path) -> Opened:
        return files.opened(raw, self.part)

    def miniature(self, raw: Path) -> None:
        """Write perturbed synthetic digits like those of a digital display."""
        y = (np.arange(10 * self.images) % 10).astype(np.uint8)
        ink = [digit(stream("morpho-mnist miniature", n), int(label), 28) for n, label in enumerate(y)]
        files.generate(raw, (255 * np.stack(ink)).round().astype(np.uint8), y, self.part)
