"""Masks from DICOM SEG files, made here by pydicom: which frame lies on which image, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom import Dataset, FileMetaDataset
from pydicom.pixels import pack_bits
from pydicom.uid import ExplicitVRLittleEndian
from scan_files import altered

from fedshift.core import registry
from fedshift.core.errors import UserError, UserErrors
from fedshift.data.prepared import Prepared
from fedshift.datasets.own_images import OwnImages
from fedshift.io.dicom import CLASSES, DicomSegments
from fedshift.jobs.prepare import prepare
from fedshift.study.run import Data
from fedshift.tasks import Segmentation

SIDE = 64
UIDS = ("1.9.1", "1.9.2", "1.9.3")
LEFT, LOWER = (np.zeros((SIDE, SIDE), np.uint8) for _ in range(2))
LEFT[:, :20] = 1
LOWER[50:, 30:] = 1
FRAMES = ((UIDS[0], 1, LEFT), (UIDS[0], 2, LOWER), (UIDS[1], 2, LEFT))
"""The image, the segment and the pixels of each frame."""


def written(path: Path, frames: Any = FRAMES, kind: str = "BINARY") -> Path:
    """Write a SEG file: the elements of PS3.3, A.51, that say what its frames are."""
    file, bits = Dataset(), 1 if kind == "BINARY" else 8
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.SOPClassUID = file.file_meta.MediaStorageSOPClassUID = CLASSES[kind == "LABELMAP"]
    file.SOPInstanceUID = file.file_meta.MediaStorageSOPInstanceUID = "1.9.9"
    file.SegmentationType, file.Modality = kind, "SEG"
    file.Rows, file.Columns = frames[0][2].shape
    file.SamplesPerPixel, file.PhotometricInterpretation, file.PixelRepresentation = 1, "MONOCHROME2", 0
    file.BitsAllocated = file.BitsStored = bits
    file.HighBit, file.NumberOfFrames = bits - 1, len(frames)
    groups = []
    for uid, segment, _ in frames:
        source, derived, identified, group = (Dataset() for _ in range(4))
        source.ReferencedSOPInstanceUID, derived.SourceImageSequence = uid, [source]
        group.DerivationImageSequence = [derived]
        if kind == "BINARY":
            identified.ReferencedSegmentNumber = segment
            group.SegmentIdentificationSequence = [identified]
        groups.append(group)
    file.PerFrameFunctionalGroupsSequence = groups
    pixels = np.stack([of for *_, of in frames])
    file.PixelData = pack_bits(pixels) if bits == 1 else pixels.tobytes()
    file.save_as(path, enforce_file_format=True)
    return path


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """A folder with three images of a series, and a table in which one segmentation is the mask of two of them."""
    for number, uid in enumerate(UIDS):
        altered("MR_small.dcm", tmp_path / f"{number}.dcm", SOPInstanceUID=uid)
    table(tmp_path, 2)
    return tmp_path


def table(folder: Path, images: int, mask: str = "seg.dcm") -> None:
    rows = [f"{k}.dcm,{mask},{'AB'[k % 2]},p{k}" for k in range(images)]
    (folder / "t.csv").write_text("\n".join(["path,mask,site,patient", *rows]) + "\n", encoding="utf-8")


def data(folder: Path) -> Data:
    classes = {"masks": {0: 0, 1: 1, 2: 2}, "classes": ["background", "left", "lower"]}
    settings = {"table": str(folder / "t.csv"), "size": SIDE, "window": [0, 2000]}
    dataset = registry.build("dataset", {"name": "own_images", **settings, **classes})
    return Data(dataset=dataset, synthetic=False, task=Segmentation())


def said(folder: Path) -> list[str]:
    dataset = data(folder).dataset
    assert isinstance(dataset, OwnImages)
    return [str(fault).replace(f"{folder}{os.sep}", "") for fault in dataset.examine(Path()).faults]


@pytest.mark.parametrize("kind", ["BINARY", "LABELMAP"])
def test_the_segments_of_an_image_are_its_mask(series: Path, kind: str) -> None:
    first, second = LEFT + 2 * LOWER, 2 * LEFT
    frames = FRAMES if kind == "BINARY" else ((UIDS[0], 0, first), (UIDS[1], 0, second))
    written(series / "seg.dcm", frames, kind)
    assert said(series) == []
    prepare(data(series), series / "raw", series / "out")
    masks = Prepared(series / "out").masks
    np.testing.assert_array_equal(masks, np.stack([first, second]))


def test_a_segmentation_may_be_the_field_of_view(series: Path) -> None:
    written(series / "seg.dcm")
    for name in ("0.png", "1.png"):
        Image.fromarray(LOWER).save(series / name)
    rows = [f"{k}.dcm,{k}.png,seg.dcm,{'AB'[k]},p{k}" for k in range(2)]
    (series / "t.csv").write_text("\n".join(["path,mask,valid,site,patient", *rows]) + "\n", encoding="utf-8")
    assert said(series) == []
    prepare(data(series), series / "raw", series / "out")
    inside = (LEFT + LOWER > 0, LEFT > 0)
    wanted = np.stack([np.where(field, LOWER, 255) for field in inside])
    np.testing.assert_array_equal(Prepared(series / "out").masks, wanted)


def test_an_image_that_no_frame_lies_on_is_named(series: Path) -> None:
    written(series / "seg.dcm")
    table(series, 3)
    fault = "none of its frames lies on 2.dcm (no reference to its SOPInstanceUID): seg.dcm"
    assert said(series) == [f"t.csv, line 4: {fault}; name the segmentation of this image"]


def test_a_frame_of_a_segmentation_is_not_named(series: Path) -> None:
    written(series / "seg.dcm")
    table(series, 1, "seg.dcm#1")
    assert said(series) == ["t.csv, line 2: names a frame of a segmentation: seg.dcm#1; name the file alone"]


def test_another_dicom_file_is_no_mask(series: Path) -> None:
    table(series, 1, "1.dcm")
    words = "is DICOM, and no segmentation (SEG): 1.dcm; name a SEG, a NIfTI volume or an image"
    assert said(series) == [f"t.csv, line 2: {words}"]


def test_shares_of_pixels_are_no_segments(series: Path) -> None:
    written(series / "seg.dcm", kind="FRACTIONAL")
    words = "holds shares of pixels (FRACTIONAL), not segments: seg.dcm; export it as BINARY"
    assert said(series) == [f"t.csv, line {line}: {words}" for line in (2, 3)]


def test_segments_that_overlap_are_refused(tmp_path: Path) -> None:
    altered("MR_small.dcm", tmp_path / "0.dcm", SOPInstanceUID=UIDS[0])
    mask = DicomSegments.opened(written(tmp_path / "seg.dcm", ((UIDS[0], 1, LEFT), (UIDS[0], 2, LEFT))))
    with pytest.raises(
        UserError, match=r"two of its segments lie on one pixel of 0\.dcm; export segments that do not overlap"
    ):
        mask.on(tmp_path / "0.dcm", 1)


def test_a_segmentation_on_another_grid_is_a_line(series: Path) -> None:
    """It would be scaled onto the image, and lie elsewhere."""
    written(series / "seg.dcm", [(uid, 1, LEFT[:32]) for uid in UIDS])
    with pytest.raises(UserErrors, match=r"on 0\.dcm: has 64x32 pixels, and its image 64x64; give both the same size"):
        prepare(data(series), series / "raw", series / "out")


def test_frames_of_bits_that_fill_no_byte_are_told_apart(tmp_path: Path) -> None:
    """13 x 11 bits a frame: two of three begin within a byte. A file that ends before the third is a line."""
    drawn = np.random.default_rng(0).integers(0, 2, (3, 13, 11)).astype(np.uint8)
    file = written(tmp_path / "seg.dcm", [(uid, 1, of) for uid, of in zip(UIDS, drawn, strict=True)])
    for uid, wanted in zip(UIDS, drawn, strict=True):
        image = altered("MR_small.dcm", tmp_path / uid, SOPInstanceUID=uid)
        np.testing.assert_array_equal(DicomSegments.opened(file).on(image, 1), wanted)
    short = pydicom.dcmread(file)
    short.PixelData = short.PixelData[:40]
    short.save_as(file)
    with pytest.raises(UserError, match="has no pixels, or is cut short; export it again"):
        DicomSegments.opened(file).on(image, 1)


def test_frames_that_say_nothing_are_a_line(series: Path) -> None:
    file = pydicom.dcmread(written(series / "seg.dcm"))
    del file.PerFrameFunctionalGroupsSequence
    file.save_as(series / "seg.dcm")
    words = "is a segmentation that does not say on which images its frames lie: seg.dcm; export it again"
    assert said(series) == [f"t.csv, line {line}: {words}" for line in (2, 3)]
