"""Fed-ISIC2019: tables that must agree, checked counts, lesions as patients, and colours under white light."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedshift import UserError
from fedshift.data.partition import Partition
from fedshift.data.prepared import Prepared
from fedshift.datasets import fed_isic2019 as isic
from fedshift.datasets.fed_isic2019 import CENTRES, COUNTS, FOLDER, IMAGES, LABELS, NAMES, PEOPLE, SITES, FedIsic2019
from fedshift.io.download import Source
from fedshift.jobs import prepare
from fedshift.study.run import Data

LESIONS = {"BCN": "BCN_0000001", "MSK": "MSK4_0000002"} | {s: f"HAM_000000{n}" for n, s in enumerate(SITES) if "_" in s}
SMALL = dict.fromkeys(SITES, (1, 1))


def drawn(folder: Path) -> Path:
    """The files of two images for each centre, in the official layout: one lesion, and an image without a lesion."""
    rows = [
        (f"ISIC_{10 * centre + k:07}", LESIONS[site], (centre + k) % 8, centre, part)
        for centre, site in enumerate(SITES)
        for k, part in enumerate(("train", "test"))
    ]
    table = pd.DataFrame(rows, columns=["image", "lesion_id", "target", "center", "fold"])
    hot = pd.DataFrame(np.eye(9)[table["target"]], columns=[*NAMES, "UNK"])
    folder.mkdir(parents=True)
    table.iloc[::-1].assign(fold2=table["fold"] + "_" + table["center"].astype(str), **hot)[
        ["image", *NAMES, "UNK", "target", "center", "fold", "fold2"]
    ].to_csv(folder / CENTRES, index=False)
    pd.concat([table[["image"]], hot], axis=1).to_csv(folder / LABELS, index=False)
    facts = pd.DataFrame({"age_approx": ["55.0", None] * 6, "anatom_site_general": "palms/soles", "sex": "male"})
    people = pd.concat([table[["image", "lesion_id"]], facts], axis=1)
    people.loc[len(people)] = ["ISIC_9999999", None, None, None, None]
    people.to_csv(folder / PEOPLE, index=False)
    rng = np.random.default_rng(0)
    (folder / FOLDER / FOLDER).mkdir(parents=True)
    for name in people["image"]:
        pixels = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / FOLDER / FOLDER / f"{name}.jpg")
    return folder


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return drawn(tmp_path / "raw")


def edited(file: Path, change: Callable[[pd.DataFrame], Any]) -> None:
    table = pd.read_csv(file)
    change(table)
    table.to_csv(file, index=False)


# ---- tables


def test_the_counts_are_those_of_flamby() -> None:
    assert sum(map(sum, COUNTS.values())) == 23_247
    assert [sum(parts) for parts in COUNTS.values()] == [12_413, 3_954, 3_363, 2_259, 819, 439]


def test_images_come_in_the_order_of_flambys_table_with_lesion_and_facts(raw: Path) -> None:
    samples = FedIsic2019().open(raw).samples
    assert len(samples) == 12, "the image without a lesion is left out"
    assert samples["sample"].iloc[[0, -1]].tolist() == ["ISIC_0000051", "ISIC_0000000"]
    assert samples["site"].tolist() == [site for site in reversed(SITES) for _ in range(2)]
    assert samples["label"].tolist() == [6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0]
    assert samples["patient"].tolist() == [LESIONS[site] for site in samples["site"]]
    assert samples["flamby"].tolist() == ["test", "train"] * 6
    assert samples["age_approx"].isna().tolist() == [True, False] * 6
    assert samples["age_approx"][1] == "55.0"


def test_a_lesion_that_flamby_has_in_both_parts_stays_on_one_side(raw: Path) -> None:
    table = FedIsic2019().open(raw).samples
    assert (table.groupby("patient")["flamby"].nunique() == 2).all()
    many = pd.concat([table.assign(sample=table["sample"] + c, patient=table["patient"] + c) for c in "abcdefghij"])
    partition = Partition(internal=SITES)
    splits = partition.assign(many.reset_index(drop=True)).assign(patient=many["patient"].to_numpy())
    assert (splits.groupby("patient")["split"].nunique() == 1).all()
    assert set(splits["split"]) == {"train", "val", "test"}


def of(column: str, value: Any) -> Callable[[pd.DataFrame], Any]:
    """Return a change of the cell of image ISIC_0000030, of centre HAM_rosendahl."""
    return lambda table: table.__setitem__(
        column, table[column].astype(object).where(table["image"] != "ISIC_0000030", value)
    )


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (CENTRES, of("fold2", "train_6"), "image 'ISIC_0000030': its fold2 is not train or test with the number of a"),
        (CENTRES, of("center", 2), "image 'ISIC_0000030': its center and its fold2 disagree; obtain it again"),
        (CENTRES, of("target", 1), f"image 'ISIC_0000030': its target is not its diagnosis in {LABELS}"),
        (CENTRES, of("image", "ISIC_0000031"), "lists image 'ISIC_0000031' twice"),
        (CENTRES, lambda table: table.pop("fold2"), "no column 'fold2'; it has image, MEL,"),
        (LABELS, of("MEL", 1), "image 'ISIC_0000030': it has none or several of the eight diagnoses"),
        (LABELS, of("AK", "yes"), "image 'ISIC_0000030': it has none or several of the eight diagnoses"),
        (LABELS, of("AK", 0), "image 'ISIC_0000030': it has none or several of the eight diagnoses"),
        (LABELS, of("image", "ISIC_1"), "does not list image 'ISIC_0000030'"),
        (PEOPLE, of("image", "ISIC_1"), "does not list image 'ISIC_0000030'"),
        (PEOPLE, of("lesion_id", None), "image 'ISIC_0000030': it has no lesion_id"),
        (PEOPLE, of("lesion_id", "BCN_1"), f"ISIC_0000030': its lesion_id is of another centre than in {CENTRES}"),
    ],
)
def test_tables_that_disagree_are_named_with_the_image(
    raw: Path, file: str, change: Callable[[pd.DataFrame], Any], words: str
) -> None:
    edited(raw / file, change)
    with pytest.raises(UserError) as caught:
        FedIsic2019().open(raw)
    assert str(caught.value).startswith(f"{raw / file}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", [CENTRES, LABELS, PEOPLE])
def test_a_table_that_is_not_there_is_named(raw: Path, file: str) -> None:
    (raw / file).unlink()
    with pytest.raises(UserError, match=f"{file}: no such file"):
        FedIsic2019().open(raw)


def test_lost_images_are_counted_and_the_first_is_named(raw: Path) -> None:
    for name in ("ISIC_0000051", "ISIC_0000011"):
        (raw / FOLDER / FOLDER / f"{name}.jpg").unlink()
    with pytest.raises(UserError, match=rf"{FOLDER}: lacks 2 of the 12 images, first ISIC_0000051\.jpg; obtain the"):
        FedIsic2019().open(raw)


def test_a_broken_image_is_named_when_it_is_read(raw: Path) -> None:
    file = raw / FOLDER / FOLDER / "ISIC_0000051.jpg"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UserError, match=r"ISIC_0000051\.jpg: cannot be read as an image"):
        FedIsic2019().open(raw).image(0)


# ---- obtaining


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror of the small files; the archive has the same members as the official one."""
    folder = drawn(tmp_path / "mirror")
    with zipfile.ZipFile(folder / IMAGES, "w") as archive:
        for file in sorted((folder / FOLDER / FOLDER).iterdir()):
            archive.write(file, f"{FOLDER}/{file.name}")
        archive.writestr(f"{FOLDER}/LICENSE.txt", "CC BY-NC 4.0")
    real = list(FedIsic2019().sources())
    assert [source.filename for source in real] == [PEOPLE, LABELS, CENTRES, IMAGES]
    small = [Source(source.url, source.filename, unpack=source.unpack) for source in real]
    monkeypatch.setattr(FedIsic2019, "sources", lambda _: small)
    return folder


