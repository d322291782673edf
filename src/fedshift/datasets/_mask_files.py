"""Masks beside images: their files, and the classes that their values stand for."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from ..core.errors import UserError
from ..core.units import IGNORED, SPACING
from ..io.dicom import DicomSegments
from ..io.images import is_nifti, is_scan, located, opened_image, require_opaque, require_page
from ..io.nifti import NiftiVolume
from ..io.scan import Reading

if TYPE_CHECKING:
    import pandas as pd

    from ..io.scan import Scan, Spacing

NAMED = 5
"""Largest number of unknown values of a mask that an error message lists."""
GREY = ("1", "L", "P", "I", "I;16", "I;16B", "F")
"""Pillow's modes of images with one number for each pixel. In mode P it is the index of a colour in a palette."""
GREY_STEP = 65536 + 256 + 1
"""A grey colour, written as the number 65536 red + 256 green + blue, is a multiple of this."""
WHOLE = 0.01
"""The largest difference from a whole number that is rounded off.

Programs that write a mask of floats as NIfTI with 8 bits scale its values, and reading gives them back inexactly.
"""
FIELD: dict[int | str, int] = {0: IGNORED}
"""Classes of the values of a mask of the field of view: 0 is outside, and ignored; all other values are inside."""


def read_classes(
    file: Path,
    image: tuple[int, int],
    values: Mapping[int | str, int],
    remedy: str,
    page: int | None = None,
    others: int | None = None,
) -> Image.Image:
    """Read a mask file as an image of class numbers, uint8.

    `image` is the size (width, height) of the image that belongs to the mask. `values` maps each grey value or colour,
    such as '#ff0000', to a class; with colours, masks of all modes are read as colours. A mask is rotated according to
    its EXIF orientation. `page` is the number of the page in a file with several. `others` is the class of all other
    values. Raises UserError for a file that cannot be read (with `remedy`), for another size, and, without `others`,
    for a value without a class.
    """
    found, coloured = mask_values(file, remedy, any(isinstance(value, str) for value in values), page)
    return _classes(file, found, image, values, coloured, others)


def mask_values(
    file: Path, remedy: str = "", coloured: bool = False, page: int | None = None
) -> tuple[np.ndarray, bool]:
    """Return the values of a mask file (height, width), int64, and whether they are colours.

    A colour is 65536 red + 256 green + blue. With `coloured`, grey values are returned as colours too. `remedy` and
    `page` are as in `read_classes`.
    """
    with opened_image(file, remedy, kind="mask") as opened:
        require_page(file, opened, page)
        turned = ImageOps.exif_transpose(opened)
        if opened.mode in GREY and not coloured:
            return _whole(file, np.asarray(turned), opened.mode == "1"), False
        require_opaque(file, turned)
        found = np.asarray(turned.convert("RGB")).astype(np.int64) @ np.array([65536, 256, 1])
    # Grey values that a program has saved as colours are numbers still.
    if coloured or (found % GREY_STEP).any():
        return found, True
    return found // GREY_STEP, False


def read_slice(
    volume: Scan,
    named: int | None,
    image: tuple[int, int],
    values: Mapping[int | str, int],
    others: int | None = None,
) -> Image.Image:
    """Read a slice of a mask volume as an image of class numbers, uint8.

    `named` is the number of the slice, from 1; None takes the only one. `image`, `values` and `others` are as in
    `read_classes`. Raises UserError also for values that are not whole numbers.
    """
    _require_numbers(volume.path, values)
    number = volume.number(named, Reading())
    where = f"{volume.path}#{number}"
    return _classes(where, _whole(where, np.asarray(volume.frame(number).values)), image, values, others=others)


def read_segments(
    mask: DicomSegments, image: Scan, frame: int, values: Mapping[int | str, int], others: int | None = None
) -> Image.Image:
    """Read the part of a DICOM segmentation on one frame of a DICOM image, as an image of class numbers, uint8.

    `values` maps numbers of segments to classes; 0 stands for pixels without a segment. `others` is the class of all
    other segments. Raises UserError also if no frame of the segmentation lies on the image.
    """
    _require_numbers(mask.path, values)
    found = mask.on(image.path, frame)
    return _classes(f"{mask.path} on {image.path.name}", found, image.size[::-1], values, others=others)


