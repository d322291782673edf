"""The centre of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from ._base import Transform

if TYPE_CHECKING:
    from torch import Tensor


class CenterCrop(Transform):
    """The central `size` x `size` pixels of each image; a side that is shorter stays whole."""

    mask = "moves"
    size: int = Field(ge=1, description="side of the square that is kept, in pixels", examples=[4])

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        # Half of each side is rounded down, as in MONAI's CenterSpatialCrop: the numbers are equal.
        top, left = (max(side // 2 - self.size // 2, 0) for side in x.shape[2:])
        return x[:, :, top : top + self.size, left : left + self.size]
