"""Resizing of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from ._base import Transform

if TYPE_CHECKING:
    from torch import Tensor


class Resize(Transform):
    """Bilinear resizing to `size` x `size` pixels; before reduction, images are smoothed as in Pillow.

    It acts each time that an image is read; the prepared arrays keep their size.
    """

    size: int = Field(256, ge=1, description="side of the square images, in pixels")

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        from torch.nn.functional import interpolate

        return interpolate(x, size=(self.size, self.size), mode="bilinear", align_corners=False, antialias=True)
