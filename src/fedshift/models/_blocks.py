"""Layers with BN and ReLU, of which the plain networks of the papers consist."""

from __future__ import annotations

from typing import Any

from torch import nn


def convolution(before: int, after: int, **options: Any) -> tuple[nn.Module, ...]:
    """Return a convolution with bias, BN and ReLU; `options` are those of `nn.Conv2d`."""
    return nn.Conv2d(before, after, **options), nn.BatchNorm2d(after), nn.ReLU()


def linear(before: int, after: int) -> tuple[nn.Module, ...]:
    """Return a linear layer with bias, BN and ReLU."""
    return nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()
