"""MobileNetV2 of torchvision (Sandler et al. 2018): a third of the cost of DenseNet121."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import require_images
from ._imagenet import Pretrained, Published, start

if TYPE_CHECKING:
    from torch import nn


class MobileNetV2(Pretrained):
    """torchvision's MobileNetV2, with ReLU6 and 52 BN layers of 17,056 channels.

    It has 2,226,434 trainable parameters with two classes, and takes RGB images of at least 32x32 pixels. With
    `pretrained`, all layers but the last start from torchvision's ImageNet weights, running statistics included: see
    the transform `normalize`.
    """

    display_name = "MobileNetV2"
    libraries = ("torchvision.models",)
    published = Published("MobileNetV2", "mobilenet_v2-b0353104.pth")
    dropout: float = Field(0.2, ge=0, lt=1, description="probability with which an input of the last layer is dropped")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torchvision.models import mobilenet_v2

        require_images(self, shape, least=32, channels=3)
        network = mobilenet_v2(weights=None, num_classes=classes, dropout=self.dropout)
        if self.pretrained:
            start(self, {k: v for k, v in network.state_dict().items() if not k.startswith("classifier.")})
        return network
