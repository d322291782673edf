"""Several networks that predict together, as one module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Outputs = Literal["logits", "probabilities"]
"""Outputs of several networks that are averaged: their logits, or the probabilities that softmax makes of these."""


class Blended(nn.Module):
    """Networks that predict together: the weighted mean of their logits, or the logarithm of that of probabilities.

    Parameters
    ----------
    networks : modules that map a batch to logits (batch, classes)
    weights : weight of each network; the sum is 1, and with probabilities all are above 0
    of : the outputs that are averaged
    """

    def __init__(self, networks: Sequence[nn.Module], weights: Sequence[float], of: Outputs) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.weights = tuple(weights)
        self.of = of

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, classes) whose softmax is the prediction of all networks together."""
        outputs = [network(x) for network in self.networks]
        if self.of == "logits":
            return torch.stack([z * weight for z, weight in zip(outputs, self.weights, strict=True)]).sum(0)
        parts = [z.log_softmax(1) + math.log(weight) for z, weight in zip(outputs, self.weights, strict=True)]
        return torch.stack(parts).logsumexp(0)
