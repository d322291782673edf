"""Fundus images and polyps: the folders of their archives, grey values of masks, and checked counts."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedshift import UserError
from fedshift.data.prepared import Prepared
from fedshift.datasets._base import Opened
from fedshift.datasets._outlines import Outlines, in_levels, square
from fedshift.datasets.fundus_sites import FundusSites
from fedshift.datasets.polyps import Polyps
from fedshift.jobs import prepare
from fedshift.study.run import Data
from fedshift.tasks import Segmentation

SHADES = np.array([255, 201, 200, 51, 50, 0], np.uint8)


def png(pixels: np.ndarray) -> bytes:
    Image.fromarray(pixels).save(content := io.BytesIO(), "PNG")
    return content.getvalue()


def archived(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(folder / name, "w") as archive:
        for inside, content in files.items():
            archive.writestr(inside, content)
    return folder


def counted(monkeypatch: pytest.MonkeyPatch, cls: type[Outlines], count: int) -> None:
    """Let each site of a dataset have this many images."""
    layouts = {site: dataclasses.replace(layout, counts=(count,)) for site, layout in cls.layouts.items()}
    monkeypatch.setattr(cls, "layouts", layouts)


def opened(dataset: Outlines, folder: Path, name: str, files: dict[str, bytes]) -> Opened:
    study = Data(dataset=dataset, synthetic=False, task=Segmentation())
    prepare.obtain(study, folder / "raw", archived(folder / "mirror", name, files))
    return dataset.open(folder / "raw")


def test_counts_are_those_of_the_sets() -> None:
    def counts(cls: type[Outlines]) -> list[tuple[int, ...]]:
        return [layout.counts for layout in cls.layouts.values()]

    assert counts(FundusSites) == [(101,), (159,), (400,), (400,)]
    assert counts(Polyps) == [(60,), (612,), (380,), (200,), (196,)]
    assert sum(count for (count,) in counts(Polyps)) == 1_448


def test_grey_values_are_cup_rim_and_background_as_in_dofe() -> None:
    """DoFE: above 200 is background, 51 to 200 the rim of the disc, and the rest the cup."""
    assert in_levels(SHADES, FundusSites.levels).tolist() == [0, 0, 1, 1, 2, 2]
    assert in_levels(np.array([127, 128], np.uint8), Polyps.levels).tolist() == [0, 1]


def fundus(mask: np.ndarray) -> dict[str, bytes]:
    """An image and a mask in both parts of each domain, in the layout of DoFE."""
    image = np.zeros((*mask.shape, 3), np.uint8)
    return {
        f"Fundus/Domain{domain}/{part}/ROIs/{kind}/gdrishtiGS_{part}.png": png(pixels)
        for domain in range(1, 5)
        for part in ("train", "test")
        for kind, pixels in (("image", image + domain), ("mask", mask))
    }


def test_disc_and_cup_are_nested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch, FundusSites, 2)
    mask = np.full((32, 32), 255, np.uint8)
    mask[8:24, 8:24] = 128
    mask[12:20, 12:20] = 0
    found = opened(FundusSites(size=32), tmp_path, "Fundus.zip", fundus(mask))
    assert found.samples["site"].tolist() == [site for site in FundusSites.layouts for _ in range(2)]
    assert found.samples["sample"].iloc[0] == "drishti_gs/Domain1/test/ROIs/image/gdrishtiGS_test.png"
    assert found.samples["patient"].isna().all()
    assert found.image(7).max() == 4
    classes = found.mask(0)
    assert np.bincount(classes.ravel()).tolist() == [32 * 32 - 16 * 16, 16 * 16 - 8 * 8, 8 * 8]
    task = Segmentation(structures={"disc": (1, 2), "cup": (2,)})
    disc, cup = (np.isin(classes, parts) for parts in task.scored(3))
    assert (disc.sum(), cup.sum()) == (256, 64)
    assert disc[cup].all()


def test_a_mask_packed_the_other_way_round_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch, FundusSites, 2)
    mask = np.zeros((32, 32), np.uint8)
    mask[8:24, 8:24] = 255
    found = opened(FundusSites(size=32), tmp_path, "Fundus.zip", fundus(mask))
    with pytest.raises(UserError, match=r"test\.png: has cup or rim along most of its border.*take DoFE's own archive"):
        found.mask(0)


def test_folders_of_polyps_are_read_in_the_singular_and_the_plural(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted(monkeypatch, Polyps, 1)
    image, mask = np.full((20, 40, 3), 9, np.uint8), np.zeros((20, 40), np.uint8)
    mask[:, :20] = 255
    names = ["CVC-300", "CVC-ClinicDB", "CVC-ColonDB", "EndoTect", "ETIS-LaribPolypDB"]
    files = {}
    for n, name in enumerate(names):
        plural = "s" if n % 2 else ""
        files[f"FL_Polyp/{name}/image{plural}/5.png"] = png(image)
        files[f"FL_Polyp/{name}/mask{plural}/5.png"] = png(mask)
    found = opened(Polyps(size=20), tmp_path, "FL_Polyp.zip", files)
    assert found.samples["site"].tolist() == list(Polyps.layouts)
    # 40x20 becomes 20x10, with five rows of black above and below
    expected = np.zeros((20, 20), np.uint8)
    expected[5:15, :10] = 1
    for i in range(5):
        np.testing.assert_array_equal(found.mask(i), expected)
        np.testing.assert_array_equal(found.image(i).max(2) > 0, np.arange(20)[:, None].repeat(20, 1) // 5 % 3 > 0)
    assert found.reduction is not None
    assert found.reduction(0) == 2


def test_a_set_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    """PraNet's copy of ClinicDB has 62 images: here there is one."""
    image, mask = np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8), np.uint8)
    files = {"CVC-ClinicDB/images/5.png": png(image), "CVC-ClinicDB/masks/5.png": png(mask)}
    with pytest.raises(UserError, match="site cvc_clinicdb has 1 image with a mask, expected 612; obtain the archive"):
        opened(Polyps(sites=("cvc_clinicdb",)), tmp_path, "FL_Polyp.zip", files)


def test_squares_keep_the_aspect_ratio_and_cut_nothing_off() -> None:
    tall = np.full((40, 10), 1, np.uint8)
    small = square(tall, 20, nearest=True)
    assert small.shape == (20, 20)
    assert small.sum() == 20 * 5
    np.testing.assert_array_equal(square(tall[:10], 10, nearest=True), tall[:10])


@pytest.mark.parametrize(("dataset", "sites"), [(FundusSites(images=5, size=32), 4), (Polyps(images=5, size=32), 5)])
def test_miniatures_are_prepared_with_their_masks(tmp_path: Path, dataset: Outlines, sites: int) -> None:
    study = Data(dataset=dataset, synthetic=True, task=Segmentation())
    prepare.obtain(study, tmp_path / "raw", None)
    prepare.prepare(study, tmp_path / "raw", tmp_path / "out", threads=2)
    made = Prepared(tmp_path / "out")
    assert made.images.shape == (5 * sites, 32, 32, 3)
    assert made.masks is not None
    for mask in made.masks:
        assert set(np.unique(mask)) == set(range(len(dataset.classes)))
    assert made.card["source"] == "drawn by fedshift"
