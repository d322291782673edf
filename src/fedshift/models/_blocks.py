"""A layer with the BN and the ReLU that follow it, as the plain networks of these papers are made of."""

from __future__ import annotations

from typing import Any

from torch import nn


def convolution(before: int, after: int, **given: Any) -> tuple[nn.Module, ...]:
    """Convolution with bias, BN, ReLU."""
    return nn.Conv2d(before, after, **given), nn.BatchNorm2d(after), nn.ReLU()


def linear(before: int, after: int) -> tuple[nn.Module, ...]:
    """Linear with bias, BN, ReLU."""
    return nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()
