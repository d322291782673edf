"""Intensity scaling, with MONAI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..transform import Transform

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class ScaleIntensity(Transform):
    """Map grey levels 0..255 linearly to [low, high] (`monai.transforms.ScaleIntensityRange`)."""

    low: float = Field(0.0, description="where grey level 0 goes")
    high: float = Field(1.0, description="where grey level 255 goes")

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        import torch
        from monai.transforms import ScaleIntensityRange

        return torch.as_tensor(ScaleIntensityRange(0.0, 255.0, self.low, self.high)(x))
