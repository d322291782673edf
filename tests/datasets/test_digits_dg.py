"""Digits-DG: folders of sites, parts and classes, from an archive of the mirror."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedshift import UserError
from fedshift.data.prepared import Prepared
from fedshift.datasets.digits_dg import NAMES, PARTS, SITES, DigitsDg
from fedshift.jobs import prepare
from fedshift.study.run import Data


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("digits_dg")
    DigitsDg(images=5).miniature(raw)
    return raw


@pytest.fixture
def raw(mini: Path, tmp_path: Path) -> Path:
    """A copy that may be spoiled."""
    return Path(shutil.copytree(mini, tmp_path / "raw"))


def test_the_miniature_is_prepared_end_to_end(tmp_path: Path) -> None:
    data = Data(dataset=DigitsDg(images=10), synthetic=True)
    prepare.obtain(data, tmp_path / "raw", None)
    prepare.prepare(data, tmp_path / "raw", tmp_path / "out", threads=2)
    found = Prepared(tmp_path / "out")
    assert found.shape == DigitsDg.shape == (3, 28, 28)
    assert found.samples["site"].value_counts().to_dict() == dict.fromkeys(SITES, 100)
    part = found.samples["sample"].str.split("/").str[1]
    counts = pd.crosstab(part, found.samples["label"])
    assert (counts.loc["train"] == 32).all()
    assert (counts.loc["val"] == 8).all()
    assert found.samples["patient"].isna().all()
    colour = {site: found.images[rows.index].mean() for site, rows in found.samples.groupby("site")}
    assert np.ptp(list(colour.values())) > 40, "sites look different"


def test_the_miniature_has_the_layout_of_the_archive(mini: Path, tmp_path: Path) -> None:
    assert {p.parent.relative_to(mini / "digits_dg").as_posix() for p in mini.rglob("*.jpg")} == {
        f"{site}/{part}/{name}" for site in SITES for part in PARTS for name in NAMES
    }
    with Image.open(next(mini.rglob("*.jpg"))) as image:
        assert (image.format, image.size) == ("JPEG", (32, 32))
    DigitsDg(images=5).miniature(tmp_path)
    for path in mini.rglob("*.jpg"):
        assert (tmp_path / path.relative_to(mini)).read_bytes() == path.read_bytes()


def test_train_and_val_are_one_site_with_the_right_images(mini: Path) -> None:
    opened = DigitsDg().open(mini)
    for i in range(0, len(opened.samples), 17):
        row = opened.samples.loc[i]
        site, _, label, _ = row["sample"].split("/")
        assert (row["site"], row["label"]) == (site, int(label))
        with Image.open(mini / "digits_dg" / row["sample"]) as image:
            small = image.convert("RGB").resize((28, 28), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(opened.image(i), np.asarray(small))


@pytest.mark.parametrize("top", ["", "digits_dg/", "data/digits_dg/"])
def test_the_archive_of_the_mirror_is_unpacked(mini: Path, tmp_path: Path, top: str) -> None:
    (mirror := tmp_path / "mirror").mkdir()
    with zipfile.ZipFile(mirror / "digits.zip", "w") as archive:
        for path in sorted(mini.rglob("*.jpg")):
            archive.write(path, top + path.relative_to(mini / "digits_dg").as_posix())
    dataset = DigitsDg(archive="digits.zip")
    dataset.download(tmp_path / "raw", mirror)
    assert dataset.open(tmp_path / "raw").samples.equals(DigitsDg().open(mini).samples)


def test_an_archive_that_is_not_there_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"digits_dg\.zip: no lasting address .*Dassl.*; put the file in a mirror"):
        DigitsDg().download(tmp_path / "raw", None)
    (tmp_path / "digits_dg.zip").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"digits_dg\.zip: "):
        DigitsDg().download(tmp_path / "raw", tmp_path)


def test_a_broken_image_is_named(raw: Path) -> None:
    opened = DigitsDg().open(raw)
    (raw / "digits_dg" / opened.samples["sample"][3]).write_bytes(b"no image")
    with pytest.raises(UserError, match=rf"{opened.samples['sample'][3]}: cannot be read as an image"):
        opened.image(3)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: shutil.rmtree(f / "svhn"), r"digits_dg/svhn/train: no such folder; expected train and val in each"),
        (lambda f: shutil.rmtree(f / "mnist"), r"digits_dg/mnist/train: no such folder"),
        (lambda f: shutil.rmtree(f / "syn" / "val"), r"digits_dg/syn/val: no such folder"),
        (lambda f: shutil.rmtree(f / "syn" / "val" / "7"), r"digits_dg/syn/val: has no folder of class '7'"),
        (lambda f: (f / "syn" / "val" / "10").mkdir(), r"syn/val/10: is not a class of this dataset; expected 0, 1"),
        (lambda f: [p.unlink() for p in (f / "mnist_m" / "train" / "0").iterdir()], r"train/0: holds no image \(\.jpg"),
    ],
)
def test_folders_that_are_not_as_documented(raw: Path, spoil: Callable[[Path], object], words: str) -> None:
    spoil(raw / "digits_dg")
    with pytest.raises(UserError, match=words) as caught:
        DigitsDg().open(raw)
    assert "\n" not in str(caught.value)
