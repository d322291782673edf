"""Image files: which files are images and scans, reading them as arrays, and writing masks and overlays as PNG.

A change here, unlike elsewhere in this folder, counts as a change of the code that uses it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from ..core.errors import UserError
from ..core.spelling import counted
from .dicom import DicomFile
from .nifti import NiftiVolume
from .scan import ALIKE, Percentiles, Reading, Scan, Window, in_window, require_memory, window_remedy
from .text import irregular, require_regular

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

TWELVE_BITS = 4096
"""The number of values that 12 bits hold."""

PIXEL_BYTES = 14
"""Bytes of memory that a pixel takes at most: 4 as Pillow stores it, 4 as RGB, and twice 3 as an array."""
INSIDE = ("BLP", "ICNS", "ICO")
"""Formats, by Pillow's names, that are not read: they hold an image of another format, which has its own size."""
CUT_FIRST = "cut it into patches first: fedshift patches"
"""Remedy for an image that is too large to be read at once."""

DAMAGE = (OSError, SyntaxError, TypeError, ValueError, RuntimeError, struct.error)
"""Classes of errors that Pillow raises for a damaged image, beside its own class."""

ANEW = "obtain the archive again"
"""Remedy for a damaged image of a published archive."""
PLAIN = (".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Endings by which images in a folder are recognised; a table may list any format that Pillow reads."""
DICOM = (".dcm", ".dicom")
"""Usual endings of DICOM files, many of which have none."""
OTHER_VOLUMES = {
    **dict.fromkeys((".mhd", ".mha"), "a MetaImage"),
    **dict.fromkeys((".nrrd", ".nhdr"), "an NRRD file"),
    **dict.fromkeys((".mgh", ".mgz"), "an MGH volume of FreeSurfer"),
    **dict.fromkeys((".img", ".hdr"), "one of a pair of files (Analyze, NIfTI)"),
    ".mnc": "a MINC volume",
}
"""Endings of files with volumes in formats that are not read, and what messages call such a file."""
TO_NIFTI = "convert it to NIfTI (.nii.gz) first, such as with SimpleITK, mri_convert or nibabel"
"""Remedy for a volume in a format that is not read, such as MetaImage."""
PHOTOMETRIC, BITS_PER_SAMPLE, SAMPLE_FORMAT = 262, 258, 339
"""Numbers of the TIFF tags PhotometricInterpretation, BitsPerSample and SampleFormat."""
WHITE_IS_ZERO = 0
"""The value of the tag PHOTOMETRIC in an image whose smallest value is white."""
TO_PNG = "convert it to PNG first, such as with DCMTK: dcmj2pnm --write-png --min-max-window scan.dcm scan.png"
"""Remedy for a DICOM file in a place where only common image formats are read."""


def read_image(
    path: Path,
    *,
    own: bool = False,
    remedy: str = ANEW,
    window: Window | Percentiles | None = None,
    page: int | None = None,
) -> np.ndarray:
    """Return an image file of any format that Pillow reads as an array (height, width, 3), uint8.

    Grey images with 16 or 32 bits a pixel, floats among them, are scaled by the `window`: the values that become black
    and white, or percentiles of the image. Without one, the upper 8 bits of 16 are kept, and 32 bits are refused.
    Raises UserError that names the file, with `remedy` as its advice if the file is damaged or missing.

    `own` marks a user's image, in contrast to one of a published dataset. Only then 32 bits are read, the image is
    turned as its EXIF orientation says, colours of 16 bits are scaled by the window, too, and `page` says which page or
    frame of several is read, from 1. What is probably a mistake is refused: 16-bit values that are all below 4096 (and
    not all 0) without a window, since the upper 8 bits hold little of them; transparent pixels; and pixels that are not
    square.
    """
    with opened_image(path, remedy, own=own) as opened:
        deep = opened.mode in ("I", "F")
        if deep and not own:
            raise ValueError("32 bits a pixel: bring it to 8 or 16")
        if own:
            require_page(path, opened, page)
            wide = _width_to_height(path, opened)
            if abs(wide - 1) > ALIKE:
                problem = f"says that its pixels are not square: {wide:.3g} times as wide as high"
                raise UserError(path, problem, "scale it until they are, or remove that entry, if it is wrong")
            if stored := _raw_mode(opened):
                return _eight_bits(path, _deep_colours(path, opened, stored, page), window)
            ImageOps.exif_transpose(opened, in_place=True)
        if deep or opened.mode.startswith("I;16"):
            tags: Any = getattr(opened, "tag_v2", {})  # of a TIFF
            values = np.asarray(opened)
            whole = opened.mode == "I" and tags.get(BITS_PER_SAMPLE) == (32,)
            if whole and tags.get(SAMPLE_FORMAT, (1,)) == (1,):
                # Pillow reads whole numbers of 32 bits as if they had a sign
                values = values.view("uint32")
            shades = _eight_bits(path, values, window, wide=deep, own=own)
            if own and tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:
                # Pillow turns such images of up to 8 bits itself
                shades = 255 - shades
            return np.repeat(shades[..., None], 3, axis=2)
        if own:
            require_opaque(path, opened)
        # without the copy that `convert` makes of what is RGB already
        return np.asarray(opened if opened.mode == "RGB" else opened.convert("RGB"))


@contextlib.contextmanager
def opened_image(path: Path, remedy: str, *, own: bool = True, kind: str = "image") -> Iterator[ImageFile]:
    """Open an image file with Pillow for the block. Raises UserError if it is missing, damaged or too large for memory.

    Damage counts also if it shows only inside the block. `kind` is what messages call the file, `remedy` their advice,
    and `own` says that it is a user's image.
    """
    try:
        # the limit below is stricter than Pillow's, and says what to do
        warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
        require_regular(path)
        Image.preinit()  # the usual formats are tried first
        Image.init()
        with Image.open(path, formats=[name for name in Image.ID if name not in INSIDE]) as opened:
            if opened.format == "EPS":
                raise ValueError("PostScript, which would be run as a program: convert it")
            size = f"{opened.width}x{opened.height} pixels"
            require_memory(path, size, PIXEL_BYTES * opened.width * opened.height, CUT_FIRST)
            yield opened
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(path, f"no such {kind}", remedy) from None
    except Image.DecompressionBombError as error:
        problem = f"has too many pixels to be read at once, as a whole slide has ({error})"
        raise UserError(path, problem, CUT_FIRST) from None
    except DAMAGE as error:
        raise _damaged(path, error, remedy, own, kind) from None


def _damaged(path: Path, error: Exception, remedy: str, own: bool, kind: str) -> UserError:
    """Return the error for a file that Pillow cannot read: it is DICOM, empty, a volume, or damaged.

    `error` is Pillow's own, and `kind` what messages call the file.
    """
    if own and is_dicom(path):
        return UserError(path, "is a DICOM file with the ending of another format", "let its name end in .dcm")
    if is_dicom(path):
        return UserError(path, "is a DICOM file, which is not read here", TO_PNG)
    if path.is_file() and not path.stat().st_size:
        return UserError(path, "the file is empty", remedy)
    if (name := OTHER_VOLUMES.get(path.suffix.lower())) and path.is_file():
        return UserError(path, f"is {name}, which is not read", TO_NIFTI)
    # the message begins with the path, so Pillow's words need only the name
    words = str(error).replace(str(path), path.name)
    return UserError(path, f"cannot be read as {'an' if kind == 'image' else 'a'} {kind} ({words})", remedy)


def require_page(path: Path, opened: ImageFile, named: int | None) -> None:
    """Move an open image file to the page or frame `named` in a row of a table, from 1.

    Raises UserError if the file has no such page, and if it has several and the row names none. A photograph with a
    preview or a depth map behind it (MPO) counts as one page.
    """
    pages = 1 if opened.format == "MPO" else getattr(opened, "n_frames", 1)
    several = counted(pages, "page")
    if named is None and pages > 1:
        remedy = f"name one in its path, such as {path.name}#1 for the first"
        raise UserError(path, f"has {several}, and no row says which", remedy)
    if named is not None and not 1 <= named <= pages:
        raise UserError(path, f"has {several}, and no page {named}", f"write #1 to #{pages}")
    if pages > 1:
        opened.seek((named or 1) - 1)


def require_opaque(path: Path, image: Image.Image) -> None:
    """Raise UserError if an image has transparent pixels, since no file says what is behind them."""
    if image.has_transparency_data:
        share = float((np.asarray(image.convert("RGBA"))[..., 3] < 255).mean())
        if share:
            problem = f"has transparent pixels ({max(100 * share, 0.1):.1f} %), and nothing says what is behind them"
            raise UserError(path, problem, "save it without transparency, on one colour for all sites")


def _width_to_height(path: Path, opened: ImageFile) -> float:
    """Return the width of a pixel divided by its height, from the resolution in the file; 1 if it states none."""
    if opened.format == "GIF":
        with path.open("rb") as file:
            code = file.read(13)[12]
        return (code + 15) / 64 if code else 1
    found = (opened.info.get(key) for key in ("dpi", "aspect", "resolution", "jfif_density"))
    density = next((pair for pair in found if isinstance(pair, tuple) and len(pair) == 2), (1, 1))
    with contextlib.suppress(ZeroDivisionError, TypeError, ValueError):
        across, down = map(float, density)
        # 0 and NaN stand for a density that is not known
        if across > 0 and down > 0:
            return down / across
    return 1


def _raw_mode(opened: ImageFile) -> str:
    """Return Pillow's raw mode, such as `RGB;16L`, of an open file whose colours have 16 bits; "" for others."""
    args = opened.tile[0].args if getattr(opened, "tile", ()) else ""
    stored = str(args[0] if isinstance(args, tuple) and args else args)
    return stored if ";16" in stored and not stored.startswith("I;") else ""


def _deep_colours(path: Path, opened: ImageFile, stored: str, page: int | None) -> np.ndarray:
    """Return colours of 16 bits, (height, width, 3), uint16, of an open image that is `stored` in a raw mode of Pillow.

    Pillow decodes 8 of the 16 bits: the file is decoded twice, once with its two bytes of a value swapped. `page` is
    that of the image, from 1. Raises UserError for other colours than RGB, and for transparent pixels.
    """
    if not stored.startswith("RGB"):
        problem = f"has 16 bits a colour, and the colours {stored.partition(';')[0]}, of which 16 bits are not read"
        raise UserError(path, problem, "save it in grey or RGB without transparency, or with 8 bits")
    with Image.open(path) as second:
        if page:
            second.seek(page - 1)
        swapped = stored[:-1] + {"L": "B", "B": "L", "N": "B"}[stored[-1]]
        second.tile = [
            part._replace(args=(swapped, *part.args[1:]) if isinstance(part.args, tuple) else swapped)
            for part in second.tile
        ]
        require_opaque(path, opened)
        parts = [np.asarray(ImageOps.exif_transpose(half))[..., :3].astype(np.uint16) for half in (opened, second)]
    return (parts[0] << 8) | parts[1]


def _eight_bits(
    path: Path, values: np.ndarray, window: Window | Percentiles | None, *, wide: bool = False, own: bool = True
) -> np.ndarray:
    """Return values of 16 or, if they are `wide`, of 32 bits as uint8: scaled by the window, or else the upper 8 of 16.

    Raises UserError for `wide` values without a window, and for a user's `own` image that would be almost black.
    """
    if window is not None:
        return in_window(values, window.window(values) if isinstance(window, Percentiles) else window)
    if wide:
        raise UserError(path, "has 32 bits a pixel, and no window", window_remedy(values))
    if own and 0 < (most := int(values.max())) < TWELVE_BITS:  # as in many exports of X-ray and CT
        bits = "16 bits a pixel" if values.ndim == 2 else "16 bits a colour"
        problem = f"has {bits}, but its brightest is {most} of 65535: it would be almost black"
        remedy = "rescale it to the full range of 16 bits, or export it with 8, or give a window"
        raise UserError(path, problem, f"{remedy}: {window_remedy(values)}")
    # Pillow's own conversion cuts values above 255, and so makes all but the darkest pixels white
    return (values >> 8).astype(np.uint8)


def shorter_side(path: Path, page: int | None = None) -> int:
    """Return the pixels along the shorter side of an image (or its `page`, from 1), by its header; 0 if unreadable."""
    return min(_size(path, page))


def longer_side(path: Path) -> int:
    """Return the pixels along the longer side of an image, from its header alone; 0 if that cannot be read."""
    return max(_size(path))


def _size(path: Path, page: int | None = None) -> tuple[int, int]:
    try:
        with Image.open(path) as image:
            image.seek((page or 1) - 1)
            return image.size
    except (*DAMAGE, Image.DecompressionBombError):
        return 0, 0


def is_dicom(path: Path) -> bool:
    """Return whether a file is DICOM, by its ending or by the mark after its preamble of 128 bytes."""
    if path.suffix.lower() in DICOM:
        return True
    if irregular(path):
        return False
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


NIFTI = (".nii", ".nii.gz")
"""Endings of NIfTI files that hold header and voxels in one file."""
FRAME = re.compile(r"(.+)#(\d{1,9})")
"""Pattern of a path with the number of a frame behind it, such as `cine.dcm#12`."""


def is_scan(path: Path) -> bool:
    """Return whether a file is a scan: NIfTI by its ending, or DICOM by its ending or the mark in its content."""
    return is_nifti(path.name) or (not path.name.lower().endswith(PLAIN) and is_dicom(path))


def is_nifti(name: str) -> bool:
    """Return whether a file name has the ending of NIfTI: .nii or .nii.gz."""
    return name.lower().endswith(NIFTI)


def open_scan(path: Path, reading: Reading, remedy: str) -> Scan:
    """Open the NIfTI volume or the DICOM image at `path` and read its header, to be shown as `reading` says.

    Raises UserError, with `remedy` as its advice, for a damaged file.
    """
    if is_nifti(path.name):
        return NiftiVolume.opened(path, reading, remedy)
    return DicomFile.opened(path, remedy)


def located(folder: Path, cell: str) -> tuple[Path, int | None]:
    """Return the file that a table's cell, such as `cine.dcm#12`, names below `folder`, and the frame's number or None.

    A cell that is as a whole the name of an existing file names no frame.
    """
    named = FRAME.fullmatch(cell) if "#" in cell else None
    if named is None or (folder / cell).is_file():
        return folder / cell, None
    return folder / named[1], int(named[2])


def encoded(mask: np.ndarray) -> bytes:
    """Return the bytes of a PNG file of an image (height, width, 3), uint8, or of a mask (height, width), uint8.

    The classes of a mask become its grey values.
    """
    out = io.BytesIO()
    Image.fromarray(mask).save(out, "PNG")
    return out.getvalue()


def decoded(content: bytes, shape: tuple[int, int], where: object) -> np.ndarray:
    """Return the mask (height, width), uint8, from the bytes of a PNG file that `encoded` returned.

    `shape` is its height and width. Raises UserError, which names `where` the bytes come from, for any other content.
    """
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            # the header alone says the size: what unpacks to more than the image is never read
            if image.size != shape[::-1] or image.mode != "L":
                raise ValueError(f"{image.size[0]}x{image.size[1]} pixels of mode {image.mode}")
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError, TypeError) as error:
        remedy = "remove it; the same call of Snakemake makes it again"
        raise UserError(where, f"holds a mask that cannot be read ({error})", remedy) from None


