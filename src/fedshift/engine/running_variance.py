"""Running variances that travel: the mean of the clients' variances, as published, or the variance of all data."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..nn.batchnorm import batch_norms
from ..nn.flat_state import Layout


class RunningVariances:
    """Places of running means and variances in the part of a flat state that travels.

    If `how` is "averaged", or if the variances stay at the clients, the methods change nothing.
    """

    def __init__(
        self, how: Literal["averaged", "pooled"], layout: Layout, shared: slice, model: nn.Module, device: torch.device
    ) -> None:
        tracked = [k for k in batch_norms(model) if f"{k}.running_var" in layout.places]
        layers = [k for k in tracked if layout.places[f"{k}.running_var"].span.stop <= shared.stop]
        self.pooled = how == "pooled" and bool(layers)
        if self.pooled:
            spans = [[layout.places[f"{k}.running_{problem}"].span for k in layers] for problem in ("mean", "var")]
            mean, var = (torch.cat([torch.arange(s.start, s.stop) for s in kind]) - shared.start for kind in spans)
            self._mean = mean.to(device)
            self._var = var.to(device)

    def gather(self, shared: Tensor, around: Tensor) -> None:
        """Turn a client's variances into mean squares around other means, so that they can be averaged over clients."""
        if self.pooled:
            shared[self._var] += (shared[self._mean] - around[self._mean]) ** 2

    def pool(self, shared: Tensor, around: Tensor) -> None:
        """Turn averaged mean squares back into variances: the reverse of `gather`."""
        if self.pooled:
            # Rounding can leave a variance below zero where clients hardly differ.
            shared[self._var] = (shared[self._var] - (shared[self._mean] - around[self._mean]) ** 2).clamp(min=0)
