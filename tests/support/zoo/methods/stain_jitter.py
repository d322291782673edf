"""Random strengths of the colour channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.transforms import Transform

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class StainJitter(Transform):
    """Multiply each channel of a training image by a factor from 1 - spread to 1 + spread."""

    when = "train"
    spread: float = Field(0.1, ge=0, le=1, description="largest change of a channel, as a part of it")

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        import torch

        factor = rng.uniform(1 - self.spread, 1 + self.spread, size=(*x.shape[:2], 1, 1))
        return x * torch.from_numpy(factor).to(x)
