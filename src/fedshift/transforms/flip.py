"""Random flips."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from ._base import Transform, changed_by_group

if TYPE_CHECKING:
    from torch import Tensor


class RandomFlip(Transform):
    """Random flips of each image, up-down and, independently, left-right."""

    when = "train"
    mask = "moves"
    probability: float = Field(0.5, ge=0, le=1, description="probability of each flip")
    vertical: bool = Field(True, description="whether up-down flips are made: sensible for tissue, not for photographs")

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        vertical = rng.random(len(x)) < self.probability if self.vertical else np.zeros(len(x), bool)
        horizontal = rng.random(len(x)) < self.probability
        flips = [lambda images, axes=axes: images.flip(axes) for axes in ((), (3,), (2,), (2, 3))]
        return changed_by_group(x, 2 * vertical + horizontal, flips)
