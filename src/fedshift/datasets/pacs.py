"""PACS: objects of seven classes as photographs, paintings, cartoons and sketches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from ..core.errors import UserError
from ..io import hub
from ..io.disk import atomic_folder
from ..io.download import MARKER, Source, fetch
from ..io.origins import Origin, Receipt, obtain
from ..io.text import read_json, write_json
from ._base import Card, Dataset, Opened
from ._divide import digit
from ._folders import below, opened

COUNTS = {"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929}
SITES = tuple(COUNTS)
COPY = hub.Hub("flwrlabs/pacs", "394113073258ead631f617d2e13bb377c0715c4b")
SHA256 = "4fc041ee92eec6043fe6e2859e8bdd138e5f958bc621afd153879812cbe65ff5"
COLUMNS = ("image", "domain", "label")
NAMES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


class Pacs(Dataset):
    """9,991 images of seven classes; sites = art_painting 2,048, cartoon 2,344, photo 1,670, sketch 3,929 images.

    Read from site/class/image, as DomainBed unpacks its PACS.zip. Images are 227x227 pixels and become squares of side
    `size`. No lasting address and no checksum of that archive are known, so images are counted; without it in a mirror,
    a copy in one Parquet file is downloaded (191 MB; in a mirror: pacs.parquet). Its images have other names, so the
    split is another draw.
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
                what = f"site {site} has {images[site]} images, expected {count}"
                raise UserError(self._folder(raw) / site, what, "obtain the archive again")
        return dataclasses.replace(receipt, verified=(*receipt.verified, "the number of images of each site"))

    def _take_copy(self, raw: Path, mirror: Path | None) -> Receipt:
        """Get the copy and bring its images, whose bytes stay as they are, to the folders of the archive."""
        origin = self.origins()[1]
        (source,) = origin.sources
        folder, identity = raw / self.sources()[0].unpacked_name, {"content": source.sha256}
        if not (folder / MARKER).is_file() or read_json(folder / MARKER) != identity:
            shard = fetch(source, raw, mirror, copy=False)
            with atomic_folder(folder) as new:
                _unpack(shard, new)
                write_json(new / MARKER, identity)
            if shard.parent == raw:
                shard.unlink()
        return Receipt(f"{origin.name} ({COPY.page})", (f"published checksum of {source.filename}",))

    def open(self, raw: Path) -> Opened:
        return opened(self._folder(raw), SITES, {name: name for name in NAMES}, self.size)

    def _folder(self, raw: Path) -> Path:
        return below(raw / self.sources()[0].unpacked_name, SITES[0])

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits for the seven classes; sites differ in colours, contrast and noise."""
        from ._miniature import write_folders

        write_folders(raw / self.sources()[0].unpacked_name, SITES, NAMES, self.images, digit, self.size // 4)


def _unpack(shard: Path, folder: Path) -> None:
    """Write the images of the copy to folder/site/class/number. Raises UserError for a row that is of another set."""
    for number, row in enumerate(hub.rows(shard, COLUMNS)):
        image, site, label = (row[column] for column in COLUMNS)
        content = image.get("bytes") if isinstance(image, dict) else None
        if not content or site not in SITES or label not in range(len(NAMES)):
            what = f"has no image, or domain {site!r} and label {label!r} are not of PACS"
            raise UserError(f"{shard}, row {number}", what, "check that it is the copy of PACS")
        place = folder / site / NAMES[label]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:05}.{'png' if content.startswith(hub.PNG) else 'jpg'}").write_bytes(content)
