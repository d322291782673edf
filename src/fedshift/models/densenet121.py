"""DenseNet121 as in torchvision (Huang et al. 2017): the network of Camelyon17-WILDS, TsmoBN and UniFed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ._base import Model, require_images

if TYPE_CHECKING:
    from torch import nn


LEAST = 29
"""Least side in pixels: halved five times, rounded down at poolings, it leaves one pixel."""


class DenseNet121(Model):
    """DenseNet121; by default, all its weights are drawn at random.

    It has 6,955,906 trainable parameters with two classes and 121 BN layers, and takes RGB images of 29x29 and more.
    With `pretrained`, all tensors except those of the last layer are torchvision's ImageNet weights, running statistics
    included. These weights saw images that were normalised with ImageNet's means and deviations: see `normalize`.
    """

    pretrained: bool = Field(
        False, description="whether all layers but the last start from torchvision's ImageNet weights"
    )

    def identity(self) -> dict[str, Any]:
        # Studies from before the setting keep their ids.
        return {k: v for k, v in super().identity().items() if k != "pretrained" or v}

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from ._densenet import DenseNet

        require_images(self, shape, LEAST, channels=3)
        network = DenseNet(growth=32, blocks=(6, 12, 24, 16), stem=64, bottleneck=4, classes=classes)
        if self.pretrained:
            _load(network)
        return network


def _load(network: nn.Module) -> None:
    """Copy torchvision's weights and running statistics into all layers except the last."""
    import torch
    from torchvision.models import DenseNet121_Weights

    from ._imagenet import imagenet

    state = imagenet(DenseNet121_Weights.IMAGENET1K_V1, "densenet121", "DenseNet121")
    # The file has the names of an earlier torchvision: denselayer1.norm.1.
    named = {re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12])\.", r"\1\2.", k): v for k, v in state.items()}
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if not name.startswith("classifier.") and tensor.is_floating_point():
                tensor.copy_(named[name])
