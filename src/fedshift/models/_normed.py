"""Base class of networks whose normalisation is a setting: other norms replace the batch norm they are built with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from ..core.errors import UserError
from ._base import Model

if TYPE_CHECKING:
    from torch import nn

BY_IMAGE = ("instance", "mixture")
"""Norms that normalise each channel of an image by itself, and so need more than one pixel."""
OF_VECTORS = "a hidden unit has one value of each image, which instance norm would make zero"
RESIDUAL = "networks with shortcuts need further changes to train without norms (Brock et al. 2021)"


class Normed(Model):
    """Base class of networks in which another norm can replace batch norm, by the setting `norm`.

    All other layers, their names and their initial weights are the same with every norm.
    """

    later_fields: ClassVar[frozenset[str]] = frozenset({"norm", "groups"})
    without: ClassVar[Mapping[str, str]] = {}
    """Norms that are not possible in this network, each with the reason."""
    norm: Literal["batch", "group", "instance", "layer", "mixture", "weight", "none"] = Field(
        "batch",
        description="batch norm; group, instance or layer norm, which need no statistics of a batch; mixture of batch "
        "and instance norm (gPerXAN); standardised weights of convolutions and no norm (FedWon); or none",
    )
    groups: int = Field(2, ge=1, description="number of groups of channels in each group norm; unused by other norms")

    @model_validator(mode="after")
    def _has_this_norm(self) -> Normed:
        """Raise UserError if the network cannot be built with the chosen norm."""
        if self.norm in self.without:
            problem = f"{self.norm!r} cannot be built: {self.without[self.norm]}"
            raise UserError("norm", problem, "choose another norm or another model")
        return self

    def least(self, side: int, by_image: int) -> int:
        """Return the smallest side of an image in pixels that the network supports with the chosen norm.

        This is `by_image` for the norms BY_IMAGE, and `side` for all others.
        """
        return by_image if self.norm in BY_IMAGE else side

    def normed(self, network: nn.Module) -> nn.Module:
        """Replace all batch-norm layers of `network` by the chosen norm in place, and return it.

        With `norm: weight` they are removed, and all convolutions but a last one get standardised weights; with `norm:
        batch`, nothing changes. Raises UserError if `groups` does not divide the channels of a layer.
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
        """Return a layer of the chosen norm with as many channels as `batch_norm`, which it replaces."""
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
