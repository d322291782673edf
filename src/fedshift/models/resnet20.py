"""ResNet-20 for small images, with batch or group norm (He et al. 2016): the network for CIFAR in FedTAN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from ..core.errors import UserError
from ._base import Model, require_images

if TYPE_CHECKING:
    from torch import nn


class ResNet20(Model):
    """19 convolutions without bias, each with its norm, option A shortcuts, and a linear layer.

    It has 269,722 trainable parameters with three channels and 10 classes, for batch and group norm alike. There are 19
    norms of 688 channels in all; without norms, 268,346 parameters remain. Initial weights of convolutions and of the
    linear layer are Kaiming-normal (fan in); norms start at scale 1 and shift 0.
    """

    norm: Literal["batch", "group", "none"] = Field(
        "batch", description="batch norm; group norm, which needs no statistics; or no norm"
    )
    groups: int = Field(
        2, ge=1, le=16, description="number of groups of channels in each group norm; unused by other norms"
    )

    @field_validator("groups")
    @classmethod
    def _even(cls, groups: int) -> int:
        if 16 % groups:
            raise UserError("groups", f"{groups} groups do not divide 16 channels evenly", "take 1, 2, 4, 8 or 16")
        return groups

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        from ._resnet import Norm, ResNet

        require_images(self, shape, least=1)

        def group(channels: int) -> nn.Module:
            return nn.GroupNorm(self.groups, channels)

        norms: dict[str, Norm] = {"batch": nn.BatchNorm2d, "group": group, "none": nn.Identity}
        return ResNet(shape[0], classes, depth=3, norm=norms[self.norm])
