"""Office-Caltech10: folders of images, the real archive where it is at hand, and FedBN's sizes."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import real_data
from PIL import Image

from fedshift import UserError
from fedshift.data.partition import Partition
from fedshift.data.prepared import Prepared
from fedshift.datasets.office_caltech10 import NAMES, SITES, OfficeCaltech10
from fedshift.jobs import prepare
from fedshift.study.run import Data

COUNTS = {  # by class, in the order of labels
    "amazon": [92, 82, 94, 99, 100, 100, 99, 100, 94, 98],
    "caltech": [151, 110, 100, 138, 85, 128, 133, 94, 87, 97],
    "dslr": [12, 21, 12, 13, 10, 24, 22, 12, 8, 23],
    "webcam": [29, 21, 31, 27, 27, 30, 43, 30, 27, 30],
}
FOLDER = "office_caltech10"


def drawn(raw: Path, inside: str = "", backpack: str = "backpack", each: int = 2) -> Path:
    """The folders with random images of several sizes; returns where the sites are."""
    rng, root = np.random.default_rng(0), raw / FOLDER / inside
    for site in SITES:
        for name in NAMES:
            folder = root / site / (backpack if name == "backpack" else name)
            folder.mkdir(parents=True)
            for n in range(each):
                pixels = rng.integers(0, 256, (*rng.integers(20, 60, 2), 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"frame_{n + 1:04}.png")
    return root


# ---- folders


@pytest.mark.parametrize("inside", ["", "Office_Caltech/images"])
@pytest.mark.parametrize("backpack", ["backpack", "back_pack"])
def test_images_come_by_site_class_and_name(tmp_path: Path, inside: str, backpack: str) -> None:
    """Archives are packed differently, and two names of one class are known."""
    root = drawn(tmp_path, inside, backpack)
    samples = OfficeCaltech10().open(tmp_path).samples
    assert samples["site"].tolist() == [site for site in SITES for _ in range(20)]
    assert samples["label"].tolist() == [label for _ in SITES for label in range(10) for _ in range(2)]
    assert samples["sample"].iloc[[0, 3, -1]].tolist() == [
        f"amazon/{backpack}/frame_0001.png",
        "amazon/bike/frame_0002.png",
        "webcam/projector/frame_0002.png",
    ]
    assert all((root / name).is_file() for name in samples["sample"])
    assert samples["patient"].isna().all()


def test_images_become_squares_as_pillow_makes_them(tmp_path: Path) -> None:
    root = drawn(tmp_path)
    opened = OfficeCaltech10(size=32).open(tmp_path)
    for i in (0, 41, 79):
        with Image.open(root / opened.samples["sample"][i]) as image:
            expected = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR))
        found = opened.image(i)
        assert (found.shape, found.dtype) == ((32, 32, 3), np.uint8)
        np.testing.assert_array_equal(found, expected)


def test_an_image_of_the_size_asked_for_keeps_its_pixels(tmp_path: Path) -> None:
    root = drawn(tmp_path)
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(root / "amazon" / "backpack" / "frame_0001.png")
    np.testing.assert_array_equal(OfficeCaltech10(size=32).open(tmp_path).image(0), pixels)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P"])
def test_other_kinds_of_images_become_three_channels(tmp_path: Path, mode: str) -> None:
    root = drawn(tmp_path)
    grey = np.random.default_rng(1).integers(0, 256, (32, 32), dtype=np.uint8)
    Image.fromarray(grey).convert(mode).save(root / "amazon" / "backpack" / "frame_0001.png")
    found = OfficeCaltech10(size=32).open(tmp_path).image(0)
    assert found.shape == (32, 32, 3)
    np.testing.assert_array_equal(found, np.repeat(grey[..., None], 3, axis=2))


def spoil_a_folder(root: Path) -> None:
    for file in (root / "dslr" / "mug").iterdir():
        file.unlink()
    (root / "dslr" / "mug" / "notes.txt").write_text("none", encoding="utf-8")


def remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink() if file.is_file() else remove(file)
    folder.rmdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda root: remove(root / "webcam"),
            r"/webcam: no such folder; expected a folder for each site: amazon, caltech",
        ),
        (lambda root: remove(root / "dslr" / "mug"), r"/dslr: has no folder of class 'mug'; obtain the archive again"),
        (lambda root: (root / "dslr" / "cup").mkdir(), r"/dslr/cup: is not a class of this dataset; expected backpack"),
        (spoil_a_folder, r"/dslr/mug: holds no image \(\.jpg, \.jpeg, \.png\); obtain the archive again"),
        (remove, r"/office_caltech10/amazon: no such folder"),
    ],
)
def test_a_spoiled_folder_is_named(tmp_path: Path, spoil: Callable[[Path], Any], words: str) -> None:
    spoil(drawn(tmp_path))
    with pytest.raises(UserError, match=words) as caught:
        OfficeCaltech10().open(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("keep", "fault"), [(0, "the file is empty"), (100, "cannot be read as an image")])
def test_a_broken_image_is_named_when_it_is_read(tmp_path: Path, keep: int, fault: str) -> None:
    file = drawn(tmp_path) / "caltech" / "bike" / "frame_0002.png"
    file.write_bytes(file.read_bytes()[:keep])
    opened = OfficeCaltech10().open(tmp_path)
    (i,) = np.flatnonzero(opened.samples["sample"] == "caltech/bike/frame_0002.png")
    with pytest.raises(UserError, match=rf"caltech/bike/frame_0002\.png: {fault}") as caught:
        opened.image(int(i))
    assert "\n" not in str(caught.value)


# ---- where it comes from


def test_without_a_mirror_it_is_said_where_to_look(tmp_path: Path) -> None:
    data = Data(dataset=OfficeCaltech10(), synthetic=False)
    words = r"office_caltech10\.tar: no lasting address is known.* from a copy of .*Gong et al\. 2012; .* mirror=DIR"
    for mirror in (None, tmp_path):
        with pytest.raises(UserError, match=words):
            prepare.obtain(data, tmp_path / "raw", mirror)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "office_caltech10.tar").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"office_caltech10\.tar: damaged, or neither tar nor zip"):
        prepare.obtain(Data(dataset=OfficeCaltech10(), synthetic=False), tmp_path / "raw", tmp_path)


def test_an_archive_under_another_name(tmp_path: Path) -> None:
    drawn(tmp_path / "made")
    with tarfile.open(tmp_path / "mine.tgz", "w:gz") as tar:
        tar.add(tmp_path / "made" / FOLDER, arcname=".")
    dataset = OfficeCaltech10(archive="mine.tgz")
    prepare.obtain(Data(dataset=dataset, synthetic=False), tmp_path / "raw", tmp_path)
    assert len(dataset.open(tmp_path / "raw").samples) == 80


# ---- the real one

FEDBN = Partition(
    internal=SITES,
    split={"train": 0.4, "val": 0.4, "test": 0.2},  # type: ignore[arg-type]
    by="class",
    limit={"train": 62, "val": 50},  # type: ignore[arg-type]
)
TESTED = {"amazon": 192, "caltech": 225, "dslr": 32, "webcam": 59}


def as_published() -> pd.DataFrame:
    rows = [(site, label) for site, counts in COUNTS.items() for label, n in enumerate(counts) for _ in range(n)]
    table = pd.DataFrame(rows, columns=["site", "label"])
    return table.assign(sample=[f"{site}/{n}" for n, (site, _) in enumerate(rows)], patient=None)


def test_fedbns_sizes_follow_from_the_counts() -> None:
    table = as_published()
    assert table["site"].value_counts().to_dict() == {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}
    split = FEDBN.assign(table).groupby(["site", "split"]).size().unstack()
    assert split["train"].to_dict() == dict.fromkeys(SITES, 62)
    assert split["val"].to_dict() == dict.fromkeys(SITES, 50)
    assert split["test"].to_dict() == TESTED


@real_data.needs("office_caltech10.tar")
def test_the_real_archive(tmp_path: Path) -> None:
    """Sizes of 16 pixels, to be quick. Four images are grey."""
    dataset = OfficeCaltech10(size=16)
    data = Data(dataset=dataset, synthetic=False)
    prepare.obtain(data, tmp_path / "raw", real_data.FOLDER)
    samples = dataset.open(tmp_path / "raw").samples
    found = pd.crosstab(samples["site"], samples["label"])
    assert {site: row.tolist() for site, row in found.iterrows()} == COUNTS
    split = FEDBN.assign(samples).groupby(["site", "split"]).size().unstack()
    assert split["test"].to_dict() == TESTED
    assert split[["train", "val"]].drop_duplicates().to_numpy().tolist() == [[62, 50]]
    root = next((tmp_path / "raw" / FOLDER).rglob("amazon")).parent
    grey = []
    for name in samples["sample"]:
        with Image.open(root / name) as image:  # the header alone
            grey += [name] * (image.mode == "L")
    assert len(grey) == 4
    opened = dataset.open(tmp_path / "raw")
    for i in np.flatnonzero(samples["sample"].isin(grey)):
        x = opened.image(int(i))
        assert x.shape == (16, 16, 3)
        assert (x == x[..., :1]).all()
        assert x.std() > 0


# ---- the miniature


def test_the_miniature_is_prepared_and_the_same_to_the_byte(tmp_path: Path) -> None:
    dataset = OfficeCaltech10(images=5, size=64)
    data = Data(dataset=dataset, synthetic=True)
    prepare.obtain(data, tmp_path / "raw", None)
    prepare.prepare(data, tmp_path / "raw", tmp_path / "out", threads=2)
    made = Prepared(tmp_path / "out")
    assert made.images.shape == (200, 64, 64, 3)
    assert pd.crosstab(made.samples["site"], made.samples["label"]).to_numpy().tolist() == [[5] * 10] * 4
    dataset.miniature(tmp_path / "again")
    for file in (tmp_path / "again").rglob("*.jpg"):
        assert file.read_bytes() == (tmp_path / "raw" / file.relative_to(tmp_path / "again")).read_bytes()
    assert made.card["source"] == "drawn by fedshift"
