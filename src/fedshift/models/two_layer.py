"""The two-layer network of FedBN's synthetic study."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ._base import Model

if TYPE_CHECKING:
    from torch import nn


class TwoLayer(Model):
    """Linear, BN, ReLU, linear; initial weights and biases are drawn from N(0, alpha^2).

    FedBN, appendix F: 10 inputs, 100 hidden units, 2 classes, alpha = 10. There are 1,502 trainable parameters, 200 of
    them in the BN. This project's decision: BN comes before the ReLU and has both scale and shift.

    The appendix draws "W_k, b_k", the weights into neuron k, which can mean both linear layers or the hidden one alone.
    The setting `wide` offers both readings (our decision): with `hidden`, the output layer has PyTorch's default
    initial weights.
    """

    later_fields: ClassVar[frozenset[str]] = frozenset({"wide"})

    hidden: int = Field(100, ge=1, description="number of hidden units")
    alpha: float = Field(10.0, gt=0, description="standard deviation of the initial weights and biases")
    wide: Literal["both", "hidden"] = Field(
        "both", description="which linear layers are drawn with alpha: both, or the hidden one alone"
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        from ._blocks import linear

        network = nn.Sequential(nn.Flatten(), *linear(math.prod(shape), self.hidden), nn.Linear(self.hidden, classes))
        layers = [layer for layer in network if isinstance(layer, nn.Linear)]
        if self.wide == "hidden":
            layers.pop()
        for layer in layers:
            nn.init.normal_(layer.weight, std=self.alpha)
            nn.init.normal_(layer.bias, std=self.alpha)
        return network