def test_the_files_of_a_mirror_are_read_where_the_counts_agree(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isic, "COUNTS", SMALL)
    data = Data(dataset=FedIsic2019(size=16), synthetic=False)
    prepare.obtain(data, tmp_path / "raw", mirror)
    prepare.prepare(data, tmp_path / "raw", tmp_path / "out")
    made = Prepared(tmp_path / "out")
    assert made.images.shape == (12, 16, 16, 3)
    assert made.card["sites"] == {site: {"images": 2, "patients": 1} for site in sorted(SITES)}
    assert {"age_approx", "anatom_site_general", "sex", "flamby"} <= set(made.samples)


def test_a_wrong_number_of_images_of_a_centre_is_one_line(mirror: Path, tmp_path: Path) -> None:
    data = Data(dataset=FedIsic2019(), synthetic=False)
    words = r"train_test_split\.csv: centre BCN has 1 images in FLamby's part train, expected 9930; obtain it again"
    with pytest.raises(UserError, match=words) as caught:
        prepare.obtain(data, tmp_path / "raw", mirror)
    assert "\n" not in str(caught.value)


# ---- images


def test_one_colour_becomes_grey_of_the_same_light() -> None:
    """e = (30, 60, 60) has the length 90, so every channel gets 90 / sqrt(3) = 51.96, whatever the power."""
    image = np.full((4, 5, 3), (30, 60, 60), np.uint8)
    for power in (1, 6, 16):
        np.testing.assert_array_equal(isic.white(image, power), np.full((4, 5, 3), 52))


