"""Layers with BN and ReLU, of which the plain networks of the papers consist."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def convolution(before: int, after: int, **options: Any) -> tuple[nn.Module, ...]:
    """Return a convolution with bias, BN and ReLU; `options` are those of `nn.Conv2d`."""
    return nn.Conv2d(before, after, **options), nn.BatchNorm2d(after), nn.ReLU()


def linear(before: int, after: int) -> tuple[nn.Module, ...]:
    """Return a linear layer with bias, BN and ReLU."""
    return nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()


class MeanOfCells(nn.AdaptiveAvgPool2d):
    """Adaptive average pooling to a square of cells that has a deterministic backward pass on a GPU, too.

    On a CPU it is torch's, with its bits.
    """

    output_size: int

    def forward(self, x: Tensor) -> Tensor:
        """Return the means of the cells: (batch, channels, height, width) to (batch, channels, cells, cells)."""
        return super().forward(x) if x.is_cpu else means(means(x, -2, self.output_size), -1, self.output_size)


def means(x: Tensor, dim: int, cells: int) -> Tensor:
    """Return the means of `x` over each of a number of cells along a dimension, which may overlap by one."""
    size = x.shape[dim]
    bounds = [(k * size // cells, -(-(k + 1) * size // cells)) for k in range(cells)]
    return torch.stack([x.narrow(dim, first, end - first).mean(dim) for first, end in bounds], dim)
