"""Networks without normalisation layers: convolutions with standardised weights, and adaptive gradient clipping.

Zhuang & Lyu 2024 (ICLR, arXiv 2306.05879, FedWon) after Brock et al. 2021 (arXiv 2101.08692 and 2102.06171).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn

from .features import head

LEAST_NORM = 1e-3
"""Norm that a row of weights counts with at least in adaptive clipping, so that zeros can grow."""


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose weights have mean 0 and a fixed variance in each filter, times a learnt gain (FedWon).

    With w the N weights of a filter, the convolution is by

        gain * 1.712859 * (w - mean(w)) / sqrt(N var(w) + 1e-4),

    var biased. The constant is sqrt(2 / (1 - 1/pi)), which gives ReLU's outputs variance 1; `gain` (filters,) starts at
    1. All of it travels, and no policy of norms is about it: there are no statistics.

    Our decisions, where the authors' text differs or does not say: the last convolution of a network without linear
    layers, transposed convolutions and linear layers are as they were; biases stay; 1e-4 is added, where NFNets take
    the larger of both. The authors have published no code.

    The mean of two clients' filters is not the filter between them. Their weights are scale-free, so that the norm is
    a hidden weight: of (1, 3) and (2, -2) the mean (1.5, 0.5) is standardised to (.7071, -.7071), the second client's
    filter and the first one's reversed. This is what the method does; nothing is mended here.
    """

    eps: ClassVar[float] = 1e-4
    scale: ClassVar[float] = 1.7128585504496627

    def __init__(self, like: nn.Conv2d) -> None:
        """Take the place of a convolution, with its weights and bias."""
        size = like.in_channels, like.out_channels, like.kernel_size
        options = {name: getattr(like, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")}
        super().__init__(*size, bias=like.bias is not None, **options)  # type: ignore[arg-type]
        self.weight, self.bias = like.weight, like.bias
        self.gain = nn.Parameter(torch.ones(like.out_channels))

    def standardised(self) -> Tensor:
        """Return the weights that the convolution is by, (filters, channels, height, width)."""
        rows = self.weight.flatten(1)
        centred = rows - rows.mean(1, keepdim=True)
        factor = self.gain[:, None] * self.scale / (centred.square().sum(1, keepdim=True) + self.eps).sqrt()
        return (centred * factor).view_as(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of images (batch, channels, height, width)."""
        return self._conv_forward(x, self.standardised(), self.bias)


def clipped_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters whose gradients adaptive clipping is about: all but those of the network's last layer."""
    last = {id(parameter) for parameter in head(model).parameters()}
    return [parameter for parameter in model.parameters() if parameter.requires_grad and id(parameter) not in last]


def clip_rows(pairs: Iterable[tuple[Tensor, Tensor]], most: float) -> None:
    """Shorten gradients in place, row by row, to `most` times the norm of their weights (adaptive gradient clipping).

    `pairs` are weights and their gradients, of one shape. A row is what makes one output: a filter, or the weights of
    a linear unit; a vector is one row. A row of weights counts with a norm of 0.001 at least.
    """
    for weight, grad in pairs:
        rows = [t.flatten(1) if t.dim() > 1 else t.reshape(1, -1) for t in (weight.detach(), grad)]
        bound, norm = (torch.linalg.vector_norm(row, dim=1) for row in rows)
        factor = (most * bound.clamp(min=LEAST_NORM) / norm).clamp(max=1)
        grad.mul_(factor.view(-1, *[1] * (grad.dim() - 1)) if grad.dim() > 1 else factor[0])
