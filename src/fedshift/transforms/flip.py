"""Random flips, with MONAI."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from ._base import Transform

if TYPE_CHECKING:
    from torch import Tensor


class RandomFlip(Transform):
    """Random flips of each image, up-down and, independently, left-right (`monai.transforms.Flip`)."""

    when = "train"
    mask = "moves"
    libraries = ("monai.transforms",)
    probability: float = Field(0.5, ge=0, le=1, description="probability of each flip")
    vertical: bool = Field(True, description="whether up-down flips are made: sensible for tissue, not for photographs")

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        from monai.transforms import Flip

        from ._with_monai import changed_by_group

        vertical = rng.random(len(x)) < self.probability if self.vertical else np.zeros(len(x), bool)
        horizontal = rng.random(len(x)) < self.probability
        flips = [Flip(spatial_axis=axes) for axes in (1, 0, (0, 1))]
        return changed_by_group(x, 2 * vertical + horizontal, [None, *flips])
