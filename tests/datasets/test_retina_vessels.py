"""Retinal vessels: the official layouts, made from real photographs, and what is said where files are missing."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from real_data import FOLDER, needs

from fedshift import UserError
from fedshift.data.prepared import Prepared
from fedshift.datasets.retina_vessels import RetinaVessels
from fedshift.jobs import prepare
from fedshift.study.run import Data
from fedshift.tasks import Segmentation

ARCHIVE = "retina_vessels.tar"
SIDE = 384
"""Side of the photographs of the archive."""


def data(**settings: object) -> Data:
    return Data(dataset=RetinaVessels(**settings), synthetic=False, task=Segmentation())  # type: ignore[arg-type]


def saved(image: Image.Image, ending: str) -> bytes:
    image.save(content := io.BytesIO(), ending)
    return content.getvalue()


def packed(mirror: Path, archives: dict[str, dict[str, bytes]]) -> Path:
    """A mirror with archives of some files, as zip or tar by their names."""
    mirror.mkdir()
    for name, files in archives.items():
        if name.endswith(".zip"):
            with zipfile.ZipFile(mirror / name, "w") as archive:
                for inside, content in files.items():
                    archive.writestr(inside, content)
        else:
            with tarfile.open(mirror / name, "w") as tar:
                for inside, content in files.items():
                    member = tarfile.TarInfo(inside)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return mirror


def official(site: str, name: str, image: Image.Image, mask: Image.Image) -> dict[str, dict[str, bytes]]:
    """The files of a photograph by archive, as the authors of the set name and save them."""
    if site == "drive":
        part = "test" if int(name) <= 20 else "training"
        return {
            "DRIVE.zip": {
                f"{part}/images/{name}_{part}.tif": saved(image, "TIFF"),
                f"{part}/1st_manual/{name}_manual1.gif": saved(mask, "GIF"),
                f"{part}/mask/{name}_{part}_mask.gif": saved(Image.new("L", mask.size, 255), "GIF"),
            }
        }
    if site == "stare":
        colour = mask.convert("L")
        return {
            "stare-images.tar": {f"{name}.ppm.gz": gzip.compress(saved(image, "PPM"))},
            "labels-ah.tar": {f"{name}.ah.ppm.gz": gzip.compress(saved(colour, "PPM"))},
        }
    if site == "chase":
        return {
            "CHASEDB1.zip": {
                f"Image_{name}.jpg": saved(image, "JPEG"),
                f"Image_{name}_1stHO.png": saved(mask.convert("1"), "PNG"),
                f"Image_{name}_2ndHO.png": saved(Image.new("1", mask.size), "PNG"),
            }
        }
    if site == "hrf":
        ending = "JPG" if name.endswith("_dr") else "jpg"
        return {
            "all.zip": {
                f"images/{name}.{ending}": saved(image, "JPEG"),
                f"manual1/{name}.tif": saved(mask, "TIFF"),
                f"mask/{name}_mask.tif": saved(Image.new("RGB", mask.size, "white"), "TIFF"),
            }
        }
    return {
        "LES-AV.zip": {
            f"LES-AV/images/{name}.png": saved(image, "PNG"),
            f"LES-AV/vessel-segmentations/{name}.png": saved(mask.convert("1"), "PNG"),
            f"LES-AV/arteries/{name}.png": saved(Image.new("1", mask.size), "PNG"),
            f"__MACOSX/LES-AV/images/._{name}.png": b"of a Mac",
        }
    }


@pytest.fixture
def any_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let archives have other checksums than the official ones."""
    layouts = {
        site: dataclasses.replace(
            layout, sources=tuple(dataclasses.replace(source, sha256=None) for source in layout.sources)
        )
        for site, layout in RetinaVessels.layouts.items()
    }
    monkeypatch.setattr(RetinaVessels, "layouts", layouts)


