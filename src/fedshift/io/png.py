"""Masks as PNG files in memory: small, without loss, and readable by any program."""

from __future__ import annotations

import io

import numpy as np

from ..core.errors import UserError


def encoded(mask: np.ndarray) -> bytes:
    """Return a mask (height, width), uint8, as the bytes of a PNG file whose grey values are its classes.

    An image (height, width, 3), uint8, becomes one in colours.
    """
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(mask).save(out, "PNG")
    return out.getvalue()


def decoded(content: bytes, shape: tuple[int, int], where: object) -> np.ndarray:
    """Return the mask (height, width), uint8, of such bytes. Raises UserError, at `where`, for any other content."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            # the header alone says the size: what unpacks to more than the image is never read
            if image.size != shape[::-1] or image.mode != "L":
                raise ValueError(f"{image.size[0]}x{image.size[1]} pixels of mode {image.mode}")
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError, TypeError) as error:
        remedy = "remove it; the same call of Snakemake makes it again"
        raise UserError(where, f"holds a mask that cannot be read ({error})", remedy) from None
