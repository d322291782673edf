"""Pixels of DICOM files: expected values are computed from the stored bytes and the header, in float64."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from scan_files import altered, dicom

from fedshift.core.errors import UserError
from fedshift.io.dicom import DicomFile, codecs
from fedshift.io.images import is_scan, located, open_scan
from fedshift.io.scan import Reading, in_window

REMEDY = "get it again"


def image(path: Path, number: int | None = None, **reading: Any) -> np.ndarray:
    choices = Reading(**reading)
    return open_scan(path, choices, REMEDY).image(number, choices)


def grey(path: Path, number: int | None = None, **reading: Any) -> np.ndarray:
    """The one channel of an image that has three equal ones."""
    made = image(path, number, **reading)
    assert made.dtype == np.uint8
    assert (made == made[..., :1]).all()
    return made[..., 0]


def stored(name: str, kind: str, *shape: int) -> np.ndarray:
    """The stored values of an uncompressed file, as its bytes give them."""
    return np.frombuffer(pydicom.dcmread(dicom(name)).PixelData, dtype=kind).reshape(shape).astype(np.float64)


def linear(x: np.ndarray, centre: float, width: float) -> np.ndarray:
    """The function LINEAR of PS3.3, C.11.2.1.2.1, from 0 to 255, as it is printed there."""
    y = ((x - (centre - 0.5)) / (width - 1) + 0.5) * 255
    y[x <= centre - 0.5 - (width - 1) / 2] = 0
    y[x > centre - 0.5 + (width - 1) / 2] = 255
    return y


def fault(path: Path, number: int | None = None, **reading: Any) -> str:
    with pytest.raises(UserError) as caught:
        image(path, number, **reading)
    assert caught.value.where == str(path)
    return f"{caught.value.what}; {caught.value.remedy}"


# ---- values


def test_slope_intercept_and_the_window_of_the_study() -> None:
    """Of CT_small: slope 1, intercept -1024. -160 becomes 0 and 240 becomes 255."""
    units = stored("CT_small.dcm", "<i2", 128, 128) - 1024
    wanted = np.clip((units + 160) / 400, 0, 1) * 255
    found = grey(dicom("CT_small.dcm"), window=(-160, 240))
    assert np.abs(found - wanted).max() <= 0.5
    assert 0 < (found == 255).sum() < found.size
    assert 0 < (found == 0).sum() < found.size


@pytest.mark.parametrize(
    ("name", "kind", "shape", "window"),
    [
        ("MR_small.dcm", "<i2", (64, 64), (600, 1600)),
        ("MR_small_bigendian.dcm", ">i2", (64, 64), (600, 1600)),
        ("MR_small_implicit.dcm", "<i2", (64, 64), (600, 1600)),
        ("examples_overlay.dcm", "<u2", (300, 484), (450, 790)),
    ],
)
def test_the_window_of_the_file(name: str, kind: str, shape: tuple[int, int], window: tuple[float, float]) -> None:
    """Without one in the study; of several, the first."""
    wanted = linear(stored(name, kind, *shape), *window)
    assert np.abs(grey(dicom(name)) - wanted).max() <= 0.5 + 1e-9


def test_an_exact_window_and_one_of_a_single_value(tmp_path: Path) -> None:
    values = stored("MR_small.dcm", "<i2", 64, 64)
    exact = altered("MR_small.dcm", tmp_path / "exact.dcm", VOILUTFunction="LINEAR_EXACT")
    assert np.abs(grey(exact) - np.clip((values - (600 - 800)) / 1600, 0, 1) * 255).max() <= 0.5
    step = altered("MR_small.dcm", tmp_path / "step.dcm", WindowWidth=1)
    np.testing.assert_array_equal(grey(step), np.where(values > 599.5, 255, 0))
    sigmoid = altered("MR_small.dcm", tmp_path / "sigmoid.dcm", VOILUTFunction="SIGMOID")
    # PS3.3, C.11.2.1.3.1, with centre 600 and width 1600
    assert np.abs(grey(sigmoid) - 255 / (1 + np.exp(-4 * (values - 600.0) / 1600))).max() <= 0.5


def test_monochrome1_is_turned(tmp_path: Path) -> None:
    turned = altered("MR_small.dcm", tmp_path / "turned.dcm", PhotometricInterpretation="MONOCHROME1")
    wanted = 255 - linear(stored("MR_small.dcm", "<i2", 64, 64), 600, 1600)
    assert np.abs(grey(turned) - wanted).max() <= 0.5 + 1e-9


def test_eight_bits_without_a_window_stay_as_they_are(tmp_path: Path) -> None:
    """In a deflated file, too. A single bit becomes black and white."""
    np.testing.assert_array_equal(grey(dicom("liver_1frame.dcm")) == 255, pixels("liver_1frame.dcm") == 1)
    content = pydicom.dcmread(dicom("image_dfl.dcm"))
    shape = content.Rows, content.Columns
    np.testing.assert_array_equal(
        grey(dicom("image_dfl.dcm")), np.frombuffer(content.PixelData, np.uint8)[: shape[0] * shape[1]].reshape(shape)
    )


def pixels(name: str) -> np.ndarray:
    """Bits, the lowest of each byte first (PS3.5, 8.1.1)."""
    content = pydicom.dcmread(dicom(name))
    bits = np.unpackbits(np.frombuffer(content.PixelData, np.uint8), bitorder="little")
    return bits[: content.Rows * content.Columns].reshape(content.Rows, content.Columns)


def test_frames_are_named_from_one() -> None:
    values = stored("rtdose.dcm", "<u4", 15, 10, 10)
    low, high = values.min(), values.max()
    for number in (1, 7, 15):
        wanted = (values[number - 1] - low) / (high - low) * 255
        assert np.abs(grey(dicom("rtdose.dcm"), number, window=(low, high)) - wanted).max() <= 0.5
    three = image(dicom("rtdose.dcm"), 15, window=(low, high), neighbours=True)
    for channel, frame in enumerate((13, 14, 14)):
        wanted = (values[frame] - low) / (high - low) * 255
        assert np.abs(three[..., channel] - wanted).max() <= 0.5, "the last frame is its own neighbour"


def test_functional_groups_state_the_values_of_each_frame(tmp_path: Path) -> None:
    """As enhanced CT and MR files have them: what a frame says counts before what all frames share."""

    def group(**elements: Any) -> Dataset:
        made = Dataset()
        for name, value in elements.items():
            setattr(made, name, value)
        return made

    def frame(slope: float, centre: float) -> Dataset:
        values = group(RescaleSlope=slope, RescaleIntercept=-100)
        window = group(WindowCenter=centre, WindowWidth=1e6, VOILUTFunction="LINEAR_EXACT")
        return group(PixelValueTransformationSequence=[values], FrameVOILUTSequence=[window])

    shared = group(PixelMeasuresSequence=[group(PixelSpacing=[3, 1.5])])
    made = altered(
        "rtdose.dcm",
        tmp_path / "enhanced.dcm",
        PerFrameFunctionalGroupsSequence=[frame(1 + k / 10, 1e6 + 1e4 * k) for k in range(15)],
        SharedFunctionalGroupsSequence=[shared],
        PixelSpacing=None,
    )
    values = stored("rtdose.dcm", "<u4", 15, 10, 10)
    for number in (2, 9):
        k = number - 1
        units = values[k] * (1 + k / 10) - 100
        wanted = np.clip((units - (1e6 + 1e4 * k - 5e5)) / 1e6, 0, 1) * 255
        found = grey(made, number)
        assert found.shape == (20, 10), "rows are 3 mm apart, columns 1.5"
        assert np.abs(found[::2].astype(float) - wanted).max() < 16, "resampled by Lanczos"
        assert abs(found.mean() - wanted.mean()) < 1.5


def test_pixels_become_square_and_take_the_spacing_of_the_study(tmp_path: Path) -> None:
    narrow = altered("MR_small.dcm", tmp_path / "narrow.dcm", PixelSpacing=[0.3125, 0.625])
    assert grey(narrow).shape == (64, 128)
    assert grey(dicom("MR_small.dcm"), spacing=0.625).shape == (32, 32)
    detector = altered("MR_small.dcm", tmp_path / "x.dcm", PixelSpacing=None, ImagerPixelSpacing=[0.5, 0.5])
    assert grey(detector, spacing=1.0).shape == (32, 32)
    bare = altered("MR_small.dcm", tmp_path / "bare.dcm", PixelSpacing=None)
    assert grey(bare).shape == (64, 64)
    assert fault(bare, spacing=1.0).startswith("does not say how large its pixels are")
    huge = altered("MR_small.dcm", tmp_path / "huge.dcm", PixelSpacing=[1, 1e-7])
    assert "would have" in fault(huge)


# ---- colours


def test_colours() -> None:
    content = pydicom.dcmread(dicom("examples_rgb_color.dcm"))
    wanted = np.frombuffer(content.PixelData, np.uint8).reshape(content.Rows, content.Columns, 3)
    np.testing.assert_array_equal(image(dicom("examples_rgb_color.dcm")), wanted)
    np.testing.assert_array_equal(image(dicom("examples_rgb_color.dcm"), window=(0, 10)), wanted, "no window acts")
    assert "coloured" in fault(dicom("SC_rgb_rle_2frame.dcm"), 1, neighbours=True)


def test_luminance_and_chrominance_become_colours() -> None:
    """YBR_FULL_422: two pixels share Cb and Cr. The matrix is that of PS3.3, C.7.6.3.1.2."""
    content = pydicom.dcmread(dicom("SC_ybr_full_422_uncompressed.dcm"))
    pairs = np.frombuffer(content.PixelData, np.uint8).reshape(-1, 4).astype(np.float64)
    y, blue, red = pairs[:, :2].ravel(), *(np.repeat(pairs[:, k] - 128, 2) for k in (2, 3))
    wanted = np.stack([y + 1.402 * red, y - 0.344136 * blue - 0.714136 * red, y + 1.772 * blue], -1)
    wanted = wanted.clip(0, 255).reshape(content.Rows, content.Columns, 3)
    assert np.abs(image(dicom("SC_ybr_full_422_uncompressed.dcm")) - wanted).max() <= 1


def test_of_colours_of_more_bits_the_upper_eight_are_kept() -> None:
    eight = image(dicom("SC_rgb_rle.dcm"))
    np.testing.assert_array_equal(image(dicom("SC_rgb_rle_16bit.dcm")), eight)
    np.testing.assert_array_equal(image(dicom("SC_rgb_rle_32bit.dcm")), eight)


def test_a_palette_is_looked_up() -> None:
    content = pydicom.dcmread(dicom("examples_palette.dcm"))
    numbers = np.frombuffer(content.PixelData, np.uint8)[: content.Rows * content.Columns]
    channels = []
    for colour in ("Red", "Green", "Blue"):
        entries, first, bits = getattr(content, f"{colour}PaletteColorLookupTableDescriptor")
        assert (first, bits) == (0, 16)
        table = np.frombuffer(getattr(content, f"{colour}PaletteColorLookupTableData"), "<u2")
        assert len(table) == entries
        channels.append(table[numbers] >> 8)
    wanted = np.stack(channels, -1).reshape(content.Rows, content.Columns, 3)
    np.testing.assert_array_equal(image(dicom("examples_palette.dcm")), wanted)


# ---- compression


@pytest.mark.parametrize("name", ["MR_small_RLE.dcm", "MR_small_jp2klossless.dcm", "MR_small_padded.dcm"])
def test_lossless_compression_gives_the_same_pixels(name: str) -> None:
    np.testing.assert_array_equal(grey(dicom(name)), grey(dicom("MR_small.dcm")))


def test_rle_of_several_frames_gives_the_same_pixels() -> None:
    window = (795000, 1254000)
    for number in (1, 15):
        compressed = grey(dicom("rtdose_rle.dcm"), number, window=window)
        np.testing.assert_array_equal(compressed, grey(dicom("rtdose.dcm"), number, window=window))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("JPEGLSNearLossless_16.dcm", r"JPEG-LS .*no package .* is installed; pip install pylibjpeg pylibjpeg-libjpeg"),
        ("SC_rgb_jpeg_gdcm.dcm", r"JPEG Lossless.*no package .* is installed; pip install pylibjpeg pylibjpeg-libjpeg"),
        ("JPEG-lossy.dcm", r"JPEG Extended.*beyond the installed decoder; pip install pylibjpeg pylibjpeg-libjpeg"),
        ("GDCMJ2K_TextGBR.dcm", r"JPEG 2000.*is damaged or beyond.*; pip install pylibjpeg pylibjpeg-openjpeg"),
    ],
)
def test_compression_that_is_not_decoded_names_the_package(name: str, words: str) -> None:
    assert re.search(words, fault(dicom(name), window=(0, 255)))


def test_the_package_is_named_before_any_pixel_is_read() -> None:
    scan = open_scan(dicom("MR_small_jpeg_ls_lossless.dcm"), Reading(), REMEDY)
    with pytest.raises(UserError, match="JPEG-LS Lossless Image Compression"):
        scan.require(None, Reading())
    assert codecs(pydicom.uid.MPEG2MPML) == ""


# ---- damaged files


def test_damaged_files_are_named_with_what_is_wrong(tmp_path: Path) -> None:
    whole = dicom("MR_small.dcm").read_bytes()
    content = pydicom.dcmread(dicom("MR_small.dcm"))

    def written(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    cut = "has fewer pixels than its header says, or is cut short"
    assert cut in fault(dicom("MR_truncated.dcm"))
    assert cut in fault(written("cut.dcm", whole[:-1000]))
    assert cut in fault(altered("MR_small.dcm", tmp_path / "short.dcm", PixelData=content.PixelData[:-64]))
    assert cut in fault(altered("MR_small.dcm", tmp_path / "rows.dcm", Rows=65))
    long = altered("MR_small.dcm", tmp_path / "long.dcm", PixelData=content.PixelData * 2)
    assert "has pixels for 2 frames, but its header says 1" in fault(long)
    assert "has no pixels" in fault(altered("MR_small.dcm", tmp_path / "none.dcm", PixelData=None))
    assert "without an image" in fault(dicom("reportsi.dcm"))
    assert "without an image" in fault(dicom("rtplan.dcm"))
    assert "without an image" in fault(dicom("badVR.dcm"))
    assert "the file is empty" in fault(written("empty.dcm", b""))
    assert "is not DICOM: the mark DICM is missing" in fault(written("text.dcm", b"no image" * 40))
    assert "no such image" in fault(tmp_path / "lost.dcm")
    (tmp_path / "folder.dcm").mkdir()
    assert "is a folder" in fault(tmp_path / "folder.dcm")
    number = written("number.dcm", whole.replace(b"DS\x04\x00600 ", b"DS\x04\x00ANNA"))
    assert fault(number) == f"has a damaged header: its WindowCenter is not a number; {REMEDY}"


def test_every_cut_of_a_file_is_one_line(tmp_path: Path) -> None:
    whole = dicom("MR_small.dcm").read_bytes()
    pixels_from = len(whole) - 64 * 64 * 2 - 200
    for length in [*range(0, pixels_from, 37), len(whole) - 600]:
        (tmp_path / "cut.dcm").write_bytes(whole[:length])
        with pytest.raises(UserError):
            image(tmp_path / "cut.dcm")


def test_headers_that_promise_too_much_are_refused(tmp_path: Path) -> None:
    large = altered("MR_small_RLE.dcm", tmp_path / "large.dcm", Rows=65535, Columns=65535)
    assert fault(large).startswith("has 65535x65535 pixels and would take 103.08 GB of memory, more than the 0.9 GB")
    many = altered("rtdose.dcm", tmp_path / "many.dcm", NumberOfFrames=2_000_000_000)
    assert "fewer pixels" in fault(many, 1_999_999_999, window=(0, 1))


def test_without_a_window_the_line_says_what_to_write() -> None:
    """CT_small runs from 128 - 1024 to 2191 - 1024."""
    text = fault(dicom("CT_small.dcm"))
    assert text.startswith("has no window: nothing says which of its values become black and white; write one for all")
    assert "its values run from -896 to 1167" in text
    low, high = map(float, re.findall(r"dataset\.window: \[(\S+), (\S+)\]", text)[0])
    np.testing.assert_allclose((low, high), np.percentile(stored("CT_small.dcm", "<i2", 128, 128) - 1024, (1, 99)))


def test_frames_that_no_row_names(tmp_path: Path) -> None:
    several = dicom("rtdose.dcm")
    assert fault(several, window=(0, 1)).startswith("has 15 frames, and no row says which; name one in its path, such")
    assert fault(several, 16, window=(0, 1)) == "has 15 frames, and no frame 16; write #1 to #15"
    assert "has 1 frame, and so no neighbours" in fault(dicom("MR_small.dcm"), neighbours=True)


def test_a_number_behind_a_path_names_a_frame_unless_a_file_has_that_name(tmp_path: Path) -> None:
    (tmp_path / "tile#3").write_bytes(b"")
    assert located(tmp_path, "a/cine.dcm#12") == (tmp_path / "a/cine.dcm", 12)
    assert located(tmp_path, "tile#3") == (tmp_path / "tile#3", None)
    assert located(tmp_path, "a#b.png") == (tmp_path / "a#b.png", None)


def test_scans_are_known_by_ending_or_mark(tmp_path: Path) -> None:
    for name in ("a.dcm", "a.DICOM", "a.nii", "A.NII.GZ"):
        assert is_scan(tmp_path / name)
    for name in ("IM1", "IM2.1.840"):
        (tmp_path / name).write_bytes(bytes(128) + b"DICM")
        assert is_scan(tmp_path / name)
    (tmp_path / "note").write_text("no image")
    assert not any(is_scan(tmp_path / name) for name in ("note", "lost", "a.png", "a.nii.txt"))


# ---- what a header may say


def test_a_burnt_in_name_is_known_by_its_tag(tmp_path: Path) -> None:
    for value, known in (("YES", True), ("NO", False)):
        made = altered("MR_small.dcm", tmp_path / f"{value}.dcm", BurnedInAnnotation=value)
        assert DicomFile.opened(made, REMEDY).burnt_in is known
    assert not DicomFile.opened(dicom("MR_small.dcm"), REMEDY).burnt_in


def test_pydicom_warns_of_no_value_that_it_reads(tmp_path: Path) -> None:
    """Its warnings repeat values."""
    made = altered("MR_small.dcm", tmp_path / "odd.dcm", BurnedInAnnotation="NO")
    data = made.read_bytes()
    made.write_bytes(data.replace(b"CS\x02\x00NO", b"CS\x02\x00n?"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DicomFile.opened(made, REMEDY)


def test_values_without_numbers_become_black() -> None:
    values = np.array([np.nan, -np.inf, np.inf, 0.0, 0.5, 1.0])
    assert in_window(values, (0, 1)).tolist() == [0, 0, 255, 0, 128, 255]
