"""Scaling of grey levels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from ._base import Transform

if TYPE_CHECKING:
    from torch import Tensor


class ScaleIntensity(Transform):
    """Linear scaling of grey levels 0..255 to [low, high].

    The numbers equal those of `monai.transforms.ScaleIntensityRange`, with one pass over the batch instead of four:
    every image goes through this transform each time it is read.
    """

    mask = "stays"
    low: float = Field(0.0, description="value of grey level 0")
    high: float = Field(1.0, description="value of grey level 255")

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        import torch

        # low + x (high - low) / 255 in one pass.
        return torch.add(torch.tensor(self.low, dtype=x.dtype), x, alpha=(self.high - self.low) / 255)
