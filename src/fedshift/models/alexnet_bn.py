"""AlexNet with batch norm: the network for natural images in FedBN, and for CIFAR-10-C in TsmoBN and UniFed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ..core.errors import UserError
from ._base import require_images
from ._imagenet import Pretrained, Published, start
from ._normed import BY_IMAGE, OF_VECTORS, Normed

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
"""Number of units of each of the two hidden linear layers."""
LEAST = 63
"""Smallest side of an image in pixels; below it, the last pooling has no input."""
NAMES = (*(f"features.{n}" for n in (0, 3, 6, 8, 10)), "classifier.1", "classifier.4")
"""Names of the layers of torchvision's AlexNet, in order, without the last layer."""


class AlexNetBN(Normed, Pretrained):
    """torchvision's AlexNet with BN after every layer except the last, and without dropout.

    It has 7 BN layers and, with three channels and 10 classes, 57,063,498 trainable parameters. It takes images of at
    least 63x63 pixels. With `pretrained`, convolutions and the first two linear layers start from torchvision's
    ImageNet weights; BN layers start anew.
    """

    later_fields: ClassVar[frozenset[str]] = Normed.later_fields | Pretrained.later_fields
    without: ClassVar[Mapping[str, str]] = dict.fromkeys(BY_IMAGE, OF_VECTORS)
    published = Published("AlexNet", "alexnet-owt-7be5be79.pth")

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
            self._start(network, shape[0])
        return self.normed(network)

    def _start(self, network: nn.Module, channels: int) -> None:
        """Copy torchvision's ImageNet weights into all convolutions and linear layers of `network` except the last.

        Raises UserError unless images have 3 `channels`.
        """
        from torch import nn

        if channels != 3:
            problem = f"its first layer takes {channels} channels, ImageNet's has 3"
            raise UserError(f"model {self.name}", problem, "say pretrained: false")
        layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        named = dict(zip(NAMES, layers[:-1], strict=True))
        start(self, {f"{k}.{leaf}": p for k, layer in named.items() for leaf, p in layer.named_parameters()})
