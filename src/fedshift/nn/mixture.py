"""The mixture of batch and instance norm of gPerXAN: Le et al. 2024 (CVPR, arXiv 2403.15605)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ScoredBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with a score (1,), which belongs to its parameters: where they stay at home, so does the score."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.score = nn.Parameter(torch.ones(1))


class ScoredInstanceNorm2d(nn.InstanceNorm2d):
    """Instance norm with factor, shift and a score (1,), and without running statistics."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=True)
        self.score = nn.Parameter(torch.ones(1))


class Mixture(nn.Module):
    """Batch norm and instance norm of the same images, in shares that are learnt: y = w_B BN(x) + w_I IN(x).

    The shares are the softmax of the two parts' scores, which start at 1, so that both have one half. A policy that
    keeps batch norm at home keeps the batch part with its score; the instance part and its score travel. Test-time
    statistics replace those of the batch part alone.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.batch = ScoredBatchNorm2d(channels)
        self.instance = ScoredInstanceNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixture of a batch (batch, channels, height, width)."""
        share = torch.sigmoid(self.batch.score - self.instance.score)  # softmax of two scores
        mixed: Any = share * self.batch(x) + (1 - share) * self.instance(x)
        return mixed
