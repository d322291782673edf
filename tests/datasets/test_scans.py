"""Own images that are scans: from a table with DICOM and NIfTI files to prepared arrays, and what is said of faults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from PIL import Image
from scan_files import VOLUMES, altered, copied, dicom
from tutorial import ROOT, steps

from fedshift import study
from fedshift.core import registry
from fedshift.core.errors import UserError, UserErrors
from fedshift.data.prepared import Prepared
from fedshift.datasets import Dataset
from fedshift.datasets.own_images import OwnImages
from fedshift.jobs.prepare import prepare
from fedshift.study.run import Data

MR = (1, 2000)
SIDE = 16


def own(folder: Path, rows: list[str], **settings: Any) -> Data:
    lines = [f"{path},{n % 2},{'AB'[n % 2]},p{n}" for n, path in enumerate(rows)]
    (folder / "t.csv").write_text("\n".join(["path,label,site,patient", *lines]) + "\n", encoding="utf-8")
    spec = {"name": "own_images", "table": str(folder / "t.csv"), "size": SIDE, **settings}
    return Data(dataset=registry.build("dataset", spec), synthetic=False)


def prepared(data: Data, folder: Path) -> Prepared:
    prepare(data, folder / "raw", folder / "out")
    return Prepared(folder / "out")


def said(data: Data) -> list[str]:
    """The faults that `fedshift check` prints, without the folder."""
    assert isinstance(data.dataset, OwnImages)
    folder = data.dataset.table.parent
    return [str(fault).replace(f"{folder}{os.sep}", "") for fault in data.dataset.examine(Path()).faults]


def test_scans_and_images_become_arrays_of_eight_bits(tmp_path: Path) -> None:
    """A file of one frame, frames by number, a slice, and 16 bits of a PNG, in one window."""
    copied(dicom("MR_small.dcm"), tmp_path / "IM1")
    copied(VOLUMES / "anatomical.nii", tmp_path / "brain.nii")
    deep = np.arange(SIDE * SIDE, dtype=np.uint16).reshape(SIDE, SIDE) * 8
    Image.fromarray(deep).save(tmp_path / "deep.png")
    floats = deep.astype(np.float32) / 2 - 100
    Image.fromarray(floats).save(tmp_path / "float.tiff")
    Image.fromarray(deep.astype(np.int32) - 50).save(tmp_path / "whole.tiff")
    Image.new("RGB", (SIDE, SIDE), (1, 2, 3)).save(tmp_path / "colour.png")
    rows = ["IM1", "brain.nii#9", "deep.png", "float.tiff", "whole.tiff", "colour.png"]
    made = prepared(own(tmp_path, rows, window=MR), tmp_path)
    assert made.images.shape == (6, SIDE, SIDE, 3)
    assert made.images.dtype == np.uint8
    assert made.samples["sample"].tolist() == rows
    for image, values in ((2, deep.astype(float)), (3, floats), (4, deep.astype(float) - 50)):
        wanted = np.clip((values - MR[0]) / (MR[1] - MR[0]), 0, 1) * 255
        assert np.abs(made.images[image, :, :, 0] - wanted).max() <= 0.5
    assert made.images[5, 0, 0].tolist() == [1, 2, 3], "8 bits stay as they are"
    assert made.card["notes"] == []


def test_a_row_stands_for_the_chosen_slices(tmp_path: Path) -> None:
    """Of 25 slices, 0, a half and 1 are the first, the 13th and the last."""
    copied(VOLUMES / "anatomical.nii", tmp_path / "brain.nii")
    copied(VOLUMES / "anatomical.nii", tmp_path / "other.nii")
    data = own(tmp_path, ["brain.nii", "other.nii#2"], window=(0, 20000), slices=[0, 0.5, 0.5, 1])
    made = prepared(data, tmp_path)
    wanted = ["brain.nii#1", "brain.nii#13", "brain.nii#25", "other.nii#2"]
    assert made.samples["sample"].tolist() == wanted
    assert made.samples["patient"].tolist() == ["p0"] * 3 + ["p1"]
    for number, place in enumerate(wanted):
        single = tmp_path / f"single{number}"
        single.mkdir()
        copied(VOLUMES / "anatomical.nii", single / place.partition("#")[0])
        one = prepared(own(single, [place], window=(0, 20000)), single)
        np.testing.assert_array_equal(made.images[number], one.images[0])
    every = own(tmp_path, ["brain.nii"], window=(0, 20000), slices="all")
    assert every.dataset.examine(Path()).samples["sample"].tolist() == [f"brain.nii#{k}" for k in range(1, 26)]


def test_with_a_spacing_the_centre_is_cut_out_or_black_is_added(tmp_path: Path) -> None:
    """MR_small has 64x64 pixels of 0.3125 mm: 20 mm. 16 pixels of 2.5 mm show 40 mm, and of 0.625 mm 10 mm."""
    copied(dicom("MR_small.dcm"), tmp_path / "a.dcm")
    for spacing, inside in ((2.5, 8), (0.625, 16)):
        folder = tmp_path / str(spacing)
        folder.mkdir()
        copied(dicom("MR_small.dcm"), folder / "a.dcm")
        image = prepared(own(folder, ["a.dcm"], spacing=spacing), folder).images[0, ..., 0]
        rim = (SIDE - inside) // 2
        assert (image[:rim] == 0).all()
        assert (image[rim : SIDE - rim, rim : SIDE - rim] > 0).mean() > 0.9
    Image.new("RGB", (SIDE, SIDE)).save(tmp_path / "plain.png")
    with pytest.raises(UserError, match=r"plain\.png: is not a scan, and dataset\.spacing needs scans"):
        prepared(own(tmp_path, ["plain.png"], spacing=1), tmp_path)


def test_faults_are_told_once_with_the_number_of_rows(tmp_path: Path) -> None:
    """Before any image is prepared; and again, each by its name, where that is tried."""
    files = [copied(dicom("CT_small.dcm"), tmp_path / f"ct{number}.dcm").name for number in range(3)]
    files.append(copied(dicom("reportsi.dcm"), tmp_path / "report.dcm").name)
    files.append(copied(dicom("rtdose.dcm"), tmp_path / "dose.dcm").name)
    files.append(copied(VOLUMES / "functional.nii", tmp_path / "bold.nii").name)
    files.append(copied(dicom("MR_small_jpeg_ls_lossless.dcm"), tmp_path / "ls.dcm").name)
    (tmp_path / "cut.dcm").write_bytes(dicom("MR_small.dcm").read_bytes()[:300])
    data = own(tmp_path, [*files, "cut.dcm"])
    remedy = "get it again, remove its row, or leave it out: dataset.skip_unreadable: true"
    window, report, several, volumes, codec = said(data)
    assert window.startswith(
        "t.csv, line 2: has no window: nothing says which of its values become black and white, as in 2 more rows: "
        "ct0.dcm; write one for all sites, such as dataset.window: ["
    )
    assert report == (
        "t.csv, line 5: is a DICOM file without an image, such as a report or a plan, as in one more row: report.dcm; "
        f"{remedy}"
    ), "the file that is cut short has lost its size, too"
    assert several == (
        "t.csv, line 6: has 15 frames, and no row says which: dose.dcm; name one in its path, such as dose.dcm#8, or "
        "some for all files: dataset.slices: [0.5]"
    )
    assert volumes == "t.csv, line 7: has 4 dimensions, 20 volumes: bold.nii; choose one: dataset.volume: 1 to 20"
    assert codec == (
        "t.csv, line 8: is compressed (JPEG-LS Lossless Image Compression), and no package that decodes it is "
        "installed: ls.dcm; pip install pylibjpeg pylibjpeg-libjpeg, or export it without compression"
    )
    with pytest.raises(UserErrors) as caught:
        prepared(data, tmp_path)
    assert [Path(error.where).name for error in caught.value.errors] == [*files, "cut.dcm"]


def test_unreadable_scans_are_left_out_on_request(tmp_path: Path) -> None:
    copied(dicom("MR_small.dcm"), tmp_path / "a.dcm")
    copied(dicom("MR_truncated.dcm"), tmp_path / "b.dcm")
    copied(dicom("reportsi.dcm"), tmp_path / "c.dcm")
    data = own(tmp_path, ["a.dcm", "b.dcm", "c.dcm"], skip_unreadable=True)
    assert said(data) == []
    made = prepared(data, tmp_path)
    assert made.samples["sample"].tolist() == ["a.dcm"]
    assert made.card["notes"] == ["2 images (1 at B, 1 at A) could not be read and are left out."]


def test_a_burnt_in_name_is_warned_of(tmp_path: Path) -> None:
    for name, value in (("a.dcm", "YES"), ("b.dcm", "NO"), ("c.dcm", "YES")):
        altered("MR_small.dcm", tmp_path / name, BurnedInAnnotation=value)
    data = own(tmp_path, ["a.dcm", "b.dcm", "c.dcm"])
    text = (
        "headers of 2 images (2 at A) say that their pixels show text which may identify the patient "
        "(BurnedInAnnotation): look at them, and cover it or leave them out"
    )
    assert data.dataset.examine(Path()).warnings == (text,)
    assert prepared(data, tmp_path).card["notes"] == [f"{text}."]


def test_sizes_and_frames_are_told(tmp_path: Path) -> None:
    copied(dicom("MR_small.dcm"), tmp_path / "a.dcm")
    copied(dicom("rtdose.dcm"), tmp_path / "b.dcm")
    copied(VOLUMES / "anatomical.nii", tmp_path / "c.nii")
    data = own(tmp_path, ["a.dcm", "b.dcm#3", "b.dcm#4", "c.nii#1"], window=MR)
    assert data.dataset.examine(Path()).facts == (
        "2 DICOM files of 10x10 to 64x64 pixels, with up to 15 frames",
        "1 NIfTI file of 33x41 pixels, with up to 25 frames",
    )


def test_a_frame_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    copied(dicom("rtdose.dcm"), tmp_path / "a.dcm")
    text = "t.csv, line 3: './a.dcm#3' is the image of t.csv, line 2; list it once"
    assert said(own(tmp_path, ["a.dcm#3", "./a.dcm#3"], window=MR)) == [text]
    (tmp_path / "empty.dcm").touch()
    lost, empty = said(own(tmp_path, ["b.dcm#3", "empty.dcm"], window=MR))
    assert lost.startswith("t.csv, line 2: no such image: b.dcm; ")
    assert empty.startswith("t.csv, line 3: the file is empty: empty.dcm; ")


# ---- identity


def test_the_settings_change_ids_only_where_they_are_used(tmp_path: Path) -> None:
    copied(dicom("MR_small.dcm"), tmp_path / "a.dcm")
    plain = own(tmp_path, ["a.dcm"])
    assert (
        set(plain.dataset.identity())
        == {
            *("name", "table", "archive", "url", "sha256", "size", "title", "licence", "citation", "caveat", "classes"),
        }
        - type(plain.dataset).documentation_fields
    ), "as before there were scans"
    changed = {
        "window": [0, 1],
        "slices": [0.5],
        "axis": "coronal",
        "volume": 2,
        "neighbours": True,
        "spacing": 0.5,
    }
    data = [own(tmp_path, ["a.dcm"], **{name: value}) for name, value in changed.items()]
    assert len({plain.id, *(made.id for made in data)}) == 7
    assert {made.raw for made in data} == {plain.raw}, "nothing is downloaded again"


def test_the_study_of_the_documentation_is_sound(tmp_path: Path) -> None:
    (example,) = (step for step in steps(ROOT / "docs" / "scans.md") if step.title)
    path = tmp_path / str(example.title)
    path.parent.mkdir(parents=True)
    path.write_text(example.text, encoding="utf-8")
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "images.csv").write_text("path,label,site\nCT.dcm,benign,north\n", encoding="utf-8")
    (data,) = study.load(path, "mini").data.values()
    assert data.dataset.identity().keys() >= {"window", "slices", "neighbours", "spacing"}


def test_a_file_counts_once_by_its_content(tmp_path: Path) -> None:
    copied(dicom("rtdose.dcm"), tmp_path / "a.dcm")
    dataset: Dataset = own(tmp_path, ["a.dcm#1", "a.dcm#2"], window=MR).dataset
    assert dataset.own_files().keys() == {"a.dcm", "table"}
    before = dataset.fingerprint()
    altered("rtdose.dcm", tmp_path / "a.dcm", PixelData=bytes(len(pydicom.dcmread(dicom("rtdose.dcm")).PixelData)))
    assert dataset.fingerprint() != before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"window": [240, -160]}, "the first value must be less than the second"),
        ({"window": [1]}, "window"),
        ({"slices": [1.5]}, "places in a file run from 0"),
        ({"slices": []}, "places in a file run from 0"),
        ({"axis": "left"}, "axis"),
        ({"volume": 0}, "volume"),
        ({"spacing": 0}, "spacing"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        own(tmp_path, ["a.dcm"], **settings)