@needs(ARCHIVE)
@pytest.mark.usefixtures("any_content")
def test_official_layouts_of_the_real_photographs_are_read_as_the_table_says(tmp_path: Path) -> None:
    archives: dict[str, dict[str, bytes]] = {}
    seen: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    with tarfile.open(FOLDER / ARCHIVE) as tar:

        def read(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        table = pd.read_csv(io.BytesIO(read("samples.csv")))
        for row in table.itertuples():
            image, mask = (Image.open(io.BytesIO(read(str(name)))) for name in (row.path, row.mask))
            name = Path(str(row.path)).stem
            for archive, files in official(str(row.site), name, image, mask).items():
                archives.setdefault(archive, {}).update(files)
            seen[f"{row.site}/{name}"] = np.asarray(image), np.asarray(mask) > 127
    study = data(size=SIDE)
    prepare.obtain(study, tmp_path / "raw", packed(tmp_path / "mirror", archives))
    opened = study.dataset.open(tmp_path / "raw")
    counts = {"drive": 40, "stare": 20, "chase": 28, "hrf": 45, "lesav": 22}
    assert opened.samples["site"].value_counts(sort=False).to_dict() == counts
    assert opened.mask is not None
    assert sorted(opened.samples["patient"]) == sorted(table["patient"])
    assert opened.samples.groupby("site")["patient"].nunique().to_dict() == counts | {"chase": 14}
    endings = ("_training", "_test")
    for i, (sample, site) in enumerate(opened.samples[["sample", "site"]].itertuples(index=False)):
        stem = Path(sample).stem.removeprefix("Image_")
        for ending in endings:
            stem = stem.removesuffix(ending)
        image, vessel = seen[f"{site}/{stem}"]
        np.testing.assert_array_equal(opened.mask(i), vessel)
        assert opened.image(i).shape == (SIDE, SIDE, 3)
        # what was saved as JPEG again differs by its compression
        difference = np.abs(opened.image(i).astype(int) - image).mean()
        assert difference < 3 if site in ("chase", "hrf") else difference == 0
    received = json.loads((tmp_path / "raw" / "source.json").read_text())["received"]
    assert received["verified"] == ["the number of images with a mask of each site"]


def one(change: Callable[[dict[str, bytes]], None] = lambda files: None, number: int = 20) -> dict[str, bytes]:
    """The files of DRIVE's present release, whose test photographs have no masks."""
    files = {}
    for n in range(40):
        part = "test" if n < 20 else "training"
        files[f"DRIVE/{part}/images/{n + 1:02}_{part}.tif"] = saved(Image.new("RGB", (20, 18)), "TIFF")
    for n in range(20, 20 + number):
        files[f"DRIVE/training/1st_manual/{n + 1}_manual1.gif"] = saved(Image.new("L", (20, 18), 255), "GIF")
    change(files)
    return files


def test_a_release_without_masks_of_the_test_images_is_read(tmp_path: Path) -> None:
    study = data(sites=["drive"], size=32)
    prepare.obtain(study, tmp_path / "raw", packed(tmp_path / "mirror", {"DRIVE.zip": one()}))
    opened = study.dataset.open(tmp_path / "raw")
    assert opened.samples["patient"].tolist() == [f"drive_{n}" for n in range(21, 41)]
    assert opened.mask is not None
    # 20x18 becomes 32x28.8, so 29 rows of vessel, with black above and below
    assert opened.mask(0).sum() == 29 * 32


@pytest.mark.parametrize("number", [0, 19])
def test_masks_that_are_missing_are_noticed(tmp_path: Path, number: int) -> None:
    words = {
        0: "holds no image of drive with its mask; expected files such as DRIVE/training/images/",
        19: "site drive has 19 images",
    }
    with pytest.raises(UserError, match=words[number]) as caught:
        prepare.obtain(
            data(sites=["drive"]), tmp_path / "raw", packed(tmp_path / "mirror", {"DRIVE.zip": one(number=number)})
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "raw" / "source.json").exists()


def test_one_line_names_all_that_is_to_be_fetched_by_hand(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        prepare.obtain(data(), tmp_path / "raw", None)
    said = str(caught.value)
    assert "\n" not in said
    assert "2 files to get by hand: DRIVE.zip from https://drive.grand-challenge.org" in said
    assert "LES-AV.zip from https://figshare.com" in said
    assert said.endswith("put the files in a mirror directory and pass --config mirror=DIR")


def test_a_mask_of_another_size_is_named(tmp_path: Path) -> None:
    def change(files: dict[str, bytes]) -> None:
        files["DRIVE/training/1st_manual/21_manual1.gif"] = saved(Image.new("L", (18, 20)), "GIF")

    study = data(sites=["drive"])
    prepare.obtain(study, tmp_path / "raw", packed(tmp_path / "mirror", {"DRIVE.zip": one(change)}))
    opened = study.dataset.open(tmp_path / "raw")
    assert opened.mask is not None
    with pytest.raises(UserError, match=r"21_manual1\.gif: has 18x20 pixels, and its image 20x18; obtain"):
        opened.mask(0)


def test_an_unknown_site_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no site 'drove': name some of drive, stare, chase, hrf, lesav"):
        RetinaVessels(sites=("drove",))


def test_the_miniature_is_prepared_with_its_masks(tmp_path: Path) -> None:
    study = Data(dataset=RetinaVessels(images=6, size=32), synthetic=True, task=Segmentation())
    prepare.obtain(study, tmp_path / "raw", None)
    prepare.prepare(study, tmp_path / "raw", tmp_path / "out", threads=2)
    made = Prepared(tmp_path / "out")
    assert made.images.shape == (5 * 6, 32, 32, 3)
    assert made.masks is not None
    assert 0.05 < made.masks.mean() < 0.3
    assert set(np.unique(made.masks)) == {0, 1}
    assert made.samples.groupby("site")["patient"].nunique().to_dict() == {
        "chase": 3,
        "drive": 6,
        "hrf": 6,
        "lesav": 6,
        "stare": 6,
    }
