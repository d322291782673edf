"""Office-Caltech10: objects of ten classes, from an online shop, an image search and two cameras."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from ..io.download import Source
from ._base import Card, Dataset, Opened, names_of
from ._folders import below, opened, write_folders

SITES = ("amazon", "caltech", "dslr", "webcam")
WORDS = "backpack bike calculator headphones keyboard laptop_computer monitor mouse mug projector"
NAMES = tuple(WORDS.split())
FOLDERS = {"backpack": "backpack", "back_pack": "backpack"} | {name: name for name in NAMES[1:]}


class OfficeCaltech10(Dataset):
    """The sites amazon (958), caltech (1,123), dslr (157) and webcam (295) have 2,533 photographs of ten classes.

    Read from site/class/image. Images become squares of side `size`; as in FedBN, their aspect ratio is not kept.
    """

    site_kind = "domain"
    miniature_fields = frozenset({"images"})
    reading_fields = frozenset({"size"})
    classes: tuple[str, ...] = names_of(NAMES)
    archive: str = Field(
        "office_caltech10.tar", description="tar or zip file with the folders, in the mirror directory"
    )
    size: int = Field(256, ge=8, le=2048, description="side of the square images, in pixels")
    images: int = Field(12, ge=5, description="images of each class and site in the miniature")

    def card(self) -> Card:
        return Card(
            title="Office-Caltech10",
            version="2012",
            source="the authors of Gong et al. 2012, and copies of it",
            licence="none stated; for research",
            citation="Gong et al. 2012 (CVPR, Geodesic Flow Kernel for Unsupervised Domain Adaptation)",
            caveat="dslr and webcam show the same objects, each in several frames, and file names do not tell which: a "
            "random split puts frames of one object into training and test data.",
        )

    def sources(self) -> Sequence[Source]:
        return [Source(None, self.archive, unpack=True, page="a copy of the images of Gong et al. 2012")]

    def open(self, raw: Path) -> Opened:
        folder = raw / self.sources()[0].unpacked_name
        return opened(below(folder, SITES[0]), SITES, FOLDERS, self.size)

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits for the ten classes; sites differ in colours, contrast and noise."""
        write_folders(raw / self.sources()[0].unpacked_name, SITES, NAMES, self.images, self.size // 4)
