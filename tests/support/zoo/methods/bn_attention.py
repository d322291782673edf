"""A small network with attention to channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.models import Model, require_images

if TYPE_CHECKING:
    from torch import nn


class BNAttention(Model):
    """A 3x3 convolution with batch norm, channels that are weighted by their own means, and a linear layer."""

    width: int = Field(8, ge=2, description="channels")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import Tensor, nn

        require_images(self, shape, least=4)

        class Attention(nn.Module):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.score = nn.Conv2d(width, width, 1)

            def forward(self, x: Tensor) -> Tensor:
                return x * self.score(x.mean((2, 3), keepdim=True)).sigmoid()

        return nn.Sequential(
            nn.Conv2d(shape[0], self.width, 3, padding=1, bias=False),
            nn.BatchNorm2d(self.width),
            nn.ReLU(),
            Attention(self.width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(self.width, classes),
        )
