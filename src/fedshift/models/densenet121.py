"""DenseNet121 as in torchvision (Huang et al. 2017): the network of Camelyon17-WILDS, TsmoBN and UniFed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ._base import require_images
from ._imagenet import Pretrained, Published, start

if TYPE_CHECKING:
    from torch import nn

LEAST = 29
"""Smallest side of an image in pixels: halved five times, rounded down at poolings, it leaves one pixel."""


class DenseNet121(Pretrained):
    """DenseNet121; by default, all its weights are drawn at random.

    It has 6,955,906 trainable parameters with two classes and 121 BN layers, and takes RGB images of at least 29x29
    pixels. With `pretrained`, all layers but the last start from torchvision's ImageNet weights, running statistics
    included. These weights were trained on images that were normalised with ImageNet's means and deviations: see the
    transform `normalize`.
    """

    published = Published("DenseNet121", "densenet121-a639ec97.pth")
    later_fields = Pretrained.later_fields | {"pretrained"}

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from ._densenet import DenseNet

        require_images(self, shape, LEAST, channels=3)
        network = DenseNet(growth=32, blocks=(6, 12, 24, 16), stem=64, bottleneck=4, classes=classes)
        if self.pretrained:
            # The file has the names of an earlier torchvision: denselayer1.norm.1.
            tensors = {
                re.sub(r"(denselayer\d+\.(?:norm|conv))([12])\.", r"\1.\2.", k): v
                for k, v in network.state_dict().items()
            }
            start(self, {k: v for k, v in tensors.items() if not k.startswith("classifier.")})
        return network
