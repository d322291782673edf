"""EfficientNet-Lite0 in plain PyTorch, with the layer names of the published weights.

Tan and Le 2019 (ICML), without squeeze-excitation and with ReLU6, as released for TensorFlow Lite in 2020.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import pad

STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""For each stage: number of blocks, side of the filters, stride of the first block, expansion, output channels."""
STEM, HEAD = 32, 1280
"""Output channels of the first and of the last convolution."""


class EfficientNetLite0(nn.Module):
    """A 3x3 stem, seven stages of inverted residual blocks, a 1x1 convolution, global average pool, linear layer.

    It maps images (batch, 3, height, width), with sides that are multiples of 32, to logits (batch, classes). `dropout`
    is the probability of dropout before the linear layer; the stochastic depth of the published training is left out.
    """

    def __init__(self, classes: int, dropout: float) -> None:
        super().__init__()
        self.conv_stem, self.bn0 = Same(3, STEM, 3, 2), _norm(STEM)
        self.blocks = nn.Sequential()
        before = STEM
        for blocks, side, stride, expansion, channels in STAGES:
            for n in range(blocks):
                self.blocks.append(Block(before, channels, side, 1 if n else stride, expansion))
                before = channels
        self.conv_head, self.bn1 = Same(before, HEAD, 1), _norm(HEAD)
        self.act, self.dropout, self.fc = nn.ReLU6(), nn.Dropout(dropout), nn.Linear(HEAD, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
        nn.init.normal_(self.fc.weight, std=0.01)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (batch, classes) of images (batch, 3, height, width)."""
        x = self.blocks(self.act(self.bn0(self.conv_stem(x))))
        x = self.act(self.bn1(self.conv_head(x))).mean((2, 3))
        return self.fc(self.dropout(x))


class Block(nn.Module):
    """An inverted residual block: 1x1 expansion, depthwise convolution and 1x1 projection, each with batch norm.

    It maps `before` to `after` channels; `side` and `stride` belong to the depthwise convolution. The input is added to
    the output if both have the same shape. With `expansion` 1 there is no first convolution.
    """

    def __init__(self, before: int, after: int, side: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        self.expands, self.adds = expansion > 1, stride == 1 and before == after
        if self.expands:
            self.expand_conv, self.bn0 = Same(before, inner, 1), _norm(inner)
        self.depthwise_conv, self.bn1 = Same(inner, inner, side, stride, groups=inner), _norm(inner)
        self.project_conv, self.bn2 = Same(inner, after, 1), _norm(after)
        self.act = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, before, height, width) to (batch, after, height / stride, width / stride)."""
        y = self.act(self.bn0(self.expand_conv(x))) if self.expands else x
        y = self.bn2(self.project_conv(self.act(self.bn1(self.depthwise_conv(y)))))
        return x + y if self.adds else y


class Same(nn.Conv2d):
    """A convolution without bias, padded as TensorFlow's SAME. With stride 2, sides of the input must be even."""

    def __init__(self, before: int, after: int, side: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(
            before, after, side, stride, padding=side // 2 if stride == 1 else 0, groups=groups, bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, before, height, width) to (batch, after, height / stride, width / stride)."""
        if self.stride[0] == 2:
            # An even side needs side - 2 zeros in all, and TensorFlow puts the odd one behind.
            low, high = (self.kernel_size[0] - 2) // 2, (self.kernel_size[0] - 1) // 2
            x = pad(x, (low, high, low, high))
        return super().forward(x)


def _norm(channels: int) -> nn.BatchNorm2d:
    # The published momentum of 0.01 would keep 13 % of ImageNet's statistics after 200 steps.
    """Return a batch-norm layer with the published eps, and with PyTorch's default momentum."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.1)
