"""DenseNet (Huang et al. 2017, CVPR), with the layer names and initial weights of torchvision's class.

Importing torchvision's class would import all of torchvision, which takes as long as importing torch itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class DenseNet(nn.Module):
    """A 7x7 stem, dense blocks with transitions between them, batch norm, global average pool, linear layer.

    It maps images (batch, 3, height, width) to logits (batch, classes). Tensors, their names and the order in which
    weights are drawn equal those of `torchvision.models.DenseNet`, so that equal random states give equal weights.

    Parameters
    ----------
    growth : number of channels that each layer adds
    blocks : number of layers in each dense block
    stem : number of channels of the first convolution
    bottleneck : channels between the two convolutions of a layer, as a multiple of `growth`
    classes : number of logits
    """

    def __init__(self, growth: int, blocks: Sequence[int], stem: int, bottleneck: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential()
        self.features.add_module("conv0", nn.Conv2d(3, stem, kernel_size=7, stride=2, padding=3, bias=False))
        self.features.add_module("norm0", nn.BatchNorm2d(stem))
        self.features.add_module("relu0", nn.ReLU(inplace=True))
        self.features.add_module("pool0", nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
        channels = stem
        for number, layers in enumerate(blocks, start=1):
            if number > 1:
                self.features.add_module(f"transition{number - 1}", Transition(channels))
                channels //= 2
            self.features.add_module(f"denseblock{number}", Block(channels, layers, growth, bottleneck * growth))
            channels += layers * growth
        self.features.add_module("norm5", nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, classes)
        # Drawn after all layers were built, in torchvision's order, so that equal seeds give equal weights.
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (batch, classes) of images (batch, channels, height, width)."""
        features = functional.relu(self.features(x), inplace=True)
        return self.classifier(torch.flatten(functional.adaptive_avg_pool2d(features, (1, 1)), 1))


class Block(nn.ModuleDict):
    """A dense block: each layer takes the channels of the block's input and of all previous layers' outputs.

    `channels` is the number of channels of the input, `growth` the number that each layer adds, and `inner` the number
    between the two convolutions of a layer.
    """

    def __init__(self, channels: int, layers: int, growth: int, inner: int) -> None:
        super().__init__()
        for n in range(layers):
            self.add_module(f"denselayer{n + 1}", Layer(channels + n * growth, growth, inner))

    def forward(self, x: Tensor) -> Tensor:
        """Return the channels of `x` (batch, channels, height, width), followed by the channels of each layer."""
        parts = [x]
        for layer in self.values():
            parts.append(layer(torch.cat(parts, 1)))
        return torch.cat(parts, 1)


class Layer(nn.Module):
    """Batch norm, ReLU and a 1x1 convolution to `inner` channels; then the same with a 3x3 convolution to `growth`."""

    def __init__(self, channels: int, growth: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(channels, inner, kernel_size=1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(inner), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(inner, growth, kernel_size=3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the channels that the layer adds (batch, growth, height, width)."""
        return self.conv2(self.relu2(self.norm2(self.conv1(self.relu1(self.norm1(x))))))


class Transition(nn.Sequential):
    """Batch norm, ReLU, a 1x1 convolution to half of the channels, and average pooling that halves both sides."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.relu = nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(channels, channels // 2, kernel_size=1, bias=False)
        self.pool = nn.AvgPool2d(kernel_size=2, stride=2)
