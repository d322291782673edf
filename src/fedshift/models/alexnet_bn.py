"""AlexNet with batch norm: the network for natural images in FedBN, and for CIFAR-10-C in TsmoBN and UniFed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..core.errors import UserError
from ._base import Model, require_images

if TYPE_CHECKING:
    from torch import nn

LAYERS = (
    {"out": 64, "kernel_size": 11, "stride": 4, "padding": 2, "pool": True},
    {"out": 192, "kernel_size": 5, "padding": 2, "pool": True},
    {"out": 384, "kernel_size": 3, "padding": 1},
    {"out": 256, "kernel_size": 3, "padding": 1},
    {"out": 256, "kernel_size": 3, "padding": 1, "pool": True},
)
HIDDEN = 4096
"""Units of each of the two linear layers before the last."""
LEAST = 63
"""Least side in pixels; below it, the last pooling has no input."""


class AlexNetBN(Model):
    """torchvision's AlexNet with BN after every layer except the last, and without dropout.

    It has 7 BN layers and, with three channels and 10 classes, 57,063,498 trainable parameters. It takes images of
    63x63 and more. With `pretrained`, convolutions and the first two linear layers start from torchvision's ImageNet
    weights.
    """

    pretrained: bool = Field(
        False, description="whether all layers but the last start from torchvision's ImageNet weights"
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        from ._blocks import MeanOfCells, convolution, linear

        require_images(self, shape, LEAST)
        layers: list[nn.Module] = []
        before = shape[0]
        for layer in LAYERS:
            options = {k: v for k, v in layer.items() if k not in ("out", "pool")}
            layers += convolution(before, layer["out"], **options)
            if layer.get("pool"):
                layers.append(nn.MaxPool2d(3, 2))
            before = layer["out"]
        network = nn.Sequential(
            *layers,
            MeanOfCells(6),
            nn.Flatten(),
            *linear(256 * 6 * 6, HIDDEN),
            *linear(HIDDEN, HIDDEN),
            nn.Linear(HIDDEN, classes),
        )
        if self.pretrained:
            _load(network)
        return network


def _load(network: nn.Module) -> None:
    """Copy torchvision's weights, in order, into all convolutions and linear layers except the last."""
    import torch
    from torch import nn
    from torchvision.models import AlexNet_Weights

    from ._imagenet import imagenet

    pretrained = iter(imagenet(AlexNet_Weights.IMAGENET1K_V1, "alexnet_bn", "AlexNet").values())
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for layer in layers[:-1]:
            for parameter in (layer.weight, layer.bias):
                value = next(pretrained)
                if parameter is None or parameter.shape != value.shape:
                    problem = f"its first layer takes {layers[0].weight.shape[1]} channels, ImageNet's has 3"
                    raise UserError("model alexnet_bn", problem, "say pretrained: false")
                parameter.copy_(value)
