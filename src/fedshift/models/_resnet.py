"""ResNets for small images: He et al. 2016 (CVPR), section 4.2, with shortcuts without parameters (option A)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

Norm = Callable[[int], nn.Module]
WIDTHS = (16, 32, 64)


class ResNet(nn.Module):
    """A 3x3 stem, three stages of `depth` basic blocks (16, 32, 64 channels), global average pool, linear layer.

    It maps images (batch, channels, height, width) to logits (batch, classes). `norm(n)` returns a norm layer for n
    channels.
    """

    def __init__(self, channels: int, classes: int, depth: int, norm: Norm) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(channels, WIDTHS[0]), norm(WIDTHS[0]), nn.ReLU())
        self.blocks = nn.Sequential()
        before = WIDTHS[0]
        for width in WIDTHS:
            for _ in range(depth):
                self.blocks.append(Block(before, width, norm))
                before = width
        self.classifier = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (batch, classes) of images (batch, channels, height, width)."""
        return self.classifier(self.blocks(self.stem(x)).mean((2, 3)))


class Block(nn.Module):
    """A residual block: convolution, norm, ReLU, convolution, norm; the shortcut is added, then ReLU.

    It maps `before` to `width` channels. If these differ, the stride is 2, and the shortcut takes every second pixel
    and adds zero channels on both sides, so it has no parameters.
    """

    def __init__(self, before: int, width: int, norm: Norm) -> None:
        super().__init__()
        self.stride = 1 if before == width else 2
        self.padding = (width - before) // 2
        self.convolution1 = _convolution(before, width, self.stride)
        self.norm1 = norm(width)
        self.convolution2 = _convolution(width, width)
        self.norm2 = norm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, before, height, width) to (batch, width, height / stride, width / stride), halves rounded up."""
        y = functional.relu(self.norm1(self.convolution1(x)))
        y = self.norm2(self.convolution2(y))
        if self.stride > 1:
            # Option A: every second pixel, and zero channels on both sides; no weights.
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return functional.relu(x + y)


def _convolution(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution without bias, from `before` to `after` channels."""
    return nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False)
