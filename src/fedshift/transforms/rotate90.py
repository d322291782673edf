"""Random right-angle rotations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..core.errors import UserError
from ._base import Transform, changed_by_group

if TYPE_CHECKING:
    from torch import Tensor


class RandomRotate90(Transform):
    """Random rotation of square images by 0, 90, 180 or 270 degrees."""

    when = "train"
    mask = "moves"

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        height, width = x.shape[2:]
        if height != width:
            problem = f"turns square images alone, and these have {height} x {width} pixels"
            raise UserError("transform rotate90", problem, "crop or resize them to squares before it")
        turns = [lambda images, k=k: images.rot90(k, (2, 3)) for k in range(4)]
        return changed_by_group(x, rng.integers(0, 4, len(x)), turns)
