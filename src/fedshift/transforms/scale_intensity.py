"""Intensity scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Transform

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class ScaleIntensity(Transform):
    """Map grey levels 0..255 linearly to [low, high].

    The same numbers as `monai.transforms.ScaleIntensityRange`, in one pass over the batch instead of four: it is the
    one transform that every image goes through every time it is read.
    """

    low: float = Field(0.0, description="where grey level 0 goes")
    high: float = Field(1.0, description="where grey level 255 goes")

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        import torch

        return torch.add(torch.tensor(self.low, dtype=x.dtype), x, alpha=(self.high - self.low) / 255)
