"""Images brought to another size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Transform

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Resize(Transform):
    """Resize to `size` x `size` pixels, bilinear; smaller images are smoothed first, as Pillow does.

    It acts each time that an image is read: the prepared arrays keep their size.
    """

    size: int = Field(256, ge=1, description="pixels a side")

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        from torch.nn.functional import interpolate

        return interpolate(x, size=(self.size, self.size), mode="bilinear", align_corners=False, antialias=True)
