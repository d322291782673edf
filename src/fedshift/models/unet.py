"""MONAI's U-Net (Ronneberger et al. 2015), with batch norm or another norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import require_images
from ._normed import Normed

if TYPE_CHECKING:
    from torch import nn


class UNet(Normed):
    """MONAI's `BasicUNet` with batch norm, whose last layer is a 1x1 convolution.

    MONAI's default norm is `instance`, which has no running statistics: test-time statistics would have no effect on
    it, and BN policies only if `norms` of the study names it. Images of any size from 16x16 pixels are possible (32x32
    with instance norm): odd sides are padded inside by their last row or column.
    """

    tasks = ("segmentation",)
    libraries = ("monai.networks.nets",)
    features: tuple[int, int, int, int, int, int] = Field(
        (32, 32, 64, 128, 256, 32), description="channels of the five levels, and of the layers before the last"
    )
    dropout: float = Field(0, ge=0, lt=1, description="probability with which a value is dropped in each block")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from contextlib import redirect_stdout
        from io import StringIO

        from monai.networks.nets import BasicUNet

        require_images(self, shape, least=self.least(16, 32))
        with redirect_stdout(StringIO()):  # it prints its features
            network = BasicUNet(
                spatial_dims=2,
                in_channels=shape[0],
                out_channels=classes,
                features=self.features,
                norm="batch",
                dropout=self.dropout,
            )
        return self.normed(network)
