"""AlexNet with batch norm: the network of FedBN's natural images, and of CIFAR-10-C in TsmoBN and UniFed."""

from __future__ import annotations

import urllib.error
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from ..core import digest
from ..core.errors import UserError
from ._base import Model, require_images

if TYPE_CHECKING:
    from torch import Tensor, nn

LAYERS = (
    {"out": 64, "kernel_size": 11, "stride": 4, "padding": 2, "pool": True},
    {"out": 192, "kernel_size": 5, "padding": 2, "pool": True},
    {"out": 384, "kernel_size": 3, "padding": 1},
    {"out": 256, "kernel_size": 3, "padding": 1},
    {"out": 256, "kernel_size": 3, "padding": 1, "pool": True},
)
LEAST = 63
"""Pixels a side below which the last pooling has nothing left."""


class AlexNetBN(Model):
    """torchvision's AlexNet with BN after every layer but the last, and without dropout.

    57,063,498 trainable parameters with three channels and 10 classes, for images of 63x63 and more; 7 BN layers. With
    `pretrained`, convolutions and the first two linear layers start from torchvision's ImageNet weights.
    """

    pretrained: bool = Field(False, description="start from torchvision's ImageNet weights, the last layer apart")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        from ._blocks import convolution, linear

        require_images(self, shape, LEAST)
        layers: list[nn.Module] = []
        before = shape[0]
        for layer in LAYERS:
            given = {k: v for k, v in layer.items() if k not in ("out", "pool")}
            layers += [*convolution(before, before := layer["out"], **given)]
            layers += [nn.MaxPool2d(3, 2)] if layer.get("pool") else []
        network = nn.Sequential(
            *layers,
            nn.AdaptiveAvgPool2d(6),
            nn.Flatten(),
            *linear(256 * 6 * 6, 4096),
            *linear(4096, 4096),
            nn.Linear(4096, classes),
        )
        if self.pretrained:
            _load(network)
        return network


def _load(network: nn.Module) -> None:
    """Copy torchvision's weights into all convolutions and linear layers but the last, in their order."""
    import torch
    from torch import nn

    given = iter(_imagenet().values())
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for layer in layers[:-1]:
            for own in (layer.weight, layer.bias):
                value = next(given)
                if own is None or own.shape != value.shape:
                    what = f"its first layer takes {layers[0].weight.shape[1]} channels, ImageNet's has 3"
                    raise UserError("model alexnet_bn", what, "say pretrained: false")
                own.copy_(value)


def _imagenet() -> dict[str, Tensor]:
    """AlexNet's state from torch's cache, or the network.

    Raises UserError that names the file where it is not to be had, or is another than torchvision's, whose name ends in
    the start of its SHA-256.
    """
    import torch
    from torchvision.models import AlexNet_Weights

    weights = AlexNet_Weights.IMAGENET1K_V1
    file = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rsplit("/", 1)[-1]
    expected = file.stem.rpartition("-")[2]
    if file.is_file() and not (found := digest.of_file(file)).startswith(expected):  # torch takes what it finds there
        what = f"does not hold torchvision's AlexNet: sha256 is {found}, expected {expected}..."
        raise UserError(file, what, "remove it, and fetch it anew")
    try:
        return weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (urllib.error.URLError, OSError) as error:
        what = f"ImageNet weights cannot be had ({getattr(error, 'reason', error)})"
        raise UserError("model alexnet_bn", what, f"fetch {file.name} and put it in {file.parent}") from error
    except Exception as error:
        raise UserError(file, f"holds no weights of AlexNet ({error})", "remove it, and fetch it anew") from error
