"""Prostate MRI: volumes and masks in SAML's folders, slices, window, spacing, and masks laid voxel by voxel."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from fedshift import UserError
from fedshift.data.prepared import Prepared
from fedshift.datasets import prostate_sites
from fedshift.datasets._base import Opened
from fedshift.datasets.prostate_sites import COUNTS, ProstateSites
from fedshift.jobs import prepare
from fedshift.study.run import Data
from fedshift.tasks import Segmentation

SIDE = 20
LPS = np.diag([-0.5, -0.5, 3.0, 1.0])
"""The stored axes run to the right, to the front and to the head: rows and columns of a slice are stored as seen."""


def values(shape: tuple[int, ...] = (SIDE, SIDE, 4)) -> np.ndarray:
    """Values that differ in each voxel."""
    return np.arange(np.prod(shape), dtype=np.int16).reshape(shape)


def case(raw: Path, volume: np.ndarray, mask: np.ndarray, affine: np.ndarray = LPS, other: np.ndarray = LPS) -> None:
    folder = raw / "SAML" / "BIDMC"
    folder.mkdir(parents=True)
    nibabel.save(nibabel.Nifti1Image(volume, affine), folder / "Case07.nii.gz")
    nibabel.save(nibabel.Nifti1Image(mask, other), folder / "Case07_segmentation.nii.gz")


def read(raw: Path, **settings: Any) -> Opened:
    return ProstateSites(**{"sites": ("BIDMC",), "size": SIDE} | settings).open(raw)


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    """A volume with its mask: both zones of the prostate in slice 2, nothing in the others."""
    mask = np.zeros((SIDE, SIDE, 4), np.uint8)
    mask[3:6, 8:15, 1] = 1
    mask[6:9, 8:15, 1] = 2
    case(tmp_path, values(), mask)
    return tmp_path


def test_counts_are_those_of_the_set() -> None:
    assert COUNTS == {"BIDMC": 12, "BMC": 30, "HK": 12, "I2CVB": 19, "RUNMC": 30, "UCL": 13}
    assert sum(COUNTS.values()) == 116


def test_each_slice_is_an_image_of_the_patient(marked: Path) -> None:
    opened = read(marked)
    assert opened.samples["sample"].tolist() == [f"BIDMC/BIDMC/Case07.nii.gz#{n}" for n in range(1, 5)]
    assert set(opened.samples["patient"]) == {"BIDMC_Case07"}
    assert set(opened.samples["spacing"]) == {"0.5x0.5x3"}
    assert opened.further == ("spacing",)


def test_both_zones_are_prostate_and_lie_where_the_image_shows_them(marked: Path) -> None:
    opened = read(marked)
    assert opened.mask is not None
    # stored axes are columns, rows and slices
    expected = np.zeros((SIDE, SIDE), np.uint8)
    expected[8:15, 3:9] = 1
    np.testing.assert_array_equal(opened.mask(1), expected)
    assert [int(opened.mask(i).sum()) for i in range(4)] == [0, 42, 0, 0]
    high = np.quantile(values(), 0.99)
    wanted = np.rint(255 * np.clip(values()[:, :, 1].T / high, 0, 1))
    np.testing.assert_array_equal(opened.image(1)[..., 0], wanted)
    assert opened.image(3).max() == 255


def test_slices_with_prostate_alone(marked: Path) -> None:
    opened = read(marked, only_structure=True)
    assert opened.samples["sample"].tolist() == ["BIDMC/BIDMC/Case07.nii.gz#2"]
    assert opened.mask is not None
    assert opened.mask(0).sum() == 42


def test_neighbours_are_channels_and_the_first_slice_stands_for_the_one_before_it(marked: Path) -> None:
    alone, three = read(marked), read(marked, neighbours=True)
    for i, places in enumerate([(0, 0, 1), (0, 1, 2), (1, 2, 3), (2, 3, 3)]):
        expected = np.stack([alone.image(k)[..., 0] for k in places], axis=-1)
        np.testing.assert_array_equal(three.image(i), expected)
    assert ProstateSites(neighbours=True, size=64).shape == (3, 64, 64)
    assert ProstateSites(size=64).shape == (1, 64, 64)


def test_centre_and_spacing_move_mask_and_image_alike(tmp_path: Path) -> None:
    """The image is the mask, so that both must stay equal.

    At 0.25 mm a slice has 40x40 pixels, with prostate in columns 8 to 31 and rows 12 to 23. The middle begins at 10.
    """
    mask = np.zeros((SIDE, SIDE, 4), np.uint8)
    mask[4:16, 6:12, :] = 1
    case(tmp_path, mask.astype(np.int16), mask)
    for settings, area in (
        ({"centre": 16, "size": 16}, 12 * 6),
        ({"spacing": 0.5, "size": 24}, 12 * 6),
        ({"spacing": 0.25}, 20 * 12),
    ):
        opened = read(tmp_path, **settings)
        assert opened.mask is not None
        np.testing.assert_array_equal(opened.image(0)[..., 0] > 127, opened.mask(0) > 0)
        assert opened.mask(0).sum() == area


@pytest.mark.parametrize(
    ("settings", "millimetres"),
    [
        ({}, 0.5),
        ({"size": 40}, 0.25),
        ({"centre": 16, "size": 16}, 0.5),
        ({"centre": 16, "size": 32}, 0.25),
        ({"spacing": 0.25}, 0.25),
    ],
)
def test_the_size_of_a_prepared_pixel_is_that_after_scaling(
    marked: Path, settings: dict[str, Any], millimetres: float
) -> None:
    """Slices have 20 x 20 pixels of 0.5 mm."""
    opened = read(marked, **settings)
    assert opened.spacing is not None
    assert opened.spacing(2) == pytest.approx((millimetres, millimetres))


def test_a_mask_is_laid_voxel_by_voxel_whatever_its_header_says(tmp_path: Path) -> None:
    mask = np.zeros((SIDE, SIDE, 4), np.uint8)
    mask[2:5, 9:19, 2] = 1
    case(tmp_path / "same", values(), mask)
    case(tmp_path / "other", values(), mask, other=np.eye(4))
    same, other = (read(tmp_path / name).mask for name in ("same", "other"))
    assert same is not None
    assert other is not None
    for i in range(4):
        np.testing.assert_array_equal(same(i), other(i))


def test_a_mask_with_other_voxels_is_named(tmp_path: Path) -> None:
    case(tmp_path, values(), np.zeros((SIDE, SIDE, 5), np.uint8))
    with pytest.raises(UserError, match=r"Case07_segmentation\.nii\.gz: has 20x20x5 voxels, and its volume 20x20x4"):
        read(tmp_path).image(0)


@pytest.mark.parametrize("name", ["Case07.nii.gz", "Case07_segmentation.nii.gz"])
def test_a_file_that_is_cut_short_is_named(marked: Path, name: str) -> None:
    file = marked / "SAML" / "BIDMC" / name
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UserError, match=rf"{name}: .*; obtain the archive again") as caught:
        read(marked).image(0)
    assert "\n" not in str(caught.value)


def test_the_archive_is_read_where_all_volumes_are_there(tmp_path: Path) -> None:
    """The miniature's twelve volumes are all of HK, and too few for BMC."""
    drawn = ProstateSites(sites=("HK", "BMC"), images=12)
    drawn.miniature(tmp_path / "drawn")
    assert (tmp_path / "drawn" / "SAML" / "BMC" / "Case00_Segmentation.nii.gz").is_file()
    (tmp_path / "mirror").mkdir()
    with zipfile.ZipFile(tmp_path / "mirror" / "SAML.zip", "w") as archive:
        for file in sorted((tmp_path / "drawn" / "SAML").rglob("*.nii.gz")):
            archive.write(file, file.relative_to(tmp_path / "drawn"))

    def obtain(*sites: str) -> Data:
        study = Data(dataset=ProstateSites(sites=sites, size=48), synthetic=False, task=Segmentation())
        prepare.obtain(study, tmp_path / "-".join(sites), tmp_path / "mirror")
        return study

    samples = obtain("HK").dataset.open(tmp_path / "HK").samples
    assert samples["patient"].nunique() == 12
    assert len(samples) == 12 * prostate_sites.SLICES
    with pytest.raises(UserError, match="site BMC has 12 images with a mask, expected 30; obtain the archive again"):
        obtain("HK", "BMC")


def test_one_line_says_what_to_fetch(tmp_path: Path) -> None:
    study = Data(dataset=ProstateSites(), synthetic=False, task=Segmentation())
    with pytest.raises(UserError, match=r"1 file to get by hand: SAML\.zip from https://liuquande.*put the file in a"):
        prepare.obtain(study, tmp_path / "raw", None)


def test_the_miniature_is_prepared_with_its_masks(tmp_path: Path) -> None:
    study = Data(dataset=ProstateSites(size=32), synthetic=True, task=Segmentation())
    prepare.obtain(study, tmp_path / "raw", None)
    prepare.prepare(study, tmp_path / "raw", tmp_path / "out", threads=2)
    made = Prepared(tmp_path / "out")
    assert made.images.shape == (6 * 5 * prostate_sites.SLICES, 32, 32, 1)
    assert made.masks is not None
    empty = (made.masks == 0).all((1, 2)).reshape(-1, prostate_sites.SLICES)
    # no organ in the first and in the last slice of a volume
    assert empty[:, [0, -1]].all()
    assert not empty[:, 1:-1].any()
