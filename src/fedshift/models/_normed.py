"""Networks whose norm is a setting: they are built with batch norm, in whose place others are put."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from ..core.errors import UserError
from ._base import Model

if TYPE_CHECKING:
    from torch import nn

BY_IMAGE = ("instance", "mixture")
"""Norms that need more than one pixel of each channel of an image."""
OF_VECTORS = "a hidden unit has one value of each image, which instance norm would make zero"
RESIDUAL = "networks with shortcuts need further changes to train without norms (Brock et al. 2021)"


class Normed(Model):
    """Base class of networks that can have another norm in the place of batch norm.

    All other layers, their names and their initial weights are the same with every norm.
    """

    later_fields: ClassVar[frozenset[str]] = frozenset({"norm", "groups"})
    without: ClassVar[Mapping[str, str]] = {}
    """Norms that the network cannot be built with, and why."""
    norm: Literal["batch", "group", "instance", "layer", "mixture", "weight", "none"] = Field(
        "batch",
        description="batch norm; group, instance or layer norm, which need no statistics of a batch; mixture of batch "
        "and instance norm (gPerXAN); standardised weights of convolutions and no norm (FedWon); or none",
    )
    groups: int = Field(2, ge=1, description="number of groups of channels in each group norm; unused by other norms")

    @model_validator(mode="after")
    def _has_this_norm(self) -> Normed:
        if self.norm in self.without:
            problem = f"{self.norm!r} cannot be built: {self.without[self.norm]}"
            raise UserError("norm", problem, "choose another norm or another model")
        return self

    def least(self, side: int, by_image: int) -> int:
        """Return the least side of images in pixels: `by_image` for norms that need several pixels of each image."""
        return by_image if self.norm in BY_IMAGE else side

    def normed(self, network: nn.Module) -> nn.Module:
        """Return a network with the chosen norm in the place of all its batch norm; with batch norm it is the same.

        Raises UserError if the groups do not divide the channels of a layer.
        """
        if self.norm == "batch":
            return network
        from torch import nn

        from ..nn.features import head
        from ..nn.norms import StandardisedConv2d

        last = head(network)
        for parent in list(network.modules()):
            for name, layer in list(parent.named_children()):
                if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                    setattr(parent, name, self._made(layer))
                elif self.norm == "weight" and type(layer) is nn.Conv2d and layer is not last:
                    setattr(parent, name, StandardisedConv2d(layer))
        return network

    def _made(self, batch_norm: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
        """Return the norm that takes the place of a batch norm."""
        from torch import nn

        from ..nn.norms import ImageLayerNorm, Mixture

        channels = batch_norm.num_features
        if self.norm == "group":
            # A group of a single hidden unit would make it zero.
            if channels % self.groups or (channels == self.groups and isinstance(batch_norm, nn.BatchNorm1d)):
                problem = f"{self.groups} groups do not divide {channels} channels evenly"
                raise UserError(f"model {self.name}.groups", problem, "choose a number that divides all layers")
            return nn.GroupNorm(self.groups, channels)
        if self.norm == "instance":
            return nn.InstanceNorm2d(channels, affine=True)
        if self.norm == "layer":
            return ImageLayerNorm(channels)
        return Mixture(channels) if self.norm == "mixture" else nn.Identity()