@pytest.mark.parametrize(
    ("power", "expected"),
    [
        (1, [[[0, 100, 100], [200, 100, 100]]]),  # means (100, 100, 100): white light
        (2, [[[0, 115, 115], [163, 115, 115]]]),  # e = (100 sqrt(2), 100, 100), |e| = 200: gains 0.8165, 1.1547
    ],
)
def test_the_power_weighs_bright_pixels(power: int, expected: Any) -> None:
    image = np.array([[[0, 100, 100], [200, 100, 100]]], np.uint8)
    np.testing.assert_array_equal(isic.white(image, power), expected)


def test_values_do_not_wrap_around_and_black_stays_black() -> None:
    image = np.full((1, 100, 3), (1, 50, 50), np.uint8)
    image[0, 0] = (100, 200, 200)
    assert isic.white(image, 1)[0, 0].tolist() == [255, 163, 163]  # e = (1.99, 51.5, 51.5): gains 21.1 and 0.817
    np.testing.assert_array_equal(isic.white(np.zeros((2, 2, 3), np.uint8), 6), 0)


@pytest.mark.parametrize(("shape", "scaled"), [((24, 33), (12, 16)), ((33, 24), (16, 12)), ((12, 40), (12, 40))])
def test_the_shorter_side_is_scaled_and_the_centre_is_kept(shape: tuple[int, int], scaled: tuple[int, int]) -> None:
    image = np.zeros((*shape, 3), np.uint8)
    image[..., 0], image[..., 1] = np.mgrid[: shape[0], : shape[1]] * 5
    found = isic.scaled(image, 12)
    assert found.shape == (*scaled, 3)
    square = isic.centre(found, 12)
    assert square.shape == (12, 12, 3)
    top, left = (scaled[0] - 12) // 2, (scaled[1] - 12) // 2
    np.testing.assert_array_equal(square[0, 0], found[top, left])


def test_colours_are_kept_where_no_power_is_given(raw: Path) -> None:
    plain, corrected = (FedIsic2019(size=24, power=power).open(raw).image(0) for power in (None, 6))
    with Image.open(raw / FOLDER / FOLDER / "ISIC_0000051.jpg") as image:
        whole = np.asarray(image)
    np.testing.assert_array_equal(plain, whole[:, 4:28])
    np.testing.assert_array_equal(corrected, isic.white(whole, 6)[:, 4:28])


# ---- the miniature


def test_the_miniature_has_all_centres_lesions_with_two_images_and_other_lights(tmp_path: Path) -> None:
    data = Data(dataset=FedIsic2019(lesions=3, size=32, power=None), synthetic=True)
    prepare.obtain(data, tmp_path / "raw", None)
    prepare.prepare(data, tmp_path / "raw", tmp_path / "out", threads=2)
    made = Prepared(tmp_path / "out")
    assert made.images.shape == (6 * 8 * 4, 32, 32, 3)
    assert made.samples["site"].value_counts().to_dict() == dict.fromkeys(SITES, 32)
    assert made.samples.groupby("patient").size().value_counts().to_dict() == {1: 96, 2: 48}
    light = pd.DataFrame(made.images.mean((1, 2))).groupby(made.samples["site"].to_numpy()).mean()
    assert (light / light.mean(axis=1).to_numpy()[:, None]).std().max() > 0.05, "centres differ in colour"
