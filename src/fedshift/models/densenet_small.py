"""A DenseNet for laptops: the same blocks and stem as DenseNet121, far fewer of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..model import Model

if TYPE_CHECKING:
    from torch import nn


class DenseNetSmall(Model):
    """A small DenseNet (torchvision's class) that trains in seconds on one CPU core."""

    growth: int = Field(8, ge=1, le=64, description="channels each layer adds")
    blocks: tuple[int, ...] = Field((2, 2, 2), min_length=1, description="layers in each dense block")
    stem: int = Field(16, ge=1, le=128, description="channels of the first convolution")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torchvision.models import DenseNet

        return DenseNet(
            growth_rate=self.growth,
            block_config=self.blocks,
            num_init_features=self.stem,
            bn_size=2,
            num_classes=classes,
        )
