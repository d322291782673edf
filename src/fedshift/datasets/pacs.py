"""PACS: objects of seven classes as photographs, paintings, cartoons and sketches."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from ..core.errors import UserError
from ..io.disk import atomic_folder
from ..io.download import MARKER, Source
from ..io.origins import INDEX, Hub, Origin, Receipt, Row, obtain, write_images
from ..io.text import read_json, write_json
from ._base import Card, Dataset, Opened, names_of
from ._folders import below, opened, write_folders

COUNTS = {"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929}
SITES = tuple(COUNTS)
COPY = Hub("flwrlabs/pacs", "394113073258ead631f617d2e13bb377c0715c4b")
SHA256 = "4fc041ee92eec6043fe6e2859e8bdd138e5f958bc621afd153879812cbe65ff5"
PNG = b"\x89PNG"
NAMES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


class Pacs(Dataset):
    """9,991 images of seven classes; sites = art_painting 2,048, cartoon 2,344, photo 1,670, sketch 3,929 images.

    Read from site/class/image, as DomainBed unpacks its PACS.zip. Images are 227x227 pixels and become squares of side
    `size`. No lasting address and no checksum of that archive are known, so images are counted; without it in a mirror,
    a copy in one Parquet file is downloaded (191 MB; in a mirror: pacs.parquet). Its images have other names, so they
    are split otherwise.
    """

    site_kind = "domain"
    miniature_fields = frozenset({"images"})
    reading_fields = frozenset({"size"})
    classes: tuple[str, ...] = names_of(NAMES)
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
        page = "the address in DomainBed's domainbed/scripts/download.py"
        return [Source(None, self.archive, unpack=True, page=page)]

    def origins(self) -> Sequence[Origin]:
        shard = COPY.source("data/train-00000-of-00001.parquet", sha256=SHA256, size=191_395_900)
        copy = (dataclasses.replace(shard, filename="pacs.parquet"),)
        return [
            Origin("the archive of DomainBed", tuple(self.sources())),
            Origin("the copy flwrlabs/pacs at the Hugging Face Hub", copy, self._take_copy, "unknown"),
        ]

    def download(self, raw: Path, mirror: Path | None) -> Receipt:
        receipt = obtain(self.origins(), raw, mirror)
        images = self.open(raw).samples["site"].value_counts()
        for site, count in COUNTS.items():
            if images[site] != count:
                problem = f"site {site} has {images[site]} images, expected {count}"
                raise UserError(self._folder(raw) / site, problem, "obtain the archive again")
        return receipt.also("the number of images of each site")

    def _take_copy(self, raw: Path, mirror: Path | None) -> Receipt:
        """Get the Hugging Face Hub's copy, and write its images to the folders site/class that the archive has."""
        origin = self.origins()[1]
        (source,) = origin.sources
        folder = raw / self.sources()[0].unpacked_name
        identity = {"content": source.sha256}
        if not (folder / MARKER).is_file() or read_json(folder / MARKER) != identity:
            with atomic_folder(folder) as new:
                write_images(source, new, mirror, ["domain", "label"], _place)
                shutil.rmtree(new / INDEX)
                write_json(new / MARKER, identity)
        return Receipt(f"{origin.name} ({COPY.page})", (f"published checksum of {source.filename}",))

    def open(self, raw: Path) -> Opened:
        return opened(self._folder(raw), SITES, {name: name for name in NAMES}, self.size)

    def _folder(self, raw: Path) -> Path:
        return below(raw / self.sources()[0].unpacked_name, SITES[0])

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits for the seven classes; sites differ in colours, contrast and noise."""
        write_folders(raw / self.sources()[0].unpacked_name, SITES, NAMES, self.images, self.size // 4)


def _place(row: Row, number: int, shard: Path) -> tuple[str, Row]:
    """Return the path site/class/number of an image of the copy, and a record of its site.

    Raises ValueError for a domain or a label that PACS does not have.
    """
    site = row["domain"]
    label = row["label"]
    if site not in SITES or label not in range(len(NAMES)):
        raise ValueError(f"domain {site!r} and label {label!r} are not of PACS")
    ending = "png" if row["image"]["bytes"].startswith(PNG) else "jpg"
    return f"{site}/{NAMES[label]}/{number:05}.{ending}", {"domain": site}
