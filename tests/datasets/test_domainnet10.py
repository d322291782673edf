"""DomainNet's ten classes: six archives with a folder each, of which only the ten classes are kept."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedshift import UserError
from fedshift.data.prepared import Prepared
from fedshift.datasets.domainnet10 import NAMES, SITES, DomainNet10
from fedshift.io.download import Source
from fedshift.jobs import prepare
from fedshift.study.run import Data

OTHERS = ("The_Eiffel_Tower", "aircraft_carrier", "zigzag")
EACH = 2


def ending(site: str) -> str:
    return "png" if site == "quickdraw" else "jpg"


def drawn(folder: Path, site: str, seed: int = 0) -> Path:
    """A domain as in its archive: folders of 13 classes, with images of several sizes."""
    rng = np.random.default_rng(seed)
    for name in (*NAMES, *OTHERS):
        (folder / site / name).mkdir(parents=True)
        for n in range(EACH):
            pixels = rng.integers(0, 256, (*rng.integers(20, 60, 2), 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / site / name / f"{site}_{n:03}_{n:06}.{ending(site)}")
    return folder


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for site in SITES:
        drawn(tmp_path / "raw" / site, site)
    return tmp_path / "raw"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Archives in the official layout; their checksums stand in for the official ones."""
    (folder := tmp_path / "mirror").mkdir()
    sources = []
    for site, real in zip(SITES, DomainNet10().sources(), strict=True):
        made = drawn(tmp_path / "made" / site, site)
        with zipfile.ZipFile(folder / real.filename, "w") as archive:
            for file in sorted(made.rglob("*.*g")):
                archive.write(file, file.relative_to(made))
        md5 = hashlib.md5((folder / real.filename).read_bytes()).hexdigest()
        sources.append(Source(real.url, real.filename, md5=md5, unpack=real.unpack))
    monkeypatch.setattr(DomainNet10, "sources", lambda _: sources)
    return folder


# ---- archives


def test_the_official_addresses() -> None:
    root = "http://csr.bu.edu/ftp/visda/2019/multi-source/"
    found = {source.filename: source for source in DomainNet10().sources()}
    assert list(found) == [f"{site}.zip" for site in SITES]
    cleaned = [name for name, source in found.items() if source.url == f"{root}groundtruth/{name}"]
    assert cleaned == ["clipart.zip", "painting.zip"]
    assert all(source.url == root + name for name, source in found.items() if name not in cleaned)
    assert all(len(source.md5 or "") == 32 for source in found.values())


def test_of_the_archives_only_the_ten_classes_are_kept(mirror: Path, tmp_path: Path) -> None:
    data = Data(dataset=DomainNet10(size=16), synthetic=False)
    for _ in "twice":  # the second time everything is there
        prepare.obtain(data, tmp_path / "raw", mirror)
        for site in SITES:
            assert {f.name for f in (tmp_path / "raw" / site / site).iterdir()} == set(NAMES)
    assert {f.name for f in mirror.iterdir()} == {f"{site}.zip" for site in SITES}, "the mirror is left alone"
    prepare.prepare(data, tmp_path / "raw", tmp_path / "out", threads=2)
    made = Prepared(tmp_path / "out")
    assert made.images.shape == (6 * 10 * EACH, 16, 16, 3)
    assert pd.crosstab(made.samples["site"], made.samples["label"]).to_numpy().tolist() == [[EACH] * 10] * 6


def test_what_a_killed_download_left_of_other_classes_is_removed(mirror: Path, tmp_path: Path) -> None:
    data = Data(dataset=DomainNet10(), synthetic=False)
    prepare.obtain(data, tmp_path / "raw", mirror)
    (left := tmp_path / "raw" / "real" / "real" / "zigzag").mkdir()
    (left / "real_000_000001.jpg").write_bytes(b"")
    prepare.obtain(data, tmp_path / "raw", mirror)
    assert not left.exists()


