"""Every format that is read, by every property that a file may have: the right image, or one line that says why not.

The expected pixels are those that were written, by the definition of the property; no cell is taken from a result.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_files import classes, dicom, nifti, png16, shown, tiff
from markdown_tables import tables
from PIL import Image
from tutorial import ROOT

from fedshift.core.errors import UserError

GREY = np.arange(0, 240, 15, dtype=np.uint8).reshape(4, 4)
"""Grey values 0, 15, ... of an image that is not symmetric."""
DEEP = GREY.astype(np.uint16) * 257
"""The same in 16 bits: 255 becomes 65535."""
TWELVE = GREY.astype(np.uint16) * 16
COLOUR = np.stack([GREY, 255 - GREY, GREY.T], axis=-1)
MASK = (GREY > 100).astype(np.uint8)

RIGHT = "right"


@dataclass(frozen=True)
class Cell:
    """A file, how it is read, and what is right: the image (height, width, 3), or the words of the line."""

    formats: str
    property: str
    write: Callable[[Path], Any]
    right: np.ndarray | str
    ending: str
    reading: dict[str, Any]
    name: str = ""


def saved(pixels: np.ndarray | Image.Image, **options: Any) -> Callable[[Path], Any]:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    return lambda path: image.save(path, **options)


def pages(*pixels: np.ndarray, **options: Any) -> Callable[[Path], Any]:
    first, *others = map(Image.fromarray, pixels)
    return lambda path: first.save(path, save_all=True, append_images=others, **options)


def content(made: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(made)


def encoded(pixels: np.ndarray, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def huge(path: Path) -> None:
    """Write 400 million black pixels, which take 400 MB while they are made."""
    Image.new("1", (20000, 20000)).save(path)


def rgb(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[..., None], 3, axis=2)


CELLS: list[Cell] = []


def cell(formats: str, title: str, write: Any, right: Any, ending: str = "", name: str = "", **reading: Any) -> None:
    CELLS.append(Cell(formats, title, write, right, ending or f".{formats.lower()}", reading, name))


ENDINGS = {"PNG": ".png", "JPEG": ".jpg", "TIFF": ".tif", "GIF": ".gif", "WebP": ".webp", "BMP": ".bmp"}
LOSSLESS = {"WebP": {"lossless": True}}
SEVERAL = "has 2 pages, and no row says which"

# Every format alike.
for kind, end in ENDINGS.items():
    pixels = np.full((4, 4, 3), 128, np.uint8) if kind in ("JPEG", "GIF") else COLOUR
    cell(kind, "8 bits", saved(pixels, **LOSSLESS.get(kind, {})), pixels, end)
    cell(kind, "empty", content(b""), "the file is empty", end)
    big = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    cell(kind, "truncated", content(encoded(big, kind)[:300]), "cannot be read as an image", end)
    cell(kind, "wrong ending", content(encoded(pixels, kind if kind != "WebP" else "PNG")), pixels, ".png")
    cell(kind, "DICOM with this ending", lambda path: dicom(path, GREY), "is a DICOM file with the ending", end)
    cell(kind, "huge", huge if kind in ("PNG", "TIFF") else None, "too many pixels", end)
for kind in ("PNG", "TIFF", "GIF", "WebP"):
    two = pages(np.zeros((4, 4), np.uint8), GREY, **LOSSLESS.get(kind, {}))
    other = rgb(GREY)
    cell(kind, "several pages", two, SEVERAL, ENDINGS[kind])
    cell(kind, "several pages, one named", two, other, ENDINGS[kind], name="#2")
    cell(
        kind, "several pages, one named that is not there", two, "has 2 pages, and no page 3", ENDINGS[kind], name="#3"
    )
cell("JPEG", "several pages", pages(COLOUR, COLOUR, format="MPO"), None, ".jpg")

# Bits.
cell("PNG", "16 bits of 16", content(png16(DEEP[..., None], 0)), rgb(GREY), ".png")
cell("PNG", "12 bits of 16", content(png16(TWELVE[..., None], 0)), "brightest is 3600 of 65535", ".png")
cell("PNG", "12 bits of 16, a window", content(png16(TWELVE[..., None], 0)), rgb(GREY), ".png", window=(0, 4080))
cell("PNG", "colours, 16 bits of 16", content(png16(COLOUR.astype(np.uint16) * 257, 2)), COLOUR, ".png")
cell("PNG", "colours, 12 bits of 16", content(png16(COLOUR.astype(np.uint16) * 16, 2)), "16 bits a colour", ".png")
cell(
    "PNG",
    "colours, 12 bits of 16, a window",
    content(png16(COLOUR.astype(np.uint16) * 16, 2)),
    COLOUR,
    ".png",
    window=(0, 4080),
)
cell("PNG", "1 bit", saved(Image.fromarray(GREY > 100)), rgb(255 * MASK), ".png")
for order in "<>":
    title = "big endian" if order == ">" else "little endian"
    cell("TIFF", f"16 bits, {title}", content(tiff(DEEP, order)), rgb(GREY), ".tif")
    cell("TIFF", f"colours of 16 bits, {title}", content(tiff(COLOUR.astype(np.uint16) * 257, order)), COLOUR, ".tif")
    cell(
        "TIFF",
        f"colours of 12 in 16 bits, {title}",
        content(tiff(COLOUR.astype(np.uint16) * 16, order)),
        "16 bits a colour",
        ".tif",
    )
    cell(
        "TIFF",
        f"32 bits with a sign, {title}",
        content(tiff(GREY.astype(np.int32) - 100, order)),
        rgb(GREY),
        ".tif",
        window=(-100, 155),
    )
    cell(
        "TIFF",
        f"16 bits with a sign, {title}",
        content(tiff(GREY.astype(np.int16) - 100, order)),
        rgb(GREY),
        ".tif",
        window=(-100, 155),
    )
    cell("TIFF", f"floats, {title}", content(tiff(GREY.astype(np.float32), order)), rgb(GREY), ".tif", window=(0, 255))
large = (GREY.astype(np.uint32) + 2**31).astype(np.uint32)
cell("TIFF", "32 bits without a sign", content(tiff(large, "<")), rgb(GREY), ".tif", window=(2**31, 2**31 + 255))
cell("TIFF", "32 bits without a window", content(tiff(large, "<")), "has 32 bits a pixel, and no window", ".tif")
cell("TIFF", "white is zero, 8 bits", content(tiff(255 - GREY, "<", white_is_zero=True)), rgb(GREY), ".tif")
cell("TIFF", "white is zero, 16 bits", content(tiff(65535 - DEEP, "<", white_is_zero=True)), rgb(GREY), ".tif")
cell(
    "TIFF",
    "percentiles",
    content(tiff(GREY.astype(np.uint16) * 5, "<")),
    rgb(np.rint(GREY / 225 * 255).astype(np.uint8)),
    ".tif",
    window="0-100",
)

# Colour spaces, alpha and palettes.
opaque, clear = (np.dstack([COLOUR, np.full((4, 4), a, np.uint8)]) for a in (255, 128))
for kind in ("PNG", "TIFF", "WebP"):
    cell(kind, "alpha, opaque", saved(opaque, **LOSSLESS.get(kind, {})), COLOUR, ENDINGS[kind])
    cell(
        kind,
        "alpha, transparent",
        saved(clear, **LOSSLESS.get(kind, {})),
        "has transparent pixels (100.0 %)",
        ENDINGS[kind],
    )
palette = Image.fromarray(COLOUR).quantize(16)
for kind in ("PNG", "TIFF", "GIF", "BMP"):
    cell(kind, "palette", saved(palette), np.asarray(palette.convert("RGB")), ENDINGS[kind])
for kind in ("PNG", "GIF"):
    cell(kind, "palette, transparent", saved(palette, transparency=0), "has transparent pixels", ENDINGS[kind])
cell(
    "PNG",
    "grey with alpha of 16 bits",
    content(png16(np.dstack([DEEP, DEEP]), 4)),
    "of which 16 bits are not read",
    ".png",
)
cell(
    "JPEG",
    "CMYK",
    saved(Image.new("CMYK", (4, 4), (0, 0, 0, 127)), quality=100),
    np.full((4, 4, 3), 128, np.uint8),
    ".jpg",
)
cell("TIFF", "CMYK", saved(Image.new("CMYK", (4, 4), (0, 0, 0, 127))), np.full((4, 4, 3), 128, np.uint8), ".tif")
# white: L* is 100, and a* and b* are 0, which is stored as 128
cell("TIFF", "LAB", saved(Image.new("LAB", (4, 4), (255, 128, 128))), np.full((4, 4, 3), 255, np.uint8), ".tif")

# Orientation tags, and pixels that are not square.
turned = Image.Exif()
turned[0x0112] = 6  # the stored image is turned by 90 degrees clockwise when it is shown
for kind in ("PNG", "TIFF", "WebP"):
    cell(kind, "orientation", saved(COLOUR, exif=turned, **LOSSLESS.get(kind, {})), np.rot90(COLOUR, -1), ENDINGS[kind])
half = np.zeros((8, 8, 3), np.uint8)
half[:, :4] = 255
cell("JPEG", "orientation", saved(half, exif=turned, quality=100), np.rot90(half, -1), ".jpg")
for kind in ("PNG", "JPEG", "TIFF", "BMP"):
    cell(
        kind,
        "pixels not square",
        saved(COLOUR, dpi=(100, 200)),
        "are not square: 2 times as wide as high",
        ENDINGS[kind],
    )
gif = bytearray(encoded(GREY, "GIF"))
gif[12] = 113  # PS: (113 + 15) / 64 = 2 times as wide as high
cell("GIF", "pixels not square", content(bytes(gif)), "are not square: 2 times as wide as high", ".gif")

# DICOM.
CENTRE = {"WindowCenter": 128, "WindowWidth": 256}
ramp = np.linspace(0, 4095, 16).round().astype(np.uint16).reshape(4, 4)
cell("DICOM", "8 bits", lambda p: dicom(p, GREY), rgb(GREY), ".dcm")
cell(
    "DICOM",
    "several pages",
    lambda p: dicom(p, np.stack([GREY, GREY]), NumberOfFrames=2),
    "has 2 frames, and no row says which",
    ".dcm",
)
cell(
    "DICOM",
    "several pages, one named",
    lambda p: dicom(p, np.stack([0 * GREY, GREY]), NumberOfFrames=2),
    rgb(GREY),
    ".dcm",
    name="#2",
)
cell("DICOM", "12 bits of 16", lambda p: dicom(p, TWELVE, BitsStored=12), "has no window", ".dcm")
cell("DICOM", "12 bits of 16, a window", lambda p: dicom(p, TWELVE, BitsStored=12), rgb(GREY), ".dcm", window=(0, 4080))
cell("DICOM", "colours", lambda p: dicom(p, COLOUR), COLOUR, ".dcm")
cell(
    "DICOM", "colours, 12 bits of 16", lambda p: dicom(p, COLOUR.astype(np.uint16) * 16, BitsStored=12), COLOUR, ".dcm"
)
cell("DICOM", "big endian", lambda p: dicom(p, DEEP, big_endian=True), rgb(GREY), ".dcm", window=(0, 65535))
cell(
    "DICOM", "white is zero", lambda p: dicom(p, 255 - GREY, PhotometricInterpretation="MONOCHROME1"), rgb(GREY), ".dcm"
)
cell(
    "DICOM",
    "VOI LUT",
    lambda p: dicom(p, ramp, BitsStored=12, voi_lut=(np.linspace(0, 1, 4096) ** 3 * 4095).astype("<u2")),
    rgb(np.rint(((np.linspace(0, 1, 4096) ** 3 * 4095).astype(int) / 4095)[ramp] * 255).astype(np.uint8)),
    ".dcm",
)
cell(
    "DICOM",
    "VOI LUT beside a window",
    lambda p: dicom(p, ramp, BitsStored=12, voi_lut=np.arange(4096).astype("<u2"), WindowCenter=1, WindowWidth=1),
    rgb(np.rint(ramp / 4095 * 255).astype(np.uint8)),
    ".dcm",
)
# PS3.3, C.11.2.1.3.1: y = range / (1 + exp(-4 (x - c) / w))
cell(
    "DICOM",
    "sigmoid",
    lambda p: dicom(p, ramp, BitsStored=12, VOILUTFunction="SIGMOID", WindowCenter=2048, WindowWidth=4096),
    rgb(np.rint(255 / (1 + np.exp(-4 * (ramp.astype(float) - 2048) / 4096))).astype(np.uint8)),
    ".dcm",
)
padded = GREY.copy()
padded[0] = 200
cell(
    "DICOM",
    "padding",
    lambda p: dicom(p, padded, PixelPaddingValue=200),
    rgb(np.where(padded == 200, 0, padded).astype(np.uint8)),
    ".dcm",
)
cell(
    "DICOM",
    "padding, white is zero",
    lambda p: dicom(p, padded, PixelPaddingValue=200, PhotometricInterpretation="MONOCHROME1"),
    rgb(np.where(padded == 200, 0, 255 - padded).astype(np.uint8)),
    ".dcm",
)
cell(
    "DICOM",
    "slope 0",
    lambda p: dicom(p, GREY, RescaleSlope=0, RescaleIntercept=0, **CENTRE),
    "RescaleSlope of 0",
    ".dcm",
)
wide = np.repeat(GREY, 2, axis=1)
for key in ("PixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio", "ImagerPixelSpacing"):
    # twice as high as wide: rows are doubled, and the shape becomes that of a square
    cell("DICOM", f"pixels not square, {key}", lambda p, key=key: dicom(p, wide, **{key: ["2", "1"]}), (8, 8), ".dcm")
cell("DICOM", "empty", content(b""), "the file is empty", ".dcm")
cell("DICOM", "truncated", lambda p: dicom(p, big, cut=2000), "fewer pixels than its header says", ".dcm")
cell("DICOM", "wrong ending", saved(COLOUR, format="PNG"), "is not DICOM", ".dcm")
cell("DICOM", "huge", lambda p: dicom(p, GREY, Rows=60000, Columns=60000), "would take 86.40 GB", ".dcm")

# NIfTI.
up = np.rot90(GREY, -1)[:, :, None]  # a slice is shown with the front up and the right of the patient on the left
first_right = np.flip(np.flip(GREY.T, 0), 1)
cell("NIfTI", "8 bits", lambda p: nifti(p, GREY[:, :, None]), rgb(np.flip(np.flip(GREY.T, 0), 1)), ".nii")
cell(
    "NIfTI", "several pages", lambda p: nifti(p, np.dstack([GREY, GREY])), "has 2 frames, and no row says which", ".nii"
)
cell(
    "NIfTI",
    "several pages, one named",
    lambda p: nifti(p, np.dstack([0 * GREY, GREY])),
    rgb(first_right),
    ".nii",
    name="#2",
)
cell("NIfTI", "16 bits", lambda p: nifti(p, DEEP[:, :, None].astype(np.int32)), "has no window", ".nii")
cell("NIfTI", "16 bits, a window", lambda p: nifti(p, DEEP[:, :, None]), rgb(first_right), ".nii", window=(0, 65535))
cell(
    "NIfTI",
    "big endian",
    lambda p: nifti(p, DEEP[:, :, None], big_endian=True),
    rgb(first_right),
    ".nii",
    window=(0, 65535),
)
cell("NIfTI", "slope", lambda p: nifti(p, GREY[:, :, None], slope=2.0), rgb(first_right), ".nii", window=(0, 510))
cell(
    "NIfTI",
    "percentiles",
    lambda p: nifti(p, 9 * np.dstack([DEEP // 257, 0 * DEEP])),
    rgb(np.rint(first_right / 225 * 255).astype(np.uint8)),
    ".nii",
    name="#1",
    window="0-100",
)
cell(
    "NIfTI",
    "colours",
    lambda p: nifti(p, np.zeros((4, 4, 1), [("R", "u1"), ("G", "u1"), ("B", "u1")])),
    "holds colours",
    ".nii",
)
cell("NIfTI", "several volumes", lambda p: nifti(p, np.zeros((4, 4, 1, 3), np.uint8)), "has 4 dimensions", ".nii")
cell(
    "NIfTI",
    "pixels not square",
    lambda p: nifti(p, np.repeat(GREY, 2, 0)[:, :, None], affine=np.diag([1, 2, 1, 1.0])),
    (8, 8),
    ".nii",
)
sheared = np.eye(4)
sheared[0, 1] = 0.5
cell("NIfTI", "sheared", lambda p: nifti(p, GREY[:, :, None], affine=sheared), "degrees off right angles", ".nii")
cell(
    "NIfTI",
    "orientation",
    lambda p: nifti(p, np.flip(GREY, 0)[:, :, None], affine=np.diag([-1, 1, 1, 1.0])),
    rgb(first_right),
    ".nii",
)
cell("NIfTI", "empty", content(b""), "the file is empty", ".nii")
cell(
    "NIfTI",
    "truncated",
    lambda p: nifti(p, np.zeros((64, 64, 9), np.uint8), cut=9000),
    "fewer pixels than its header",
    ".nii",
    name="#5",
)
cell("NIfTI", "wrong ending", saved(COLOUR, format="PNG"), "is not NIfTI", ".nii")
cell(
    "NIfTI",
    "packed under .nii",
    lambda p: nifti(p, GREY[:, :, None], packed=True),
    "is packed, and its name says otherwise",
    ".nii",
)
cell(
    "NIfTI",
    "unpacked under .nii.gz",
    lambda p: nifti(p, GREY[:, :, None]),
    "is not packed, and its name says",
    ".nii.gz",
)
cell(
    "NIfTI",
    "huge",
    lambda p: nifti(p, GREY[:, :, None], claims=(30000, 30000, 1)),
    "has fewer pixels than its header says",
    ".nii",
)
for end, words in {
    ".mhd": "a MetaImage",
    ".nrrd": "an NRRD file",
    ".mgz": "an MGH volume",
    ".img": "one of a pair",
}.items():
    cell("other", f"volume {end}", content(b"NRRD0004 or others"), f"is {words}", end)


@dataclass(frozen=True)
class MaskCell:
    """A mask, and what is right: the classes of its pixels, or the words of the line."""

    formats: str
    property: str
    write: Callable[[Path], Any]
    right: np.ndarray | str
    ending: str
    name: str = ""
    values: Mapping[int | str, int | str] = field(default_factory=lambda: {0: 0, 1: 1})


MASKS: list[MaskCell] = []


def mask(kind: str, title: str, write: Any, right: np.ndarray | str = MASK, **options: Any) -> None:
    MASKS.append(MaskCell(kind, title, write, right, options.pop("ending", ENDINGS.get(kind, ".nii")), **options))


RED = np.where(MASK[..., None], np.uint8([255, 0, 0]), np.uint8([0, 0, 0]))
VOID = MASK.copy()
VOID[0] = 255
for kind in ("PNG", "TIFF", "GIF", "BMP"):
    mask(kind, "8 bits", saved(MASK))
    mask(kind, "palette", saved(Image.fromarray(MASK).convert("P")))
for kind in ("PNG", "TIFF", "WebP", "BMP"):
    colours = {"#000000": 0, "#ff0000": 1}
    mask(kind, "colours", saved(RED, **LOSSLESS.get(kind, {})), values=colours)
for kind in ("PNG", "TIFF", "GIF"):
    two = pages(0 * MASK, MASK)
    mask(kind, "several pages", two, "has 2 pages, and no row says which")
    mask(kind, "several pages, one named", two, MASK, name="#2")
for kind in ("PNG", "TIFF", "BMP"):
    mask(kind, "1 bit", saved(Image.fromarray(MASK > 0)), values={0: 0, 255: 1})
for kind in ("PNG", "TIFF"):
    mask(kind, "16 bits", saved(MASK.astype(np.uint16)))
    mask(kind, "orientation", saved(MASK, exif=turned), np.rot90(MASK, -1))
    mask(kind, "alpha, opaque", saved(np.dstack([RED, 255 + 0 * MASK])), values={"#000000": 0, "#ff0000": 1})
    mask(kind, "alpha, transparent", saved(np.dstack([RED, 9 + 0 * MASK])), "has transparent pixels")
    mask(kind, "a value without a class", saved(2 * MASK), "has values without a class: 2")
    mask(kind, "void", saved(VOID), VOID, values={0: 0, 1: 1, 255: "ignore"})
mask("TIFF", "floats", content(tiff(MASK.astype(np.float32), "<")))
mask("TIFF", "big endian", content(tiff(MASK.astype(np.uint16), ">")))
mask(
    "TIFF", "floats between classes", content(tiff(MASK.astype(np.float32) / 2, "<")), "not whole numbers, such as 0.5"
)
for kind in ENDINGS:
    mask(kind, "empty", content(b""), "the file is empty")
    mask(kind, "truncated", content(encoded(big, kind)[:300]), "cannot be read as a mask")
    mask(kind, "wrong ending", lambda path: dicom(path, MASK), "is a DICOM file with the ending of another format")
    mask(kind, "another size", saved(np.zeros((5, 4), np.uint8)), "has 4x5 pixels, and its image 4x4")
mask("PNG", "huge", huge, "too many pixels")
mask(
    "JPEG",
    "grey values",
    saved(MASK * 200, quality=20),
    "JPEG changes values: save masks as PNG",
    values={0: 0, 200: 1},
)
shown_mask = np.flip(np.flip(MASK.T, 0), 1)
for title, made in {
    "8 bits": lambda p: nifti(p, MASK[:, :, None]),
    "floats": lambda p: nifti(p, MASK[:, :, None].astype(np.float32)),
    "big endian": lambda p: nifti(p, MASK[:, :, None].astype(np.int16), big_endian=True),
    "orientation": lambda p: nifti(p, np.flip(MASK, 0)[:, :, None], affine=np.diag([-1, 1, 1, 1.0])),
}.items():
    mask("NIfTI", title, made, shown_mask)
mask("NIfTI", "several pages", lambda p: nifti(p, np.dstack([MASK, MASK])), "has 2 frames, and no row says which")
mask("NIfTI", "several pages, one named", lambda p: nifti(p, np.dstack([0 * MASK, MASK])), shown_mask, name="#2")
mask(
    "NIfTI", "yes or no for each class", lambda p: nifti(p, np.zeros((4, 4, 1, 2), np.uint8)), "store the number of the"
)
mask("NIfTI", "floats between classes", lambda p: nifti(p, MASK[:, :, None] / np.float32(2)), "not whole numbers")
mask("NIfTI", "empty", content(b""), "the file is empty")
mask("NIfTI", "wrong ending", saved(MASK, format="PNG"), "is not NIfTI")


@pytest.mark.parametrize("one", MASKS, ids=[f"{m.formats}-{m.property}" for m in MASKS])
def test_a_mask_is_right_or_one_line(one: MaskCell, tmp_path: Path) -> None:
    file = tmp_path / f"m{one.ending}"
    one.write(file)
    found: Any
    try:
        found = classes(tmp_path, f"{file.name}{one.name}", dict(one.values))
    except UserError as error:
        found = str(error)
        assert "\n" not in found and file.name in found
    if isinstance(one.right, str):
        assert isinstance(found, str) and one.right in found
    else:
        assert not isinstance(found, str), found
        np.testing.assert_array_equal(found, one.right)


def test_no_cell_of_the_documentation_is_empty() -> None:
    """The table of docs/formats.md has a column for each format of this file, and no cell without a word."""
    ((head, *rows),) = tables((ROOT / "docs" / "formats.md").read_text(encoding="utf-8"))
    assert {"PNG", "JPEG", "TIFF", "GIF", "WebP", "BMP", "DICOM", "NIfTI"} <= set(head)
    assert all(len(row) == len(head) and all(row) for row in (head, *rows))


@pytest.mark.parametrize("one", CELLS, ids=[f"{c.formats}-{c.property}" for c in CELLS])
def test_a_file_is_right_or_one_line(one: Cell, tmp_path: Path) -> None:
    if one.write is None:
        pytest.skip("Pillow writes no such file in a reasonable time")
    file = tmp_path / f"x{one.ending}"
    one.write(file)
    image: Any
    try:
        image = shown(tmp_path, f"{file.name}{one.name}", **one.reading)
    except UserError as error:
        image = str(error)
        assert "\n" not in image and file.name in image
    if isinstance(one.right, str):
        assert isinstance(image, str) and one.right in image
    elif isinstance(one.right, tuple):
        assert image.shape[:2] == one.right
    elif one.right is not None:
        assert not isinstance(image, str), image
        tolerance = 3 if one.ending == ".jpg" else 1 if {"percentiles", "LUT", "LAB"} & {*one.property.split()} else 0
        np.testing.assert_allclose(image.astype(int), one.right.astype(int), atol=tolerance)
    else:
        assert image.shape == COLOUR.shape
