"""The papers of FedBN and TsmoBN classify digits with the network that this module defines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from ..core.errors import UserError
from ._normed import BY_IMAGE, OF_VECTORS, Normed

if TYPE_CHECKING:
    from torch import nn

SIDE = 28


class DigitCNN(Normed):
    """Three 5x5 convolutions and two hidden linear layers, each with BN and ReLU, and a linear layer.

    It has 14,219,210 trainable parameters with three channels of 28x28 and 10 classes, and 5 BN layers. The tables of
    both papers print the third convolution twice; here it occurs once. Initial weights are PyTorch's default. With a
    smaller `width`, all layers but the last are as much narrower, so that a laptop can train them to their end.
    """

    without: ClassVar[Mapping[str, str]] = dict.fromkeys(BY_IMAGE, OF_VECTORS)
    later_fields: ClassVar[frozenset[str]] = Normed.later_fields | {"width"}
    width: int = Field(64, ge=1, le=64, description="number of channels of the first convolution; 64 in the papers")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        from ._blocks import convolution, linear

        if shape[1:] != (SIDE, SIDE):
            size = "x".join(map(str, shape[1:])) or "no pixels"
            raise UserError("model digit_cnn", f"takes images of {SIDE}x{SIDE}, these have {size}", "resize them")
        network = nn.Sequential(
            *convolution(shape[0], self.width, kernel_size=5, padding=2),
            nn.MaxPool2d(2),
            *convolution(self.width, self.width, kernel_size=5, padding=2),
            nn.MaxPool2d(2),
            *convolution(self.width, 2 * self.width, kernel_size=5, padding=2),
            nn.Flatten(),
            *linear(2 * self.width * (SIDE // 4) ** 2, 32 * self.width),
            *linear(32 * self.width, 8 * self.width),
            nn.Linear(8 * self.width, classes),
        )
        return self.normed(network)