COLOURS = {"orange": (207, 92, 0), "blue": (31, 127, 196), "green": (0, 144, 106), "purple": (181, 85, 143)}
"""Colours (RGB) for the outlines of structures, in turn: those of the page's figures, which colour-blind readers can
distinguish."""
LARGEST = 1024
"""The most pixels along a side of an overlay, which is only looked at; masks are written in full size."""
SIDE_OF_A_LINE = 400
"""Pixels along the longer side of an overlay for each pixel of its lines' width."""


def overlay(pixels: np.ndarray, structures: np.ndarray) -> np.ndarray:
    """Return an image (height, width, 3), uint8, in which the edge of each structure is coloured.

    `pixels` is the image, of the same shape and type; `structures` (structures, height, width) are masks, bool. An edge
    lies within its structure, and nothing outside of the image belongs to a structure. Images that are larger than
    `LARGEST` are made smaller first.
    """
    from scipy.ndimage import binary_erosion

    picture = Image.fromarray(pixels)
    picture.thumbnail((LARGEST, LARGEST), Image.Resampling.BOX)
    width = max(1, round(max(picture.size) / SIDE_OF_A_LINE))
    painted = np.array(picture)
    for mask, colour in zip(structures, itertools.cycle(COLOURS.values())):
        nearest = Image.fromarray(mask.astype(np.uint8)).resize(picture.size, Image.Resampling.NEAREST)
        inside = np.asarray(nearest) > 0
        painted[inside & ~binary_erosion(inside, iterations=width)] = colour
    return painted
