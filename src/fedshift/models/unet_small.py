"""A U-Net with few channels, for laptops."""

from __future__ import annotations

from pydantic import Field

from .unet import UNet


class UNetSmall(UNet):
    """The network of `unet` with few channels: 0.1 million parameters."""

    display_name = "UNet, small"
    features: tuple[int, int, int, int, int, int] = Field(
        (8, 8, 16, 32, 64, 8), description="channels of the five levels, and of the layers before the last"
    )
