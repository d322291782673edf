"""DenseNet121 as in torchvision: Huang et al. 2017, the network of Camelyon17-WILDS, TsmoBN and UniFed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import Model

if TYPE_CHECKING:
    from torch import nn


class DenseNet121(Model):
    """DenseNet121, not pretrained.

    6,955,906 trainable parameters with two classes; 121 BN layers.
    """

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torchvision.models import densenet121

        return densenet121(weights=None, num_classes=classes)