def test_another_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clipart.zip").write_bytes(b"not it")
    words = r"clipart\.zip: md5 is [0-9a-f]{32}, expected cd0d8f2d77a4e181449b78ed62bccf1e; check this file"
    with pytest.raises(UserError, match=words) as caught:
        prepare.obtain(Data(dataset=DomainNet10(), synthetic=False), tmp_path / "raw", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_truncated_archive_is_named(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = mirror / "clipart.zip"
    file.write_bytes(file.read_bytes()[:-100])
    plain = [Source(s.url, s.filename, unpack=True) for s in DomainNet10().sources()]
    monkeypatch.setattr(DomainNet10, "sources", lambda _: plain)
    with pytest.raises(UserError, match=r"clipart\.zip: damaged, or neither tar nor zip"):
        prepare.obtain(Data(dataset=DomainNet10(), synthetic=False), tmp_path / "raw", mirror)
    assert not (tmp_path / "raw" / "clipart").exists()


# ---- folders


def test_images_come_by_domain_class_and_name(raw: Path) -> None:
    opened = DomainNet10(size=24).open(raw)
    samples = opened.samples
    assert samples["site"].tolist() == [site for site in SITES for _ in range(10 * EACH)]
    assert samples["label"].tolist() == [label for _ in SITES for label in range(10) for _ in range(EACH)]
    assert samples["sample"].iloc[[0, 3, 61]].tolist() == [
        "clipart/bird/clipart_000_000000.jpg",
        "clipart/feather/clipart_001_000001.jpg",
        "quickdraw/bird/quickdraw_001_000001.png",
    ]
    with Image.open(raw / "quickdraw" / samples["sample"][61]) as image:
        expected = np.asarray(image.resize((24, 24), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(opened.image(61), expected)


def test_other_classes_are_passed_over(raw: Path) -> None:
    assert all((raw / site / site / other).is_dir() for site in SITES for other in OTHERS)
    assert set(DomainNet10().open(raw).samples["sample"].str.split("/").str[1]) == set(NAMES)


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda raw: shutil.rmtree(raw / "sketch"),
            r"raw/sketch: no such folder; expected a folder for each site: clipart",
        ),
        (
            lambda raw: shutil.rmtree(raw / "real" / "real" / "zebra"),
            r"raw/real/real: has no folder of class 'zebra'; obtain the archive again",
        ),
        (
            lambda raw: empty(raw / "quickdraw" / "quickdraw" / "whale"),
            r"quickdraw/whale: holds no image \(\.jpg, \.jpeg, \.png\)",
        ),
    ],
)
def test_a_spoiled_folder_is_named(raw: Path, spoil: Callable[[Path], Any], words: str) -> None:
    spoil(raw)
    with pytest.raises(UserError, match=words) as caught:
        DomainNet10().open(raw)
    assert "\n" not in str(caught.value)


def test_a_truncated_image_is_named_when_it_is_read(raw: Path) -> None:
    file = raw / "painting" / "painting" / "tiger" / "painting_001_000001.jpg"
    file.write_bytes(file.read_bytes()[:200])
    opened = DomainNet10().open(raw)
    (i,) = np.flatnonzero(opened.samples["sample"] == "painting/tiger/painting_001_000001.jpg")
    with pytest.raises(UserError, match=r"tiger/painting_001_000001\.jpg: cannot be read as an image"):
        opened.image(int(i))


# ---- the miniature


def test_the_miniature_is_prepared_and_the_same_to_the_byte(tmp_path: Path) -> None:
    dataset = DomainNet10(images=5, size=64)
    data = Data(dataset=dataset, synthetic=True)
    prepare.obtain(data, tmp_path / "raw", None)
    prepare.prepare(data, tmp_path / "raw", tmp_path / "out", threads=2)
    made = Prepared(tmp_path / "out")
    assert made.images.shape == (300, 64, 64, 3)
    assert pd.crosstab(made.samples["site"], made.samples["label"]).to_numpy().tolist() == [[5] * 10] * 6
    assert made.card["source"] == "drawn by fedshift"
    dataset.miniature(tmp_path / "again")
    files = sorted((tmp_path / "again").rglob("*.*g"))
    assert len(files) == 300
    assert {f.suffix for f in files if f.parts[-3] == "quickdraw"} == {".png"}
    for file in files:
        assert file.read_bytes() == (tmp_path / "raw" / file.relative_to(tmp_path / "again")).read_bytes()


def test_domains_of_the_miniature_look_different(tmp_path: Path) -> None:
    """Mean colours: those of two domains are further apart than the images of one of them spread."""
    dataset = DomainNet10(images=5, size=64)
    dataset.miniature(tmp_path)
    opened = dataset.open(tmp_path)
    colour = np.array([opened.image(i).mean((0, 1)) for i in range(300)]).reshape(6, 50, 3)
    spread = colour.std(axis=1).max()
    apart = [np.abs(colour[a].mean(0) - colour[b].mean(0)).max() for a in range(6) for b in range(a)]
    assert min(apart) > spread
