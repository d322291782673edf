"""PACS: the folders of DomainBed's archive, checked counts, and the miniature."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedshift import UserError
from fedshift.data.prepared import Prepared
from fedshift.datasets import pacs
from fedshift.datasets.pacs import COUNTS, NAMES, SITES, Pacs
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


def test_without_a_mirror_it_is_said_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"PACS\.zip: no lasting address is known.*DomainBed.*mirror=DIR"):
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
