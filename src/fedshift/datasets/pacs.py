"""PACS: objects of seven classes as photographs, paintings, cartoons and sketches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from ..core.errors import UserError
from ..io.download import Source
from ._base import Card, Dataset, Opened
from ._divide import digit
from ._folders import below, opened

COUNTS = {"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929}
SITES = tuple(COUNTS)
NAMES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


class Pacs(Dataset):
    """9,991 images of seven classes; sites = art_painting 2,048, cartoon 2,344, photo 1,670, sketch 3,929 images.

    Read from site/class/image, as DomainBed unpacks its PACS.zip. Images are 227x227 pixels and become squares of side
    `size`. No lasting address and no checksum of that archive are known, so images are counted instead.
    """

    miniature_fields = frozenset({"images"})
    reading_fields = frozenset({"size"})
    classes: tuple[str, ...] = Field(NAMES, min_length=7, max_length=7, description="names of the labels 0 to 6")
    archive: str = Field("PACS.zip", description="zip or tar file with the folders, in the mirror directory")
    size: int = Field(224, ge=8, le=2048, description="side of the square images, in pixels")
    images: int = Field(10, ge=5, description="images of each class and site in the miniature")

    def card(self) -> Card:
        return Card(
            title="PACS",
            version="2017",
            source="https://github.com/facebookresearch/DomainBed (domainbed/scripts/download.py)",
            licence="none stated; for research",
            citation="Li et al. 2017 (ICCV, Deeper, Broader and Artier Domain Generalization)",
            caveat="Not medical: a benchmark of styles. Nobody knows which images show the same object or are by the "
            "same hand, so intervals are over images.",
        )

    def sources(self) -> Sequence[Source]:
        return [
            Source(None, self.archive, unpack=True, page="the address in DomainBed's domainbed/scripts/download.py")
        ]

    def download(self, raw: Path, mirror: Path | None) -> None:
        super().download(raw, mirror)
        images = self.open(raw).samples["site"].value_counts()
        for site, count in COUNTS.items():
            if images[site] != count:
                what = f"site {site} has {images[site]} images, expected {count}"
                raise UserError(self._folder(raw) / site, what, "obtain the archive again")

    def open(self, raw: Path) -> Opened:
        return opened(self._folder(raw), SITES, {name: name for name in NAMES}, self.size)

    def _folder(self, raw: Path) -> Path:
        return below(raw / self.sources()[0].unpacked_name, SITES[0])

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits for the seven classes; sites differ in colours, contrast and noise."""
        from ._miniature import write_folders

        write_folders(raw / self.sources()[0].unpacked_name, SITES, NAMES, self.images, digit, self.size // 4)
