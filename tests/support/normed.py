"""The network of the contract with each norm in the place of its own."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedshift.contract.fixtures import network
from fedshift.nn.norms import ImageLayerNorm, Mixture, StandardisedConv2d

MAKES: dict[str, Any] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(2, channels),
    "layer": ImageLayerNorm,
    "instance": lambda channels: nn.InstanceNorm2d(channels, affine=True),
    "plain": nn.InstanceNorm2d,
    "mixture": Mixture,
    "weight": lambda channels: nn.Identity(),
}
"""Norms by name, for a number of channels; `weight` has none, and standardises the weights of convolutions."""


def normed(norm: str) -> nn.Module:
    """Return the network of the contract with another norm."""
    model: Any = network("no norm")
    model[1], model[4] = MAKES[norm](4).double(), MAKES[norm](6).double()
    if norm == "weight":
        model[0], model[3] = StandardisedConv2d(model[0]).double(), StandardisedConv2d(model[3]).double()
    return model
