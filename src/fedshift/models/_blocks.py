"""Layers with batch norm and ReLU, the building blocks of the papers' simple networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def convolution(before: int, after: int, **options: Any) -> tuple[nn.Module, ...]:
    """Return a convolution with bias, batch norm and ReLU, from `before` to `after` channels.

    `options` are further arguments of `nn.Conv2d`.
    """
    return nn.Conv2d(before, after, **options), nn.BatchNorm2d(after), nn.ReLU()


def linear(before: int, after: int) -> tuple[nn.Module, ...]:
    """Return a linear layer with bias, batch norm and ReLU, from `before` to `after` units."""
    return nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()


class MeanOfCells(nn.AdaptiveAvgPool2d):
    """Adaptive average pooling to a square of cells whose backward pass is deterministic on a GPU too.

    On a CPU it is torch's own pooling, with equal bits.
    """

    output_size: int

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of each cell: (batch, channels, height, width) to (batch, channels, cells, cells)."""
        return super().forward(x) if x.is_cpu else means(means(x, -2, self.output_size), -1, self.output_size)


def means(x: Tensor, dim: int, cells: int) -> Tensor:
    """Return the means of `x` over `cells` equal cells along dimension `dim`; neighbouring cells may overlap by one."""
    size = x.shape[dim]
    # As in torch's adaptive pooling: starts are rounded down and ends up, so that cells may share a row.
    bounds = [(k * size // cells, -(-(k + 1) * size // cells)) for k in range(cells)]
    return torch.stack([x.narrow(dim, first, end - first).mean(dim) for first, end in bounds], dim)
