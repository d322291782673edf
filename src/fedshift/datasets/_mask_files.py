"""Masks beside images: their files, and the classes that their values stand for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..core.errors import UserError
from ..core.units import SPACING
from ..io.guards import require_regular
from ..io.images import DAMAGE

if TYPE_CHECKING:
    import pandas as pd
    from PIL import Image

    from ..io.scan import Spacing

NAMED = 5
"""Unknown values of a mask that a message names."""
GREY = ("1", "L", "P", "I", "I;16")
"""Pillow's modes of images with one number for each pixel; a palette's are the numbers of its colours."""


def read_classes(file: Path, image: tuple[int, int], values: Mapping[int | str, int], remedy: str) -> Image.Image:
    """Return the mask in a file as an image of class numbers, uint8.

    `image` is the size of its image (width, height), and `values` the class of each grey value or colour, such as
    '#ff0000'. Where colours are given, masks of all modes are read as colours. Raises UserError for a file that cannot
    be read, another size, and a value without a class.
    """
    from PIL import Image

    coloured = any(isinstance(value, str) for value in values)

    require_regular(file)
    try:
        with Image.open(file) as opened:
            coloured |= opened.mode not in GREY
            found = _colours(opened) if coloured else _greys(opened)
    except FileNotFoundError:
        raise UserError(file, "no such mask", remedy) from None
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise UserError(file, f"cannot be read as a mask ({error})", remedy) from None
    if found.shape[::-1] != image:
        sizes = [f"{width}x{height}" for width, height in (found.shape[::-1], image)]
        raise UserError(file, f"has {sizes[0]} pixels, and its image {sizes[1]}", "give both the same size")
    classes = np.zeros(found.shape, dtype=np.uint8)
    named = np.zeros(found.shape, dtype=bool)
    for value, number in values.items():
        here = found == (int(value[1:], 16) if isinstance(value, str) else value)
        classes[here] = number
        named |= here
    if not named.all():
        unknown, counts = np.unique(found[~named], return_counts=True)
        names = [f"#{value:06x}" if coloured else str(value) for value in unknown[:NAMED]]
        texts = [f"{name} ({count:,} pixels)" for name, count in zip(names, counts, strict=False)]
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        problem = f"has values without a class: {', '.join(texts)}{more}"
        raise UserError(file, problem, "name each value in dataset.masks; a mask saved as JPEG has values of its own")
    return Image.fromarray(classes)


def _greys(opened: Image.Image) -> np.ndarray:
    """Return the values of an image (height, width), int64."""
    # Masks of one bit are written with 255 for true, as all others of two values are.
    return np.asarray(opened).astype(np.int64) * (255 if opened.mode == "1" else 1)


def _colours(opened: Image.Image) -> np.ndarray:
    """Return the colours of an image (height, width), int64: 65536 red + 256 green + blue."""
    return np.asarray(opened.convert("RGB")).astype(np.int64) @ np.array([65536, 256, 1])


def mask_faults(table: Path, rows: pd.DataFrame) -> Iterator[UserError]:
    """Yield an error for each row whose mask is not named, not there, that of another row, or the image itself."""
    seen: dict[str, object] = {}
    for number, (path, mask) in rows[["path", "mask"]].iterrows():
        where = f"{table}, {rows.index.name} {number}"
        if not isinstance(mask, str) or not mask:
            yield UserError(where, "mask is empty", "name the mask of the image, or remove the row")
        elif mask == path:
            yield UserError(where, f"the mask {mask!r} is the image itself", "name its mask")
        elif mask in seen:
            problem = f"{mask!r} is the mask of {rows.index.name} {seen[mask]} too"
            yield UserError(where, problem, "give each image its own mask")
        elif not (table.parent / mask).is_file():
            yield UserError(where, f"no such mask: {table.parent / mask}", "correct the path, or remove the row")
        else:
            seen[mask] = number


def stated_spacing(cells: Sequence[object]) -> Spacing | None:
    """Return the millimetres in the two cells SPACING of a row; None where both are empty.

    Raises ValueError for anything else.
    """
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not texts:
        return None
    height, width = map(float, texts)
    if not (0 < height < math.inf and 0 < width < math.inf):
        raise ValueError("no length")
    return height, width


def spacing_faults(table: Path, rows: pd.DataFrame) -> Iterator[UserError]:
    """Yield an error for each row whose cells SPACING are neither two lengths nor both empty."""
    for number, cells in rows.reindex(columns=list(SPACING)).iterrows():
        try:
            stated_spacing(cells.tolist())
        except ValueError:
            stated = ", ".join(f"{name} {cell!r}" for name, cell in cells.items() if isinstance(cell, str))
            remedy = f"write the millimetres of a pixel, such as 0.35, in {' and '.join(SPACING)}, or leave both empty"
            yield UserError(f"{table}, {rows.index.name} {number}", f"{stated}: not two lengths", remedy)
