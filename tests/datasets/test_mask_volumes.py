"""Own images with masks in NIfTI files: which slice lies on which image, and what is said of what does not fit."""

from __future__ import annotations

import gzip
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import disc_study
import nibabel
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scan_files import altered
from tutorial import ROOT, steps

from fedshift.core import registry
from fedshift.core.errors import UserError, UserErrors
from fedshift.data.prepared import Prepared
from fedshift.datasets.own_images import OwnImages
from fedshift.io import nifti
from fedshift.jobs.apply import apply, chosen
from fedshift.jobs.image_files import ImageFiles
from fedshift.jobs.prepare import prepare
from fedshift.study.run import Data
from fedshift.tasks import Segmentation

SIDE = 16
CLASSES = ["ground", "rim", "cup"]
VALUES = {0: 0, 1: 1, 2: 2}
RAS = np.eye(4)
"""The stored axes run to the right, to the front and to the head."""
AXES = ("axial", "coronal", "sagittal")


def saved(path: Path, voxels: np.ndarray, affine: np.ndarray = RAS) -> str:
    """The name of a volume that was written beside the table."""
    nibabel.save(nibabel.Nifti1Image(np.ascontiguousarray(voxels), affine), path)
    return path.name


def grey(seed: int = 0, shape: tuple[int, ...] = (SIDE,) * 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.int16)


def labels(seed: int = 1, shape: tuple[int, ...] = (SIDE,) * 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 3, shape).astype(np.uint8)


def seen(voxels: np.ndarray, axis: str, number: int) -> np.ndarray:
    """A slice of a volume in RAS as a radiologist sees it: the patient's right is left, front or head is up."""
    if axis == "axial":
        return voxels[::-1, ::-1, number - 1].T
    if axis == "coronal":
        return voxels[::-1, number - 1, ::-1].T
    return voxels[number - 1, ::-1, ::-1].T


def own(folder: Path, rows: Sequence[tuple[str, str]], **settings: Any) -> Data:
    """A table of images and masks, a site and a patient for each."""
    lines = [f"{path},{mask},{'AB'[n % 2]},p{n}" for n, (path, mask) in enumerate(rows)]
    (folder / "t.csv").write_text("\n".join(["path,mask,site,patient", *lines]) + "\n", encoding="utf-8")
    spec = {"name": "own_images", "table": str(folder / "t.csv"), "size": SIDE, "classes": CLASSES, "masks": VALUES}
    dataset = registry.build("dataset", {**spec, "window": [0, 255], **settings})
    return Data(dataset=dataset, synthetic=False, task=Segmentation())


def masks(data: Data) -> list[np.ndarray]:
    opened = data.dataset.open(Path())
    assert opened.mask is not None
    return [opened.mask(i) for i in range(len(opened.samples))]


def said(data: Data) -> list[str]:
    """The faults that `fedshift check` prints, without the folder; those of masks also end a preparation at once."""
    assert isinstance(data.dataset, OwnImages)
    folder = data.dataset.table.parent
    faults = [str(fault) for fault in data.dataset.examine(Path()).faults]
    if faults:
        with pytest.raises(UserErrors) as caught:
            data.dataset.open(Path())
        assert [str(fault) for fault in caught.value.errors] == faults
    return [fault.replace(f"{folder}{os.sep}", "") for fault in faults]


def refused(data: Data) -> str:
    """What preparation says of the mask of the first row, without the folder."""
    assert isinstance(data.dataset, OwnImages)
    opened = data.dataset.open(Path())
    assert opened.mask is not None
    with pytest.raises(UserError) as caught:
        opened.mask(0)
    return str(caught.value).replace(f"{data.dataset.table.parent}{os.sep}", "")


# ---- which slice


