"""DomainNet from its copy at the Hugging Face Hub: ten classes of Parquet shards, brought to the archives' folders."""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from ..core.console import say
from ..core.errors import UserError, require_none
from ..io.disk import in_turn
from ..io.download import MARKER, Source
from ..io.origins import Hub, Receipt, checked, class_names
from ..io.text import read_json, write_json
from ._hub_copy import NAME, Row, write_images

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


def sources() -> tuple[Source, ...]:
    """Return the shards."""
    return tuple(
        HUB.source(f"data/{name}.parquet", size=size, sha256=sha256) for name, (size, sha256) in SHARDS.items()
    )


def receipt() -> Receipt:
    """Return what `assemble` verifies of the copy."""
    verified, unverified = checked(sources())
    return Receipt(
        f"{NAME} ({HUB.page})",
        (*verified, "images per domain over all classes", "file names of the archives"),
        (*unverified, "pixels: not compared with the images of the archives"),
    )


def finished(raw: Path) -> bool:
    """Return whether the folders of all domains are there and come from the copy."""
    markers = [raw / domain / MARKER for domain in IMAGES]
    return all(marker.is_file() and read_json(marker).get("content") == HUB.page for marker in markers)


def assemble(raw: Path, mirror: Path | None, classes: Collection[str]) -> Receipt:
    """Write the folders domain/class of `raw` from the shards, for some classes, and say what was verified.

    Finished shards are remembered, and the next call goes on from them. Raises UserErrors for wrong counts, and
    UserError for a damaged shard, and for images without the names that they have in the archives: samples are named
    after them.
    """
    new = raw / STAGING
    new.mkdir(parents=True, exist_ok=True)
    with in_turn(raw / f"{STAGING}.lock", lambda: say("DomainNet: another process gets it")):
        images: Counter[str] = Counter()
        for source in sources():
            table = write_images(source, new, mirror, ["domain", "label"], functools.partial(_place, classes))
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
    return receipt()


@functools.cache
def _names(shard: Path, column: str) -> list[str]:
    """Return the names of the classes of a column. The head of a shard is read once."""
    return [name.replace(" ", "_") for name in class_names(shard, column)]


def _place(classes: Collection[str], row: Row, number: int, shard: Path) -> tuple[str, Row]:
    """Return where an image is written, nowhere if it is not of these classes, and its domain."""
    missing = sorted(set(classes) - set(_names(shard, "label")))
    if missing:
        raise ValueError(f"is of a shard without the class {missing[0]!r}")
    domain = row["domain"]
    if not isinstance(domain, str):
        domain = _names(shard, "domain")[domain]
    label = _names(shard, "label")[row["label"]]
    if label not in classes:
        return "", {"domain": domain}
    file = PurePosixPath(row["image"]["path"] or "").name
    if domain not in IMAGES or not re.fullmatch(rf"{domain}_\d{{3}}_\d{{6}}\.(jpg|png)", file):
        raise ValueError(f"its image is named {file!r}, unlike any in DomainNet's archives")
    return f"{domain}/{label}/{file}", {"domain": domain}
