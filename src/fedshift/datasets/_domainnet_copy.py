"""DomainNet from its copy at the Hugging Face Hub: ten classes of Parquet shards, brought to the archives' folders."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ..core.errors import UserError, require_none
from ..io.disk import locked
from ..io.download import MARKER, USE_MIRROR, Source, fetch
from ..io.hub import Hub, class_names, rows
from ..io.origins import Receipt, checked
from ..io.text import read_json, write_json

HUB = Hub("wltjr1007/DomainNet", "ee20570ae7a29c51571e55a9a17983f7625295d6")
NAME = "the copy at the Hugging Face Hub"
FOLDERS = (".", "data", "DomainNet", "DomainNet/data")
STAGING = ".domainnet.copy"
SHARDS = {  # the smallest first: size, sha256
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
    with locked(new / "lock"):
        images: Counter[str] = Counter()
        for source in sources():
            images.update(_unpacked(source, new, mirror, classes))
        wrong = [
            UserError(new, f"{images[d]:,} images of {d}, expected {n:,}", "remove this folder to begin again")
            for d, n in IMAGES.items()
            if images[d] != n
        ]
        require_none(wrong)
        for domain in IMAGES:
            write_json(new / domain / MARKER, {"content": HUB.page})
        os.sync()
        for domain in IMAGES:
            if (raw / domain).exists():  # from an archive, before the server of the others died
                shutil.rmtree(raw / domain)
            (new / domain).rename(raw / domain)
    shutil.rmtree(new)
    return receipt()


def _unpacked(source: Source, new: Path, mirror: Path | None, classes: Collection[str]) -> Mapping[str, int]:
    """Write the images of a shard, once, and return the number of images of each domain in it."""
    done = new / f"{source.filename}.json"
    if done.exists():
        return dict(read_json(done))
    path = fetch(source, new.parent, mirror, copy=False)
    ours = path.parent == new.parent
    images: Counter[str] = Counter(_written(path, new, classes))
    os.sync()
    write_json(done, dict(images))
    if ours:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    return images


def _written(shard: Path, new: Path, classes: Collection[str]) -> Iterator[str]:
    """Write the images of some classes, and yield the domain of every row."""
    labels = [name.replace(" ", "_") for name in class_names(shard, "label")]
    if missing := sorted(set(classes) - set(labels)):
        raise UserError(shard, f"has no class {missing[0]!r}", "is it a shard of DomainNet?")
    domains: list[str] | None = None
    for number, row in enumerate(rows(shard, ["image", "domain", "label"])):
        if not isinstance(row["domain"], str):
            domains = domains or class_names(shard, "domain")
        domain = domains[row["domain"]] if domains else row["domain"]
        if (name := labels[row["label"]]) in classes:
            _write(row["image"], new / domain / name, domain, f"{shard}, row {number}")
        yield domain


def _write(image: Mapping[str, Any], folder: Path, domain: str, where: str) -> None:
    """Write an image under its name in the archive. Raises UserError where it has none."""
    file = PurePosixPath(image["path"] or "").name
    if domain not in IMAGES or not re.fullmatch(rf"{domain}_\d{{3}}_\d{{6}}\.(jpg|png)", file):
        what = f"its image is named {file!r}, which is no name of DomainNet's archives"
        raise UserError(where, what, f"this copy cannot stand for them: {USE_MIRROR}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(image["bytes"])
