"""Perceptrons with BN: one hidden layer in FedTAN's MNIST study (784-30-10), two in FedBN's ABIDE (5995-16-16-2)."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator

from ..core.errors import UserError
from ._base import Model

if TYPE_CHECKING:
    from torch import nn

Units = Annotated[int, Field(ge=1)]


class MLP(Model):
    """Linear, BN, ReLU for each hidden layer; then linear.

    23,920 trainable parameters with 784 inputs, 30 hidden units and 10 classes; 96,306 with 5,995 inputs, twice 16
    hidden units and two classes.
    """

    hidden: Units | Annotated[tuple[Units, ...], Field(min_length=1)] = Field(
        30, description="hidden units; a list where there are several hidden layers"
    )

    @field_validator("hidden", mode="before")
    @classmethod
    def _whole(cls, hidden: Any) -> Any:
        """One error instead of one for each form that is allowed."""
        units = hidden if isinstance(hidden, list | tuple) else [hidden]
        if not units or any(type(n) is not int or n < 1 for n in units):
            what = f"{hidden!r} is no number of hidden units"
            raise UserError("hidden", what, "give a whole number from 1 on, or a list of such")
        return hidden

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        from ._blocks import linear

        hidden = (self.hidden,) if isinstance(self.hidden, int) else self.hidden
        sizes = math.prod(shape), *hidden
        layers = itertools.chain.from_iterable(linear(*pair) for pair in itertools.pairwise(sizes))
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], classes))