def _require_numbers(path: Path, values: Mapping[int | str, int]) -> None:
    """Raise UserError if `values`, from the setting `masks`, has colours, for a volume or a DICOM segmentation."""
    if any(isinstance(value, str) for value in values):
        raise UserError(path, "has numbers, but dataset.masks names colours", "name numbers there, as in {0: 0, 1: 1}")


def _whole(where: object, found: np.ndarray, one_bit: bool = False) -> np.ndarray:
    """Return the values `found` of a mask (height, width) as int64; with `one_bit`, true becomes 255.

    Raises UserError, about the file `where`, for values that are not whole numbers.
    """
    if one_bit:
        # Masks of one bit are written with 255 for true, as all others of two values are.
        return found.astype(np.int64) * 255
    found = found.astype(np.float64)
    whole = np.rint(found)
    broken = found[~np.isclose(found, whole, rtol=0, atol=WHOLE) | ~np.isfinite(found)]
    if broken.size:
        problem = f"has values that are not whole numbers, such as {broken[0]:.4g} ({broken.size:,} pixels)"
        raise UserError(where, problem, "store the number of a class in each pixel; resample by the nearest neighbour")
    return whole.astype(np.int64)


def _classes(
    where: object,
    found: np.ndarray,
    image: tuple[int, int],
    values: Mapping[int | str, int],
    coloured: bool = False,
    others: int | None = None,
) -> Image.Image:
    """Return the image of class numbers, uint8, of a mask with the values `found` (height, width), int64.

    `where` names the file in errors; all other arguments are as in `read_classes` and `mask_values`.
    """
    if found.shape[::-1] != image:
        sizes = [f"{width}x{height}" for width, height in (found.shape[::-1], image)]
        raise UserError(where, f"has {sizes[0]} pixels, and its image {sizes[1]}", "give both the same size")
    classes = np.full(found.shape, others or 0, dtype=np.uint8)
    named = np.zeros(found.shape, dtype=bool)
    for value, number in values.items():
        here = found == (int(value[1:], 16) if isinstance(value, str) else value)
        classes[here] = number
        named |= here
    if others is None and not named.all():
        unknown, counts = np.unique(found[~named], return_counts=True)
        names = [f"#{value:06x}" if coloured else str(value) for value in unknown[:NAMED]]
        texts = [f"{name} ({count:,} pixels)" for name, count in zip(names, counts, strict=False)]
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        problem = f"has values without a class: {', '.join(texts)}{more}"
        jpeg = "JPEG changes values: save masks as PNG"
        raise UserError(where, problem, f"name each value in dataset.masks, or ignore it, as in 255: ignore; {jpeg}")
    return Image.fromarray(classes)


def mask_faults(table: Path, folder: Path, rows: pd.DataFrame, volume: Callable[[Path], Scan]) -> list[UserError]:
    """Return one error for each row of the table whose mask cannot belong to its image.

    The cell is empty, the file is missing, is the image itself or belongs to another row, or the slice lies elsewhere
    than the image. Paths are relative to `folder`. `rows` has several rows with one index label where a path stands for
    several frames. `volume` opens a scan, of which the header is read.
    """
    volume, segments = functools.cache(volume), functools.cache(DicomSegments.opened)
    seen = dict[tuple[Path, int | None], object]()
    faults = dict[object, UserError]()
    for row, path, mask in zip(rows.index, rows["path"], rows["mask"], strict=True):
        if row in faults:
            continue
        where = f"{table}, {rows.index.name} {row}"
        if not isinstance(mask, str) or not mask:
            faults[row] = UserError(where, "mask is empty", "name the mask of the image, or remove the row")
            continue
        file, number = located(folder, mask)
        if isinstance(path, str) and file == located(folder, path)[0]:
            faults[row] = UserError(where, f"the mask {mask!r} is the image itself", "name its mask")
        elif is_segmentation(file):
            try:
                if isinstance(path, str):
                    segments(file).uid_of(located(folder, path)[0], number)
            except UserError as error:
                faults[row] = UserError(where, f"{error.what}: {error.where}", error.remedy)
        elif seen.get((file, number)) == row:
            problem = f"{mask!r} is the mask of one image, but path stands for several frames"
            faults[row] = UserError(where, problem, "name a volume in mask too, or one frame in path, such as #3")
        elif (file, number) in seen:
            problem = f"{mask!r} is the mask of {rows.index.name} {seen[file, number]} too"
            faults[row] = UserError(where, problem, "give each image its own mask")
        elif not file.is_file():
            faults[row] = UserError(where, f"no such mask: {file}", "correct the path, or remove the row")
        else:
            seen[file, number] = row
            try:
                if is_nifti(file.name) and isinstance(path, str):
                    _require_slice(volume(file), number, *located(folder, path), volume)
            except UserError as error:
                faults[row] = UserError(where, f"{error.what}: {error.where}", error.remedy)
    return list(faults.values())


