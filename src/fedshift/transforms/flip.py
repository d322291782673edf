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
    probability: float = Field(0.5, ge=0, le=1, description="probability of each flip")
    vertical: bool = Field(True, description="whether up-down flips are made: sensible for tissue, not for photographs")

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        import torch
        from monai.transforms import Flip

        for axis in (0, 1) if self.vertical else (1,):
            chosen = torch.from_numpy(rng.random(len(x)) < self.probability)
            if chosen.any():
                picked = x[chosen]
                x = x.clone()
                x[chosen] = Flip(spatial_axis=axis)(picked.flatten(0, 1)).view_as(picked)
        return x
