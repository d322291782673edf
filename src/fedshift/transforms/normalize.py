"""Normalisation of channels by mean and standard deviation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field, model_validator

from ..core.errors import UserError
from ..core.plugin import MANY
from ._base import Transform

if TYPE_CHECKING:
    from torch import Tensor


class Normalize(Transform):
    """Normalisation of each channel, (x - mean) / std, after scale_intensity, which maps grey levels to 0..1."""

    mask = "stays"
    mean: Annotated[tuple[float, ...], *MANY] = Field(
        (0.485, 0.456, 0.406), description="means of the channels, or one for all; default: ImageNet's"
    )
    std: Annotated[tuple[float, ...], *MANY] = Field(
        (0.229, 0.224, 0.225), description="standard deviations of the channels, or one for all; default: ImageNet's"
    )

    @model_validator(mode="after")
    def _match(self) -> Normalize:
        if len(self.mean) != len(self.std) or not self.mean:
            raise UserError(
                "normalize", f"has {len(self.mean)} means but {len(self.std)} deviations", "give one for each channel"
            )
        if min(self.std) <= 0:
            raise UserError("normalize", f"has a deviation of {min(self.std):g}", "make it positive")
        return self

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        import torch

        from ..nn.device import constant

        if len(self.mean) not in (1, x.shape[1]):
            problem = f"has {len(self.mean)} means, but images have {x.shape[1]} channels"
            raise UserError("transform normalize", problem, "give one for each channel")
        # One fused pass over the batch: x scale + shift.
        scale = 1 / constant(self.std, x.dtype, x.device)
        shift = -constant(self.mean, x.dtype, x.device) * scale
        return torch.addcmul(shift.view(-1, 1, 1), x, scale.view(-1, 1, 1))