def is_segmentation(file: Path) -> bool:
    """Return whether a mask file is a DICOM file: a segmentation object, with the masks of a whole series."""
    return file.is_file() and is_scan(file) and not is_nifti(file.name)


def field_faults(table: Path, folder: Path, rows: pd.DataFrame) -> Iterator[UserError]:
    """Yield an error for each row whose mask of the field of view (column `valid`) is missing or the image itself.

    Paths are relative to `folder`.
    """
    for row, path, valid in zip(rows.index, rows["path"], rows["valid"], strict=True):
        if not isinstance(valid, str):
            continue
        where, (file, _) = f"{table}, {rows.index.name} {row}", located(folder, valid)
        remedy = "correct the path in valid, or leave the cell empty"
        if not file.is_file():
            yield UserError(where, f"no such mask of the field of view: {file}", remedy)
        elif isinstance(path, str) and file == located(folder, path)[0]:
            yield UserError(where, f"the field of view {valid!r} is the image itself", remedy)


def _require_slice(
    mask: Scan, named: int | None, file: Path, frame: int | None, volume: Callable[[Path], Scan]
) -> None:
    """Raise UserError if headers show that a slice of a mask volume does not lie on its image.

    `named` is the number of the slice in the volume `mask`, and `frame` the number of the frame in the image's `file`;
    either is None for a file that has one alone. `volume` is the function that opens a scan.
    """
    image = None
    if is_scan(file):
        try:
            image = volume(file)
            frame = image.number(frame, Reading())
        except UserError:
            return  # reading the image raises it again
    number = mask.number(named, Reading())
    if isinstance(image, NiftiVolume) and isinstance(mask, NiftiVolume):
        mask.require_same_place(image)
        if number != frame:
            problem = f"slice {number} of the mask is named for slice {frame} of the image"
            raise UserError(mask.path, problem, "name the same slice of both")


def stated_spacing(cells: Sequence[object]) -> Spacing | None:
    """Return the millimetres between rows and columns from a row's cells spacing_y and spacing_x; None if empty.

    Raises ValueError unless both cells are positive lengths, or both are empty.
    """
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not texts:
        return None
    height, width = (float(text.replace(",", ".")) for text in texts)  # a decimal comma
    if not (0 < height < math.inf and 0 < width < math.inf):
        raise ValueError("no length")
    return height, width


def spacing_faults(table: Path, rows: pd.DataFrame) -> Iterator[UserError]:
    """Yield an error for each row whose cells spacing_y and spacing_x are neither two lengths nor both empty."""
    for number, cells in rows.reindex(columns=list(SPACING)).iterrows():
        try:
            stated_spacing(cells.tolist())
        except ValueError:
            stated = ", ".join(f"{name} {cell!r}" for name, cell in cells.items() if isinstance(cell, str))
            remedy = f"write the millimetres of a pixel, such as 0.35, in {' and '.join(SPACING)}, or leave both empty"
            yield UserError(f"{table}, {rows.index.name} {number}", f"{stated}: not two lengths", remedy)
