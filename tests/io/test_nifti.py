"""Slices of NIfTI volumes: expected values come from the stored bytes and the header."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from scan_files import VOLUMES, copied

from fedshift.core.errors import UserError
from fedshift.io.images import open_scan
from fedshift.io.scan import Reading

REMEDY = "get it again"
HEADER = 352
"""Bytes before the voxels."""
WINDOW = (0, 20000)


def image(path: Path, number: int | None = None, **reading: Any) -> np.ndarray:
    choices = Reading(**reading)
    return open_scan(path, choices, REMEDY).image(number, choices)


def fault(path: Path, number: int | None = None, **reading: Any) -> str:
    with pytest.raises(UserError) as caught:
        image(path, number, **reading)
    assert caught.value.where == str(path)
    return f"{caught.value.what}; {caught.value.remedy}"


def voxels(name: str, kind: str, *shape: int) -> np.ndarray:
    """The stored values of an uncompressed volume: the first axis runs fastest."""
    content = (VOLUMES / name).read_bytes()[HEADER:]
    return np.frombuffer(content, dtype=kind)[: np.prod(shape)].reshape(shape, order="F").astype(np.float64)


def saved(path: Path, values: np.ndarray, affine: np.ndarray | None = None) -> Path:
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine), path)
    return path


def eight(values: np.ndarray, window: tuple[float, float] = WINDOW) -> np.ndarray:
    return np.clip((values - window[0]) / (window[1] - window[0]), 0, 1) * 255


@pytest.mark.parametrize(("axis", "number"), [("axial", 1), ("axial", 9), ("coronal", 41), ("sagittal", 5)])
def test_slices_lie_as_a_radiologist_sees_them(axis: str, number: int) -> None:
    """In anatomical.nii the stored axes run to the left, the front and the head.

    Patient's right is on the left of the image; the front (axial) or the head (coronal, sagittal) is up; in sagittal
    slices the front is on the left. Numbers run towards head, front and right.
    """
    stored = voxels("anatomical.nii", ">i2", 33, 41, 25)
    wanted = {
        "axial": lambda: stored[:, ::-1, number - 1].T,
        "coronal": lambda: stored[:, number - 1, ::-1].T,
        "sagittal": lambda: stored[33 - number, ::-1, ::-1].T,
    }[axis]()
    found = image(VOLUMES / "anatomical.nii", number, axis=axis, window=WINDOW)
    assert (found == found[..., :1]).all()
    assert np.abs(found[..., 0] - eight(wanted)).max() <= 0.5


def test_every_way_to_store_a_volume_gives_the_same_slices(tmp_path: Path) -> None:
    """All 48: six orders of the axes, and both directions of each."""
    values = np.random.default_rng(0).integers(0, 1000, (4, 5, 6)).astype(np.int16)
    reference = saved(tmp_path / "reference.nii", values)
    window = (0, 1000)
    wanted = {axis: image(reference, 2, axis=axis, window=window) for axis in ("axial", "coronal", "sagittal")}
    assert (wanted["axial"][..., 0] == np.rint(eight(values[::-1, ::-1, 1].T, window))).all()
    for order in itertools.permutations(range(3)):
        for flips in itertools.product((1, -1), repeat=3):
            stored = values.transpose(order)[:: flips[0], :: flips[1], :: flips[2]]
            affine = np.zeros((4, 4))
            affine[3, 3] = 1
            for axis, (body, flip) in enumerate(zip(order, flips, strict=True)):
                affine[body, axis] = flip
                affine[body, 3] = 0 if flip > 0 else values.shape[body] - 1
            path = saved(tmp_path / "stored.nii", np.ascontiguousarray(stored), affine)
            for axis, picture in wanted.items():
                np.testing.assert_array_equal(image(path, 2, axis=axis, window=window), picture)


def test_neighbouring_slices_become_channels() -> None:
    stored = voxels("anatomical.nii", ">i2", 33, 41, 25)
    for number, frames in ((9, (7, 8, 9)), (1, (0, 0, 1)), (25, (23, 24, 24))):
        found = image(VOLUMES / "anatomical.nii", number, window=WINDOW, neighbours=True)
        wanted = np.stack([stored[:, ::-1, k].T for k in frames], -1)
        assert np.abs(found - eight(wanted)).max() <= 0.5


def test_a_volume_of_several_is_chosen(tmp_path: Path) -> None:
    """example4d.nii.gz: 128x96x24 voxels, 2 volumes, stored to the left, the front and the head, and rotated."""
    with gzip.open(VOLUMES / "example4d.nii.gz") as file:
        content = file.read()
    start = int(np.frombuffer(content[108:112], "<f4")[0])
    stored = np.frombuffer(content[start:], "<i2").reshape((128, 96, 24, 2), order="F").astype(float)
    path = VOLUMES / "example4d.nii.gz"
    assert fault(path, 3, window=(0, 1000)) == "has 4 dimensions, 2 volumes; choose one: dataset.volume: 1 to 2"
    assert "2 volumes, and no volume 3" in fault(path, 3, window=(0, 1000), volume=3)
    for volume in (1, 2):
        found = image(path, 3, window=(0, 1000), volume=volume)
        assert np.abs(found[..., 0] - eight(stored[:, ::-1, 2, volume - 1].T, (0, 1000))).max() <= 0.5
    single = saved(tmp_path / "single.nii", stored[..., :1].astype(np.int16))
    assert image(single, 3, window=(0, 1000)).shape == (96, 128, 3), "one volume needs no choice"


def test_slope_and_intercept_come_before_the_window() -> None:
    """functional.nii states a slope, and holds 20 volumes of three slices."""
    header = (VOLUMES / "functional.nii").read_bytes()[:HEADER]
    slope, intercept = (float(np.frombuffer(header[n : n + 4], "<f4")[0]) for n in (112, 116))
    assert slope not in (0, 1)
    stored = voxels("functional.nii", "<i2", 17, 21, 3, 20)[..., 4] * slope + intercept
    found = image(VOLUMES / "functional.nii", 2, window=(600, 5600), volume=5)
    assert np.abs(found[..., 0] - eight(stored[:, ::-1, 1].T, (600, 5600))).max() <= 0.5


def test_floats_and_numbers_that_are_none() -> None:
    stored = voxels("reoriented_anat_moved.nii", ">f4", 21, 26, 22)
    found = image(VOLUMES / "reoriented_anat_moved.nii", 11, window=WINDOW)
    assert np.abs(found[..., 0] - eight(stored[::-1, ::-1, 10].T)).max() <= 0.5
    stored = voxels("resampled_anat_moved.nii", ">f4", 17, 21, 3)
    assert np.isnan(stored).any()
    found = image(VOLUMES / "resampled_anat_moved.nii", 2, window=WINDOW)[..., 0]
    np.testing.assert_array_equal(found == 0, np.nan_to_num(eight(stored[:, ::-1, 1].T)) <= 0.5)


def test_pixels_become_square(tmp_path: Path) -> None:
    """standard.nii.gz has 4x5x7 voxels of 1x3x2 mm."""
    path = VOLUMES / "standard.nii.gz"
    shapes = {"axial": (15, 4), "coronal": (14, 4), "sagittal": (7, 8)}
    for axis, shape in shapes.items():
        # 5 rows of 3 mm, 7 of 2 mm; of sagittal slices the finer side is 2 mm: 7 rows, and 5 columns of 3 mm are 7.5
        assert image(path, 1, axis=axis, window=(0, 255)).shape[:2] == shape
    assert image(path, 1, window=(0, 255), spacing=0.5).shape[:2] == (30, 8)
    metres = nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), np.diag([1e-3, 1e-3, 1e-3, 1]))
    metres.header.set_xyzt_units("meter")
    nibabel.save(metres, tmp_path / "metres.nii")
    assert image(tmp_path / "metres.nii", 1, window=(0, 1), spacing=0.5).shape[:2] == (8, 8)


def test_what_is_no_volume_of_numbers_is_refused(tmp_path: Path) -> None:
    colours = np.zeros((3, 3, 3), np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")]))
    assert "holds colours or complex numbers" in fault(saved(tmp_path / "colours.nii", colours))
    assert "holds colours or complex" in fault(saved(tmp_path / "c.nii", np.zeros((3, 3, 3), np.complex64)))
    five = saved(tmp_path / "five.nii", np.zeros((3, 3, 3, 2, 2), np.int16))
    assert fault(five) == "has 5 dimensions (3x3x3x2x2); store each volume in its own file"
    flat = saved(tmp_path / "flat.nii", np.arange(12, dtype=np.int16).reshape(3, 4))
    assert (
        image(flat, window=(0, 12))[..., 0].tolist()
        == np.rint(eight(np.arange(12), (0, 12))).reshape(3, 4)[::-1, ::-1].T.tolist()
    )


def test_damaged_files_are_named_with_what_is_wrong(tmp_path: Path) -> None:
    cut = "has fewer pixels than its header says, or is cut short"
    whole = (VOLUMES / "anatomical.nii").read_bytes()
    packed = (VOLUMES / "example4d.nii.gz").read_bytes()

    def written(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    assert cut in fault(written("cut.nii", whole[:-4000]), 25, window=WINDOW)
    assert cut in fault(written("cut.nii.gz", packed[: len(packed) // 2]), 24, window=WINDOW, volume=2)
    assert "is not NIfTI, or its header is damaged" in fault(written("text.nii", b"no image" * 100))
    assert "is not NIfTI, or its header is damaged" in fault(written("text.nii.gz", b"no image" * 100))
    assert "is not NIfTI, or its header is damaged" in fault(written("head.nii", whole[:200]))
    assert "the file is empty" in fault(written("empty.nii", b""))
    assert "no such image" in fault(tmp_path / "lost.nii.gz")
    (tmp_path / "folder.nii").mkdir()
    assert "is a folder" in fault(tmp_path / "folder.nii")


def test_a_window_and_a_slice_must_be_stated(tmp_path: Path) -> None:
    path = copied(VOLUMES / "anatomical.nii", tmp_path / "brain.nii")
    assert fault(path, window=WINDOW) == (
        "has 25 frames, and no row says which; name one in its path, such as brain.nii#13, or some for all files: "
        "dataset.slices: [0.5]"
    )
    stored = voxels("anatomical.nii", ">i2", 33, 41, 25)[..., 12]
    text = fault(path, 13)
    assert text.startswith("has no window: nothing says which of its values become black and white; write one for all")
    assert f"its values run from {stored.min():g} to {stored.max():g}, 98 % of them" in text