def every_way(voxels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """All 48 ways to store a volume in RAS, with the affine of each: orders of the axes, and directions of each."""
    ways = []
    for order, flips in itertools.product(itertools.permutations(range(3)), itertools.product((1, -1), repeat=3)):
        affine = np.zeros((4, 4))
        affine[3, 3] = 1
        for stored, (body, flip) in enumerate(zip(order, flips, strict=True)):
            affine[body, stored] = flip
            affine[body, 3] = 0 if flip > 0 else voxels.shape[body] - 1
        ways.append((voxels.transpose(order)[:: flips[0], :: flips[1], :: flips[2]], affine))
    return ways


@pytest.mark.parametrize("axis", AXES)
def test_a_slice_of_a_mask_lies_on_that_of_its_image_however_both_are_stored(tmp_path: Path, axis: str) -> None:
    ways = zip(every_way(grey()), every_way(labels()), strict=True)
    rows = []
    for n, (way, way_of_mask) in enumerate(ways):
        saved(tmp_path / f"i{n}.nii", *way)
        saved(tmp_path / f"m{n}.nii", *way_of_mask)
        # half of the masks are stored in another way than their image
        rows.append((f"i{n}.nii#5", f"m{n if n % 2 else 46 - n}.nii#5"))
    data = own(tmp_path, rows, axis=axis)
    expected = seen(labels(), axis, 5)
    for mask in masks(data):
        np.testing.assert_array_equal(mask, expected)
    opened = data.dataset.open(Path())
    for n in range(48):
        np.testing.assert_array_equal(opened.image(n)[..., 0], seen(grey(), axis, 5))


def test_a_mask_is_scaled_with_an_image_whose_pixels_are_not_square(tmp_path: Path) -> None:
    """Slices of 8 rows of 2 mm and 16 columns of 1 mm become 16 x 16 pixels of 1 mm, or 32 x 32 of 0.5 mm."""
    affine = np.diag([1.0, 2.0, 3.0, 1.0])
    shape = (SIDE, SIDE // 2, 4)
    rows = [
        (saved(tmp_path / "i.nii.gz", grey(0, shape), affine), saved(tmp_path / "m.nii.gz", labels(1, shape), affine))
    ]
    square = [seen(labels(1, shape), "axial", n).repeat(2, 0) for n in (1, 2, 3, 4)]
    np.testing.assert_array_equal(masks(own(tmp_path, rows, slices="all")), square)
    finer = [mask.repeat(2, 0).repeat(2, 1)[8:24, 8:24] for mask in square]
    np.testing.assert_array_equal(masks(own(tmp_path, rows, slices="all", spacing=0.5)), finer)


def test_all_slices_are_prepared_and_a_volume_of_masks_is_decompressed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths = (5, 7, 6)
    rows = []
    for n, depth in enumerate(depths):
        image = saved(tmp_path / f"{n}.nii.gz", grey(n, (SIDE, SIDE, depth)))
        rows.append((image, saved(tmp_path / f"{n}_seg.nii.gz", labels(n, (SIDE, SIDE, depth)))))
    unpacked: list[str] = []

    def counted(path: Path) -> Any:
        unpacked.append(path.name)
        return gzip.open(path)

    monkeypatch.setattr(nifti, "gzip", SimpleNamespace(open=counted))
    data = own(tmp_path, rows, slices="all")
    assert said(data) == []
    assert unpacked == [], "a check reads no voxels"
    prepare(data, tmp_path / "raw", tmp_path / "out")
    # images are read to estimate the time, and again
    assert Counter(unpacked) == {name: times for row in rows for name, times in zip(row, (2, 1), strict=True)}
    made = Prepared(tmp_path / "out")
    slices = [(n, k) for n, depth in enumerate(depths) for k in range(1, depth + 1)]
    assert made.samples["sample"].tolist() == [f"{n}.nii.gz#{k}" for n, k in slices]
    assert made.samples["patient"].tolist() == [f"p{n}" for n, _ in slices]
    for (n, k), image, mask in zip(slices, made.images, made.masks, strict=True):
        shape = (SIDE, SIDE, depths[n])
        np.testing.assert_array_equal(mask, seen(labels(n, shape), "axial", k))
        np.testing.assert_array_equal(image[..., 0], seen(grey(n, shape), "axial", k))
    assert made.spacing is not None
    assert (made.spacing == 1).all()


def test_places_choose_the_same_slices_of_both(tmp_path: Path) -> None:
    rows = [(saved(tmp_path / "i.nii.gz", grey()), saved(tmp_path / "m.nii.gz", labels()))]
    found = masks(own(tmp_path, rows, slices=[0, 1]))
    np.testing.assert_array_equal(found, [seen(labels(), "axial", n) for n in (1, SIDE)])


def test_empty_slices_are_counted_and_the_share_of_a_structure_is_kept(tmp_path: Path) -> None:
    voxels = np.zeros((SIDE, SIDE, 3), np.uint8)
    voxels[:8, :, 1] = 1
    voxels[..., 2] = 2
    rows = [(saved(tmp_path / "i.nii.gz", grey(0, (SIDE, SIDE, 3))), saved(tmp_path / "m.nii.gz", voxels))]
    prepare(own(tmp_path, rows, slices="all"), tmp_path / "raw", tmp_path / "out")
    made = Prepared(tmp_path / "out")
    assert made.samples["label"].tolist() == [0, 1, 1]
    assert pd.read_parquet(made.folder / "pixels.parquet")["structure"].tolist() == [0, 0.5, 1]
    assert made.card["notes"] == ["1 mask without a structure, where all that is predicted is wrong (1 at A)."]


def test_a_changed_mask_volume_is_prepared_again(tmp_path: Path) -> None:
    saved(tmp_path / "i.nii.gz", grey())
    saved(tmp_path / "m.nii.gz", labels())
    rows = [(f"i.nii.gz#{n}", f"m.nii.gz#{n}") for n in (1, 2)]
    data = own(tmp_path, rows)
    assert set(data.dataset.own_files()) == {"i.nii.gz", "m.nii.gz", "table"}
    before = data.dataset.fingerprint()
    saved(tmp_path / "m.nii.gz", labels(2))
    assert before
    assert data.dataset.fingerprint() != before


# ---- volumes that do not fit


def pair(folder: Path, image: str = "i.nii.gz#3", mask: str = "m.nii.gz#3", **settings: Any) -> Data:
    return own(folder, [(image, mask)], **settings)


def test_a_mask_of_another_shape_is_one_line(tmp_path: Path) -> None:
    saved(tmp_path / "i.nii.gz", grey())
    saved(tmp_path / "m.nii.gz", labels(1, (SIDE, SIDE, 4)))
    words = (
        "t.csv, line 2: has 16x16x4 voxels, and its image i.nii.gz 16x16x16: m.nii.gz; resample the mask onto its "
        "image, by the nearest neighbour"
    )
    assert said(pair(tmp_path)) == [words]
    assert said(pair(tmp_path, "i.nii.gz", "m.nii.gz", slices="all")) == [words], "once, not for each slice"


def test_a_mask_at_another_place_is_one_line(tmp_path: Path) -> None:
    saved(tmp_path / "i.nii.gz", grey())
    moved = RAS.copy()
    for shift, fits in ((0.0005, True), (0.002, True), (0.2, False), (3.0, False)):
        moved[1, 3] = shift
        saved(tmp_path / "m.nii.gz", labels(), moved)
        found = said(pair(tmp_path))
        if fits:
            assert found == []
        else:
            assert found == [
                f"t.csv, line 2: lies elsewhere than its image i.nii.gz: a corner is {shift:g} mm away: "
                "m.nii.gz; resample the mask onto its image, or, if it was drawn on it voxel by voxel, give it the "
                "same affine"
            ]
    # mirrored in space, and not only in storage
    saved(tmp_path / "m.nii.gz", labels(), np.diag([-1.0, 1, 1, 1]))
    assert "a corner is 15 mm away" in said(pair(tmp_path))[0]


def test_a_slice_that_is_not_that_of_the_image_is_one_line(tmp_path: Path) -> None:
    saved(tmp_path / "i.nii.gz", grey())
    saved(tmp_path / "m.nii.gz", labels())
    lines = {
        "m.nii.gz#4": "slice 4 of the mask is named for slice 3 of the image: m.nii.gz; name the same slice of both",
        "m.nii.gz#17": "has 16 frames, and no frame 17: m.nii.gz; write #1 to #16",
        "i.nii.gz#4": "the mask 'i.nii.gz#4' is the image itself; name its mask",
        "lost.nii.gz#3": "no such mask: lost.nii.gz; correct the path, or remove the row",
    }
    for mask, line in lines.items():
        assert said(pair(tmp_path, mask=mask)) == [f"t.csv, line 2: {line}"]
    (words,) = said(pair(tmp_path, mask="m.nii.gz"))
    assert words.startswith("t.csv, line 2: has 16 frames, and no row says which: m.nii.gz; name one in its path")


def test_two_rows_name_two_slices_of_one_volume_and_not_the_same(tmp_path: Path) -> None:
    saved(tmp_path / "i.nii.gz", grey())
    saved(tmp_path / "j.nii.gz", grey(5))
    saved(tmp_path / "m.nii.gz", labels())
    assert said(own(tmp_path, [(f"i.nii.gz#{n}", f"m.nii.gz#{n}") for n in (3, 4)])) == []
    rows = [("i.nii.gz#3", "m.nii.gz#3"), ("j.nii.gz#3", "./m.nii.gz#3")]
    line = "t.csv, line 3: './m.nii.gz#3' is the mask of line 2 too; give each image its own mask"
    assert said(own(tmp_path, rows)) == [line]
    rows = [("i.nii.gz", "m.nii.gz"), ("j.nii.gz#3", "m.nii.gz#3")]
    line = "t.csv, line 3: 'm.nii.gz#3' is the mask of line 2 too; give each image its own mask"
    assert said(own(tmp_path, rows, slices="all")) == [line]


def test_an_image_file_is_the_mask_of_one_slice(tmp_path: Path) -> None:
    saved(tmp_path / "i.nii.gz", grey())
    Image.fromarray(seen(labels(), "axial", 1)).save(tmp_path / "m.png")
    assert said(pair(tmp_path, "i.nii.gz", "m.png", slices="all")) == [
        "t.csv, line 2: 'm.png' is the mask of one image, but path stands for several frames; name a volume in mask "
        "too, or one frame in path, such as #3"
    ]
    one = pair(tmp_path, "i.nii.gz", "m.png", slices=[0])
    np.testing.assert_array_equal(masks(one), [seen(labels(), "axial", 1)])


def test_an_image_that_is_no_volume_may_have_a_slice_as_its_mask(tmp_path: Path) -> None:
    """Only the number of pixels can be compared."""
    Image.fromarray(grey(0, (SIDE, SIDE)).astype(np.uint8)).save(tmp_path / "i.png")
    saved(tmp_path / "m.nii.gz", labels())
    np.testing.assert_array_equal(masks(pair(tmp_path, "i.png")), [seen(labels(), "axial", 3)])
    Image.fromarray(grey(0, (8, SIDE)).astype(np.uint8)).save(tmp_path / "i.png")
    assert (
        refused(pair(tmp_path, "i.png")) == "m.nii.gz#3: has 16x16 pixels, and its image 16x8; give both the same size"
    )
    # 128 x 128 pixels of 0.6 x 0.3 mm, which become 256 x 128; the centre of 32 x 16 mm is cut out
    altered("CT_small.dcm", tmp_path / "i.dcm", PixelSpacing=[0.6, 0.3])
    saved(tmp_path / "m.nii.gz", labels(1, (128, 128, 2)))
    data = pair(tmp_path, "i.dcm", "m.nii.gz#2", spacing=0.3)
    expected = seen(labels(1, (128, 128, 2)), "axial", 2).repeat(2, 0)[120:136, 56:72]
    np.testing.assert_array_equal(masks(data), [expected])
    saved(tmp_path / "m.nii.gz", labels(1, (128, 64, 2)))
    assert "has 128x64 pixels, and its image 128x128" in refused(pair(tmp_path, "i.dcm", "m.nii.gz#2"))


# ---- values


def test_values_are_class_numbers_after_scaling(tmp_path: Path) -> None:
    """Floats that are written with 8 bits come back as 0, 0.996 and 2."""
    saved(tmp_path / "i.nii.gz", grey())
    packed = nibabel.Nifti1Image(labels().astype(np.float64), RAS)
    packed.set_data_dtype(np.uint8)
    nibabel.save(packed, tmp_path / "m.nii.gz")
    assert (nibabel.Nifti1Image.from_filename(tmp_path / "m.nii.gz").get_fdata() % 1).any()
    np.testing.assert_array_equal(masks(pair(tmp_path)), [seen(labels(), "axial", 3)])
    saved(tmp_path / "m.nii.gz", labels().astype(np.float32) * 4 - 4)
    signed = {-4: 0, 0: 1, 4: 2}
    np.testing.assert_array_equal(masks(pair(tmp_path, masks=signed)), [seen(labels(), "axial", 3)])


def test_values_that_are_no_class_numbers_are_one_line(tmp_path: Path) -> None:
    saved(tmp_path / "i.nii.gz", grey())
    remedy = "store the number of a class in each pixel; resample by the nearest neighbour"
    for wrong in (0.5, 1.02, np.nan, np.inf):
        voxels = labels().astype(np.float32)
        voxels[:2, 0, 2] = wrong
        saved(tmp_path / "m.nii.gz", voxels)
        words = f"m.nii.gz#3: has values that are not whole numbers, such as {wrong:.4g} (2 pixels); {remedy}"
        assert refused(pair(tmp_path)) == words
    voxels = labels().astype(np.int16)
    voxels[:2, 0, 2] = -7
    saved(tmp_path / "m.nii.gz", voxels)
    assert refused(pair(tmp_path)).startswith("m.nii.gz#3: has values without a class: -7 (2 pixels); name each value")
    colours = {"#000000": 0, "#ff0000": 1}
    assert refused(pair(tmp_path, masks=colours)) == (
        "m.nii.gz: has numbers, but dataset.masks names colours; name numbers there, as in {0: 0, 1: 1}"
    )


def test_a_damaged_mask_is_named_and_no_setting_leaves_it_out(tmp_path: Path) -> None:
    saved(tmp_path / "i.nii.gz", grey())
    saved(tmp_path / "m.nii.gz", labels())
    whole = (tmp_path / "m.nii.gz").read_bytes()
    (tmp_path / "m.nii.gz").write_bytes(whole[:-500])
    assert refused(pair(tmp_path)) == (
        "m.nii.gz: has fewer pixels than its header says, or is cut short; get it again, or remove its row"
    )
    (tmp_path / "m.nii.gz").write_bytes(b"no volume" * 100)
    for skip in (False, True):
        assert said(pair(tmp_path, skip_unreadable=skip)) == [
            "t.csv, line 2: is not NIfTI, or its header is damaged: m.nii.gz; get it again, or remove its row"
        ]


def test_what_is_wrong_with_an_image_is_not_said_of_its_mask(tmp_path: Path) -> None:
    saved(tmp_path / "m.nii.gz", labels())
    (tmp_path / "i.nii.gz").write_bytes(b"no volume" * 100)
    data = pair(tmp_path)
    (line,) = [str(fault) for fault in data.dataset.examine(Path()).faults]
    assert line.partition(", line 2: ")[2].startswith(
        f"is not NIfTI, or its header is damaged: {tmp_path / 'i.nii.gz'}"
    )
    assert [str(fault) for fault in pair(tmp_path, skip_unreadable=True).dataset.examine(Path()).faults] == []


# ---- a study


def test_the_docs_list_the_slices_with_a_structure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask is stored to the left and from head to feet: its slice 1 is the last stored one."""
    voxels = np.zeros((SIDE, SIDE, 5), np.uint8)
    voxels[3, 4, [1, 2]] = 1
    affine = np.diag([-1.0, 1, -1, 1])
    rows = [(saved(tmp_path / "i.nii.gz", grey(0, voxels.shape), affine), saved(tmp_path / "m.nii.gz", voxels, affine))]
    data = own(tmp_path, rows)
    (tmp_path / "t.csv").rename(tmp_path / "volumes.csv")
    (step,) = [step for step in steps(ROOT / "docs" / "segmentation.md") if step.language == "python"]
    monkeypatch.chdir(tmp_path)
    exec(step.text, {})
    (tmp_path / "samples.csv").rename(tmp_path / "t.csv")
    opened = data.dataset.open(Path())
    assert opened.samples["sample"].tolist() == ["i.nii.gz#3", "i.nii.gz#4"]
    assert opened.mask is not None
    assert [int(opened.mask(i).sum()) for i in range(2)] == [1, 1]


def test_a_study_of_volumes_is_trained_and_applied_to_volumes(tmp_path: Path) -> None:
    """New volumes need no masks: their slices are those of the run, and are read as in training."""
    data = tmp_path / "data"
    data.mkdir()
    lines = ["path,mask,site,patient"]
    for n in range(18):
        bright = np.zeros((SIDE, SIDE, 3), np.uint8)
        bright[2 + n % 5 : 10, 4:12, 1:] = 1
        saved(data / f"{n}.nii.gz", grey(n, bright.shape) // 4 + 150 * bright)
        saved(data / f"{n}_seg.nii.gz", bright)
        lines.append(f"{n}.nii.gz,{n}_seg.nii.gz,{('north', 'south', 'east')[n % 3]},p{n}")
    (data / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    dataset = {"name": "own_images", "table": str(data / "t.csv"), "size": SIDE, "masks": {0: 0, 1: 1}}
    dataset |= {"slices": [0.5, 1], "window": [0, 255]}
    plan, paths = disc_study.finished(tmp_path / "study", dataset=dataset, inferences=["source"], figures=[])
    (run,) = plan.runs.values()
    made = Prepared(paths.data(run.data.id))
    assert made.samples["sample"].tolist() == [f"{n}.nii.gz#{k}" for n in range(18) for k in (2, 3)]
    (tmp_path / "new").mkdir()
    for n in (0, 7):
        (tmp_path / "new" / f"{n}.nii.gz").write_bytes((data / f"{n}.nii.gz").read_bytes())
    found = apply(paths.run(run.id), tmp_path / "new", chosen("source", [], None), tmp_path / "out")
    assert found.table["path"].tolist() == ["0.nii.gz#2", "0.nii.gz#3", "7.nii.gz#2", "7.nii.gz#3"]
    files = ImageFiles.of(run, tmp_path / "new")
    for path in found.table["path"]:
        row = made.samples["sample"].tolist().index(path)
        np.testing.assert_array_equal(files.read(path)[0], made.images[row])
