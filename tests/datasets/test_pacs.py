"""PACS: the folders of DomainBed's archive, checked counts, and the miniature."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedshift import UserError
from fedshift.data.prepared import Prepared
from fedshift.datasets import pacs
from fedshift.datasets.pacs import COUNTS, NAMES, SITES, Pacs
from fedshift.io import origins
from fedshift.io.download import Source, SourceError
from fedshift.jobs import prepare
from fedshift.study.run import Data


def packed(folder: Path, each: int = 2) -> Path:
    """An archive with random images, named and packed as DomainBed's, with the folder that a Mac adds."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    with zipfile.ZipFile(folder / "PACS.zip", "w") as archive:
        for site in SITES:
            for name in NAMES:
                for n in range(each):
                    inside = f"PACS/{site}/{name}/pic_{n:03}.{'png' if site == 'sketch' else 'jpg'}"
                    Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(folder / "image.png")
                    archive.write(folder / "image.png", inside)
                archive.writestr(f"__MACOSX/PACS/{site}/{name}/._pic_000.jpg", b"of a Mac")
    return folder


def test_the_counts_are_those_of_the_paper() -> None:
    assert sum(COUNTS.values()) == 9_991
    assert (len(SITES), len(NAMES)) == (4, 7)


def test_the_archive_is_read_where_all_images_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacs, "COUNTS", dict.fromkeys(SITES, 14))
    data = Data(dataset=Pacs(size=24), synthetic=False)
    prepare.obtain(data, tmp_path / "raw", packed(tmp_path / "mirror"))
    opened = data.dataset.open(tmp_path / "raw")
    found = pd.crosstab(opened.samples["site"], opened.samples["label"])
    assert found.index.tolist() == list(SITES)
    assert (found == 2).all(axis=None)
    assert opened.samples["sample"].iloc[[0, 55]].tolist() == [
        "art_painting/dog/pic_000.jpg",
        "sketch/person/pic_001.png",
    ]
    with Image.open(tmp_path / "mirror" / "image.png") as last:
        np.testing.assert_array_equal(opened.image(55), np.asarray(last))


def test_an_image_that_is_missing_is_noticed(tmp_path: Path) -> None:
    data = Data(dataset=Pacs(), synthetic=False)
    words = r"PACS/PACS/art_painting: site art_painting has 14 images, expected 2048; obtain the archive again"
    with pytest.raises(UserError, match=words) as caught:
        prepare.obtain(data, tmp_path / "raw", packed(tmp_path / "mirror"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "raw" / "source.json").exists()


def test_where_no_source_gives_it_it_is_said_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = origins.fetch

    def without_hub(source: Source, *words: Any, **settings: Any) -> Path:
        if source.url:
            raise SourceError("hub", "is not there")
        return fetch(source, *words, **settings)

    monkeypatch.setattr(origins, "fetch", without_hub)
    with pytest.raises(UserError, match=r"PACS\.zip: no lasting address is known.*DomainBed.*is not there.*mirror=DIR"):
        prepare.obtain(Data(dataset=Pacs(), synthetic=False), tmp_path / "raw", None)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    archive = packed(tmp_path / "mirror") / "PACS.zip"
    archive.write_bytes(archive.read_bytes()[:500])
    with pytest.raises(UserError, match=r"PACS\.zip: damaged, or neither tar nor zip"):
        prepare.obtain(Data(dataset=Pacs(), synthetic=False), tmp_path / "raw", archive.parent)


def test_the_miniature_is_prepared(tmp_path: Path) -> None:
    data = Data(dataset=Pacs(images=5, size=32), synthetic=True)
    prepare.obtain(data, tmp_path / "raw", None)
    prepare.prepare(data, tmp_path / "raw", tmp_path / "out", threads=2)
    made = Prepared(tmp_path / "out")
    assert made.images.shape == (4 * 7 * 5, 32, 32, 3)
    assert made.samples["site"].value_counts().to_dict() == dict.fromkeys(SITES, 35)
    assert made.card["source"] == "drawn by fedshift"


# ---- the copy


def shard(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Path, list[bytes]]:
    """Write the copy of PACS with an image of each class and site, and return its folder and the images' bytes."""
    folder.mkdir()
    rng, images = np.random.default_rng(0), []
    for n in range(28):
        Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(
            content := io.BytesIO(), "PNG" if n % 2 else "JPEG"
        )
        images.append(content.getvalue())
    rows = {
        "image": [{"bytes": image, "path": "pic_001.jpg"} for image in images],
        "domain": [site for site in SITES for _ in NAMES],
        "label": [*range(7)] * 4,
    }
    pq.write_table(pa.table(rows | changes), folder / "pacs.parquet")
    monkeypatch.setattr(pacs, "SHA256", hashlib.sha256((folder / "pacs.parquet").read_bytes()).hexdigest())
    monkeypatch.setattr(pacs, "COUNTS", dict.fromkeys(SITES, 7))
    known = dataclasses.replace(Pacs().origins()[1].sources[0], size=None)
    monkeypatch.setattr(type(pacs.COPY), "source", lambda *_, **__: known)
    return folder, images


def test_the_copy_is_brought_to_the_layout_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, images = shard(tmp_path / "mirror", monkeypatch)
    data = Data(dataset=Pacs(size=24), synthetic=False)
    for _ in range(2):  # the second time nothing is left to do
        prepare.obtain(data, tmp_path / "raw", mirror)
        opened = data.dataset.open(tmp_path / "raw")
        assert opened.samples["sample"].iloc[[0, 27]].tolist() == [
            "art_painting/dog/00000.jpg",
            "sketch/person/00027.png",
        ]
        assert opened.samples["label"].tolist() == [*range(7)] * 4
        for file in (tmp_path / "raw" / "PACS").rglob("*.*g"):
            assert file.read_bytes() == images[int(file.stem)]
    received = json.loads((tmp_path / "raw" / "source.json").read_text())["received"]
    assert received["verified"] == ["published checksum of pacs.parquet", "the number of images of each site"]
    assert [file.name for file in mirror.iterdir()] == ["pacs.parquet"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"label": [7] * 28}, r"pacs\.parquet, row 0: domain 'art_painting' and label 7 are not of PACS"),
        ({"domain": ["clipart"] * 28}, r"row 0: domain 'clipart' and label 0 are not of PACS"),
        ({"image": [{"bytes": b"", "path": ""}] * 28}, r"row 0: has no image"),
        ({"image": [1] * 28}, r"pacs\.parquet, row 0: is damaged"),
    ],
)
def test_a_copy_of_another_set_is_refused_and_nothing_is_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    mirror, _ = shard(tmp_path / "mirror", monkeypatch, **changes)
    with pytest.raises(UserError, match=words) as caught:
        prepare.obtain(Data(dataset=Pacs(), synthetic=False), tmp_path / "raw", mirror)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "raw" / "PACS").exists()


def test_the_copy_at_the_hub_is_pinned() -> None:
    (source,) = Pacs().origins()[1].sources
    assert source.url == (
        "https://huggingface.co/datasets/flwrlabs/pacs/resolve/394113073258ead631f617d2e13bb377c0715c4b/"
        "data/train-00000-of-00001.parquet"
    )
    assert source.size == 191_395_900
