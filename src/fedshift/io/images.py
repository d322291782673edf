"""Image files: which pixels are read from them. A change here counts as a change of the code that uses it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UserError
from .guards import irregular, require_regular
from .scan import Window, in_window, window_remedy

if TYPE_CHECKING:
    import numpy as np

TWELVE_BITS = 4096
"""The number of values that 12 bits hold."""

DAMAGE = (OSError, SyntaxError, ValueError, RuntimeError, struct.error)
"""The errors that Pillow raises for a damaged image, beside its own."""

ANEW = "obtain the archive again"
"""Remedy for a damaged image of a published archive."""
PLAIN = (".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Endings by which images in a folder are recognised; a table may list any format that Pillow reads."""
DICOM = (".dcm", ".dicom")
"""Usual endings of DICOM files, many of which have none."""
TO_PNG = "convert it to PNG first, such as with DCMTK: dcmj2pnm --write-png --min-max-window scan.dcm scan.png"
"""Remedy for a DICOM file where only images are read."""


def read_image(path: Path, *, own: bool = False, remedy: str = ANEW, window: Window | None = None) -> np.ndarray:
    """Return an image file of any format that Pillow reads as an array (height, width, 3), uint8.

    Grey images with 16 or 32 bits a pixel, floats among them, are scaled by the `window`. Without one, the upper 8 bits
    of 16 are kept, and 32 bits are refused. Users' `own` images are turned as their EXIF orientation says. Without a
    window they are refused where all 16-bit values are below 4096 (and not all 0), since the upper 8 bits hold little
    of them. Raises UserError that names the file, with `remedy` where the file is damaged or not there.
    """
    import numpy as np
    from PIL import Image, ImageOps

    require_regular(path)
    try:
        with Image.open(path) as opened:
            if opened.format == "EPS":
                raise ValueError("PostScript, which would be run as a program: convert it")
            wide = opened.mode in ("I", "F")
            if wide and not own:
                raise ValueError("32 bits a pixel: bring it to 8 or 16")
            image: Image.Image = opened
            if own:
                image = ImageOps.exif_transpose(opened)
            if wide and window is None:
                raise UserError(path, "has 32 bits a pixel, and no window", window_remedy(np.asarray(image)))
            if window is not None and (wide or image.mode.startswith("I;16")):
                return np.repeat(in_window(np.asarray(image), window)[..., None], 3, axis=2)
            if image.mode.startswith("I;16"):
                # Pillow's own conversion cuts values above 255, and so makes all but the darkest pixels white
                deep = np.asarray(image)
                if own:
                    _require_range(path, deep)
                return np.repeat((deep >> 8).astype(np.uint8)[..., None], 3, axis=2)
            return np.asarray(image.convert("RGB"))
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(path, "no such image", remedy) from None
    except Image.DecompressionBombError as error:
        problem = f"has too many pixels to be read at once, as a whole slide has ({error})"
        raise UserError(path, problem, "cut it into patches first: fedshift patches") from None
    except DAMAGE as error:
        if own and is_dicom(path):
            raise UserError(
                path, "is a DICOM file with the ending of another format", "let its name end in .dcm"
            ) from None
        if is_dicom(path):
            raise UserError(path, "is a DICOM file, which is not read here", TO_PNG) from None
        # the message begins with the path, so Pillow's words need only the name
        words = str(error).replace(str(path), path.name)
        problem = f"cannot be read as an image ({words})"
        if path.is_file() and not path.stat().st_size:
            problem = "the file is empty"
        raise UserError(path, problem, remedy) from None


def shorter_side(path: Path) -> int:
    """Return the pixels along the shorter side of an image, from its header alone; 0 if that cannot be read."""
    return min(_size(path))


def longer_side(path: Path) -> int:
    """Return the pixels along the longer side of an image, from its header alone; 0 if that cannot be read."""
    return max(_size(path))


def _size(path: Path) -> tuple[int, int]:
    from PIL import Image

    try:
        with Image.open(path) as image:
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


def _require_range(path: Path, values: np.ndarray) -> None:
    """Raise UserError where 16-bit values use 12 bits or fewer, as in many exports of X-ray and CT."""
    most = int(values.max())
    if 0 < most < TWELVE_BITS:
        problem = f"has 16 bits a pixel, but its brightest is {most} of 65535: it would be almost black"
        remedy = "rescale it to the full range of 16 bits, or export it with 8, or give a window"
        raise UserError(path, problem, f"{remedy}: {window_remedy(values)}")
