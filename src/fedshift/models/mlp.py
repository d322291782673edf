"""Perceptrons with BN: one hidden layer for MNIST in FedTAN (784-30-10), two for ABIDE in FedBN (5995-16-16-2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, field_validator

from ..core.errors import UserError
from ._normed import BY_IMAGE, OF_VECTORS, Normed

if TYPE_CHECKING:
    from torch import nn

Units = Annotated[int, Field(ge=1)]


class MLP(Normed):
    """Multilayer perceptron: linear, BN and ReLU for each hidden layer, then linear.

    It has 23,920 trainable parameters with 784 inputs, 30 hidden units and 10 classes, and 96,306 with 5,995 inputs,
    two hidden layers of 16 units and two classes.
    """

    without: ClassVar[Mapping[str, str]] = {
        "weight": "it has no convolutions, whose weights are standardised",
        **dict.fromkeys(BY_IMAGE, OF_VECTORS),
    }
    hidden: Units | Annotated[tuple[Units, ...], Field(min_length=1)] = Field(
        30, description="number of hidden units; a list for several hidden layers"
    )

    @field_validator("hidden", mode="before")
    @classmethod
    def _whole(cls, hidden: Any) -> Any:
        """Validate the setting `hidden` and return it: a whole number of 1 or more, or a list of them.

        Raises one UserError, where pydantic would raise an error for each permitted form.
        """
        units = hidden if isinstance(hidden, list | tuple) else [hidden]
        if not units or any(type(n) is not int or n < 1 for n in units):
            problem = f"{hidden!r} is not a number of hidden units"
            raise UserError("hidden", problem, "give a whole number of 1 or more, or a list of such numbers")
        return hidden

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        from ._blocks import linear

        hidden = (self.hidden,) if isinstance(self.hidden, int) else self.hidden
        sizes = math.prod(shape), *hidden
        layers = itertools.chain.from_iterable(linear(*pair) for pair in itertools.pairwise(sizes))
        return self.normed(nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], classes)))
