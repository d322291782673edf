"""FCN (Long et al. 2015) of torchvision, on ResNet-50."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base import require_images
from ._imagenet import Pretrained, Published, start

if TYPE_CHECKING:
    from torch import Tensor, nn


class FCNResNet50(Pretrained):
    """torchvision's fully convolutional network on a dilated ResNet-50: 33 million parameters, 54 batch-norm layers.

    It takes RGB images of 32x32 pixels and more. Its last layer, a 1x1 convolution, gives an eighth of the pixels along
    each side, which are interpolated. With `pretrained`, the ResNet-50 starts from torchvision's ImageNet weights,
    running statistics included: see `normalize`.
    """

    display_name = "FCN, ResNet-50"
    tasks = ("segmentation",)
    libraries = ("torchvision.models.segmentation",)
    published = Published("ResNet-50", "resnet50-0676ba61.pth")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torchvision.models.segmentation import fcn_resnet50

        require_images(self, shape, least=32, channels=3)
        network = fcn_resnet50(weights=None, weights_backbone=None, num_classes=classes)
        if self.pretrained:
            start(self, network.backbone.state_dict())
        network.register_forward_hook(_logits)
        return network


def _logits(network: nn.Module, inputs: tuple[Tensor, ...], outputs: dict[str, Tensor]) -> Tensor:
    """Return the logits alone: torchvision's network gives a dict."""
    return outputs["out"]
