"""torchvision's FCN (Long et al. 2015) on ResNet-50, for segmentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base import require_images
from ._imagenet import Pretrained, Published, start

if TYPE_CHECKING:
    from torch import Tensor, nn


class FCNResNet50(Pretrained):
    """torchvision's fully convolutional network on a dilated ResNet-50: 33 million parameters, 54 batch-norm layers.

    It takes RGB images of at least 32x32 pixels. Its last layer, a 1x1 convolution, returns logits at an eighth of the
    resolution, which are interpolated to the size of the image. With `pretrained`, the ResNet-50 starts from
    torchvision's ImageNet weights, running statistics included: see the transform `normalize`.
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
    """Return the logits out of the dict that torchvision's network returns: a forward hook."""
    return outputs["out"]
