"""A DenseNet for laptops: few dense blocks and transitions, as in DenseNet121, after a cheap first convolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from ._base import require_images
from ._normed import RESIDUAL, Normed

if TYPE_CHECKING:
    from torch import nn


class DenseNetSmall(Normed):
    """A DenseNet, as torchvision's, with few layers and a 7x7 stem of stride 4, instead of stride 2 and pooling.

    The stem is the first convolution. Its settings give the number of layers and channels.
    """

    without: ClassVar[Mapping[str, str]] = {"weight": RESIDUAL}
    growth: int = Field(8, ge=1, le=64, description="number of channels that each layer adds")
    blocks: tuple[int, ...] = Field((1, 1, 1), min_length=1, description="number of layers in each dense block")
    stem: int = Field(16, ge=1, le=128, description="number of channels of the first convolution")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        from ._densenet import DenseNet

        halved = 2 ** (len(self.blocks) - 1)
        require_images(self, shape, least=self.least(4 * (halved - 1) + 1, 4 * (2 * halved - 1) + 1))
        network = DenseNet(self.growth, self.blocks, self.stem, bottleneck=2, classes=classes)
        network.features.conv0 = nn.Conv2d(shape[0], self.stem, kernel_size=7, stride=4, padding=3, bias=False)
        network.features.pool0 = nn.Identity()
        nn.init.kaiming_normal_(network.features.conv0.weight)
        return self.normed(network)
