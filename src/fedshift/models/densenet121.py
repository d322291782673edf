"""DenseNet121 as in torchvision (Huang et al. 2017): the network of Camelyon17-WILDS, TsmoBN and UniFed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base import Model, require_images

if TYPE_CHECKING:
    from torch import nn


LEAST = 29
"""Least side in pixels: halved five times, rounded down at poolings, it leaves one pixel."""


class DenseNet121(Model):
    """DenseNet121, not pretrained.

    It has 6,955,906 trainable parameters with two classes and 121 BN layers, and takes RGB images of 29x29 and more.
    """

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torchvision.models import densenet121

        require_images(self, shape, LEAST, channels=3)
        return densenet121(weights=None, num_classes=classes)
