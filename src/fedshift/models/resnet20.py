"""ResNet-20 for small images (He et al. 2016), with batch norm or another norm: FedTAN's network for CIFAR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, field_validator

from ..core.errors import UserError
from ._base import require_images
from ._normed import RESIDUAL, Normed

if TYPE_CHECKING:
    from torch import nn


class ResNet20(Normed):
    """19 convolutions without bias, each with its norm, shortcuts without parameters, and a linear layer.

    It has 269,722 trainable parameters with three channels and 10 classes, for batch and group norm alike. There are 19
    norms of 688 channels in all; without norms, 268,346 parameters remain. Shortcuts are the paper's option A. Initial
    weights of convolutions and of the linear layer are Kaiming-normal (fan in); norms start at scale 1 and shift 0.
    """

    later_fields: ClassVar[frozenset[str]] = frozenset()
    without: ClassVar[Mapping[str, str]] = {"weight": RESIDUAL}
    groups: int = Field(
        2, ge=1, le=16, description="number of groups of channels in each group norm; unused by other norms"
    )

    @field_validator("groups")
    @classmethod
    def _even(cls, groups: int) -> int:
        """Raise UserError unless the number of groups divides 16, the smallest number of channels."""
        if 16 % groups:
            raise UserError("groups", f"{groups} groups do not divide 16 channels evenly", "take 1, 2, 4, 8 or 16")
        return groups

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        from ._resnet import ResNet

        require_images(self, shape, least=self.least(1, 5))
        return self.normed(ResNet(shape[0], classes, depth=3, norm=nn.BatchNorm2d))
