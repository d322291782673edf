"""DomainNet: ten of its 345 classes, in six domains from photograph to sketch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from ..io.disk import atomic_folder
from ..io.download import Source, fetch
from ..io.origins import Origin, Receipt, checked, obtain
from . import _domainnet_copy as copy
from ._base import Card, Dataset, Opened
from ._folders import opened, write_site

URL = "http://csr.bu.edu/ftp/visda/2019/multi-source/"
ARCHIVE = "the authors' archives"
# in the cleaned version, as the authors link it: address, md5
ARCHIVES = {
    "clipart": ("groundtruth/clipart.zip", "cd0d8f2d77a4e181449b78ed62bccf1e"),
    "infograph": ("infograph.zip", "720380b86f9e6ab4805bb38b6bd135f8"),
    "painting": ("groundtruth/painting.zip", "1ae32cdb4f98fe7ab5eb0a351768abfd"),
    "quickdraw": ("quickdraw.zip", "bdc1b6f09f277da1a263389efe0c7a66"),
    "real": ("real.zip", "dcc47055e8935767784b7162e7c7cca6"),
    "sketch": ("sketch.zip", "658d8009644040ff7ce30bb2e820850f"),
}
SITES = tuple(ARCHIVES)
NAMES = ("bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra")
CLASSES = {name: name for name in NAMES}


class DomainNet10(Dataset):
    """All images of ten classes of DomainNet (cleaned version); sites = its six domains.

    Read from domain/class/image, with one archive for each domain (18 GB in all; after unpacking, folders of other
    classes are removed). Where their server does not give them, the images come from a copy at the Hugging Face Hub,
    under the same names. FedBN and FedTAN use lists of some of these images, which are not available. Images become
    squares of side `size`; as in FedBN, their aspect ratio is not kept. The authors publish no MD5 sums; these are the
    same in several public libraries.
    """

    site_kind = "domain"
    miniature_fields = frozenset({"images"})
    reading_fields = frozenset({"size"})
    classes: tuple[str, ...] = Field(NAMES, min_length=10, max_length=10, description="names of the labels 0 to 9")
    size: int = Field(256, ge=8, le=2048, description="side of the square images, in pixels")
    images: int = Field(10, ge=5, description="images of each class and site in the miniature")

    def card(self) -> Card:
        return Card(
            title="DomainNet, ten classes",
            version="2019, cleaned",
            source="http://ai.bu.edu/M3SDA/",
            licence="none; a fair-use notice of the authors, for research",
            citation="Peng et al. 2019 (ICCV, Moment Matching for Multi-Source Domain Adaptation)",
            caveat="All images of the ten classes, not the lists of the published studies, which are not available.",
        )

    def sources(self) -> Sequence[Source]:
        return [Source(URL + place, f"{site}.zip", md5=md5, unpack=True) for site, (place, md5) in ARCHIVES.items()]

    def origins(self) -> Sequence[Origin]:
        return [
            Origin(ARCHIVE, tuple(self.sources()), self._take_archives),
            Origin(copy.NAME, copy.sources(), self._take_copy, folders=copy.FOLDERS, traces=(copy.STAGING,)),
        ]

    def download(self, raw: Path, mirror: Path | None) -> Receipt:
        return copy.receipt() if copy.finished(raw) else obtain(self.origins(), raw, mirror)

    def _take_archives(self, raw: Path, mirror: Path | None) -> Receipt:
        """Get the archive of each domain, and remove the folders of other classes."""
        sources = self.sources()
        for site, source in zip(SITES, sources, strict=True):
            for folder in (fetch(source, raw, mirror) / site).glob("*/"):
                if folder.name not in CLASSES:
                    shutil.rmtree(folder)
        return Receipt(f"{ARCHIVE} ({URL})", *checked(sources))

    def _take_copy(self, raw: Path, mirror: Path | None) -> Receipt:
        """Get the shards of the copy, and bring the ten classes to the folders of the archives."""
        return copy.assemble(raw, self.origins()[1].shelf(mirror), CLASSES)

    def open(self, raw: Path) -> Opened:
        return opened(raw, SITES, CLASSES, self.size, others=True)

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits for the ten classes; sites differ in colours, contrast and noise."""
        for site in SITES:
            with atomic_folder(raw / site) as new:
                ending = "png" if site == "quickdraw" else "jpg"
                write_site(new / site, site, SITES, NAMES, self.images, self.size // 4, ending)
