"""Random crops of a padded image: the usual augmentation of CIFAR."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from ._base import Transform

if TYPE_CHECKING:
    from torch import Tensor


class RandomCrop(Transform):
    """Random shifts of each image along both axes, up to `padding` pixels in either direction; the outside is black."""

    when = "train"
    mask = "moves"
    padding: int = Field(4, ge=1, description="largest shift, in pixels")

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        import torch
        from torch.nn.functional import pad

        from ..nn.device import array_to_device

        n, _, height, width = x.shape
        top, left = array_to_device(np.stack([rng.integers(0, 2 * self.padding + 1, n) for _ in "yx"]), x)
        rows = top[:, None] + torch.arange(height, device=x.device)
        columns = left[:, None] + torch.arange(width, device=x.device)
        image = torch.arange(n, device=x.device)[:, None, None]
        padded = pad(x, [self.padding] * 4).permute(0, 2, 3, 1)
        return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
