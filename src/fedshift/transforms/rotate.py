"""Random rotation by small angles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from ._base import Transform

if TYPE_CHECKING:
    from torch import Tensor


class RandomRotation(Transform):
    """Rotation of each image about its centre by a random angle, uniform up to `degrees` either way; outside is black.

    Each pixel takes the value of the nearest one, as in torchvision's RandomRotation, which FedBN uses.
    """

    when = "train"
    mask = "moves"
    degrees: float = Field(30, gt=0, le=180, description="largest angle in either direction, in degrees")

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        import torch
        from torch.nn.functional import affine_grid, grid_sample

        from ..nn.device import array_to_device

        angle = array_to_device(rng.uniform(-self.degrees, self.degrees, len(x)) * math.pi / 180, x, x.dtype)
        cos = angle.cos()
        sin = angle.sin()
        zero = torch.zeros_like(angle)
        height, width = x.shape[2:]
        rows = [torch.stack([cos, -sin * height / width, zero], 1), torch.stack([sin * width / height, cos, zero], 1)]
        grid = affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
        return grid_sample(x, grid, mode="nearest", align_corners=False)
