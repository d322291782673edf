"""Random right-angle rotations, with MONAI."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ._base import Transform

if TYPE_CHECKING:
    from torch import Tensor


class RandomRotate90(Transform):
    """Random rotation of square images by 0, 90, 180 or 270 degrees (`monai.transforms.Rotate90`)."""

    when = "train"

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        import torch
        from monai.transforms import Rotate90

        turns = torch.from_numpy(rng.integers(0, 4, len(x)))
        x = x.clone()
        for k in (1, 2, 3):
            if (chosen := turns == k).any():
                picked = x[chosen]
                x[chosen] = Rotate90(k=k)(picked.flatten(0, 1)).view_as(picked)
        return x
