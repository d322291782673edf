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
    mask = "moves"
    libraries = ("monai.transforms",)

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        from monai.transforms import Rotate90

        from ._with_monai import changed_by_group

        return changed_by_group(x, rng.integers(0, 4, len(x)), [None, *(Rotate90(k=k) for k in (1, 2, 3))])
