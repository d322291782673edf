"""DomainNet: ten of its 345 classes, in six domains from photograph to sketch.

Where the authors' server does not give its archives, the images come from Parquet shards of a copy at the Hugging Face
Hub, and are brought to the archives' folders.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pydantic import Field

from ..core.console import say
from ..core.errors import UserError, require_none
from ..io.disk import atomic_folder, in_turn
from ..io.download import MARKER, Source, fetch
from ..io.origins import NAME, Hub, Origin, Receipt, Row, checked, class_names, obtain, write_images
from ..io.text import read_json, write_json
from ._base import Card, Dataset, Opened, names_of
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
HUB = Hub("wltjr1007/DomainNet", "ee20570ae7a29c51571e55a9a17983f7625295d6")
FOLDERS = (".", "data", "DomainNet", "DomainNet/data")
STAGING = ".domainnet.copy"
# size and sha256 of each shard, the smallest first
SHARDS = {
    "train-00000-of-00003": (758_577_202, "37dfda4256254a53d58352ba6f3ea8a1ae24d13f3d39eb27a143b859f73b3e5a"),
    "train-00002-of-00003": (4_959_599_036, "bb3dd680e02ac1cf539fb6d32959b096a06535892aa8c494e31378762f02613c"),
    "test-00000-of-00001": (5_597_563_518, "7eb34c7c9c020f265db6c4b2405c873f4bda0259cd06b43aa31df45a17a55409"),
    "train-00001-of-00003": (7_205_696_451, "c5d86606a2fa7b1418895717803cfa7c3e7adad37454ee7b1ad44f1ec0eb3e15"),
}
"""Size and SHA-256 of each shard, as other users of this revision have published them."""
IMAGES = {
    "clipart": 48_129,
    "infograph": 51_605,
    "painting": 72_266,
    "quickdraw": 172_500,
    "real": 172_947,
    "sketch": 69_128,
}
"""Images of each domain in the cleaned version, over all 345 classes."""


class DomainNet10(Dataset):
    """The sites are the six domains of DomainNet (cleaned version), each with all its images of ten classes.

    Read from domain/class/image, with one archive for each domain (18 GB in all; after unpacking, folders of other
    classes are removed). Where their server does not give them, the images come from a copy at the Hugging Face Hub,
    under the same names. FedBN and FedTAN use lists of some of these images, which are not available. Images become
    squares of side `size`; as in FedBN, their aspect ratio is not kept. The authors publish no MD5 sums: those
    used here are from several public libraries, which agree.
    """

    site_kind = "domain"
    miniature_fields = frozenset({"images"})
    reading_fields = frozenset({"size"})
    classes: tuple[str, ...] = names_of(NAMES)
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
            Origin(NAME, _shards(), self._take_copy, folders=FOLDERS, traces=(STAGING,)),
        ]

    def download(self, raw: Path, mirror: Path | None) -> Receipt:
        markers = [raw / domain / MARKER for domain in IMAGES]
        # the folders of all domains are there, and come from the copy
        finished = all(marker.is_file() and read_json(marker).get("content") == HUB.page for marker in markers)
        return _receipt() if finished else obtain(self.origins(), raw, mirror)

    def _take_archives(self, raw: Path, mirror: Path | None) -> Receipt:
        """Get and unpack the archive of each domain, and remove the folders of classes that are not among the ten."""
        sources = self.sources()
        for site, source in zip(SITES, sources, strict=True):
            for folder in (fetch(source, raw, mirror) / site).glob("*/"):
                if folder.name not in CLASSES:
                    shutil.rmtree(folder)
        return Receipt(f"{ARCHIVE} ({URL})", *checked(sources))

    def _take_copy(self, raw: Path, mirror: Path | None) -> Receipt:
        """Write the images of the Hugging Face Hub's copy to `raw`/domain/class, and return what was verified.

        Finished shards are remembered, and the next call goes on from them. Raises UserErrors for wrong counts, and
        UserError for a damaged shard or for an image with another name than in the archives, since samples are named
        after the files.
        """
        shelf = self.origins()[1].shelf(mirror)
        new = raw / STAGING
        new.mkdir(parents=True, exist_ok=True)
        with in_turn(raw / f"{STAGING}.lock", lambda: say("DomainNet: another process gets it")):
            images: Counter[str] = Counter()
            for source in _shards():
                table = write_images(source, new, shelf, ["domain", "label"], _place)
                images.update(table["domain"])
            remedy = "remove this folder to begin again"
            require_none(
                UserError(new, f"{images[domain]:,} images of {domain}, expected {number:,}", remedy)
                for domain, number in IMAGES.items()
                if images[domain] != number
            )
            for domain in IMAGES:
                write_json(new / domain / MARKER, {"content": HUB.page})
            os.sync()
            for domain in IMAGES:
                # archives of some domains may have arrived before their server died
                if (raw / domain).exists():
                    shutil.rmtree(raw / domain)
                (new / domain).rename(raw / domain)
            shutil.rmtree(new)
        return _receipt()

    def open(self, raw: Path) -> Opened:
        return opened(raw, SITES, CLASSES, self.size, others=True)

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits for the ten classes; sites differ in colours, contrast and noise."""
        for site in SITES:
            with atomic_folder(raw / site) as new:
                ending = "png" if site == "quickdraw" else "jpg"
                write_site(new / site, site, SITES, NAMES, self.images, self.size // 4, ending)


def _shards() -> tuple[Source, ...]:
    """Return the Parquet shards of the copy at the Hugging Face Hub."""
    return tuple(
        HUB.source(f"data/{name}.parquet", size=size, sha256=sha256) for name, (size, sha256) in SHARDS.items()
    )


def _receipt() -> Receipt:
    """Return the record of what is verified, and what is not, of images from the Hugging Face Hub's copy."""
    verified, unverified = checked(_shards())
    return Receipt(
        f"{NAME} ({HUB.page})",
        (*verified, "images per domain over all classes", "file names of the archives"),
        (*unverified, "pixels: not compared with the images of the archives"),
    )


@functools.cache
def _names(shard: Path, column: str) -> list[str]:
    """Return the names of the classes of a shard's column, with _ for blanks. The head of the shard is read once."""
    return [name.replace(" ", "_") for name in class_names(shard, column)]


def _place(row: Row, number: int, shard: Path) -> tuple[str, Row]:
    """Return the path domain/class/file of an image of a shard, and a record of its domain.

    The path is '' if the image is of none of the ten classes. Raises ValueError if its name is none of DomainNet's.
    """
    missing = sorted(set(CLASSES) - set(_names(shard, "label")))
    if missing:
        raise ValueError(f"is of a shard without the class {missing[0]!r}")
    domain = row["domain"]
    if not isinstance(domain, str):
        domain = _names(shard, "domain")[domain]
    label = _names(shard, "label")[row["label"]]
    if label not in CLASSES:
        return "", {"domain": domain}
    file = PurePosixPath(row["image"]["path"] or "").name
    if domain not in IMAGES or not re.fullmatch(rf"{domain}_\d{{3}}_\d{{6}}\.(jpg|png)", file):
        raise ValueError(f"its image is named {file!r}, unlike any in DomainNet's archives")
    return f"{domain}/{label}/{file}", {"domain": domain}
