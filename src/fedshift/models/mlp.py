"""The perceptron with one hidden BN layer of FedTAN's MNIST study (784-30-10)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from ..model import Model

if TYPE_CHECKING:
    from torch import nn


class MLP(Model):
    """Linear, BN, ReLU, linear.

    23,920 trainable parameters with 784 inputs, 30 hidden units and 10 classes.
    """

    hidden: int = Field(30, ge=1, description="hidden units")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(shape), self.hidden),
            nn.BatchNorm1d(self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, classes),
        )
