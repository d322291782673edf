"""Running variances that travel: averaged over clients as published, or made those of all their data."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..nn.batchnorm import batch_norms
from ..nn.flat_state import Layout


class RunningVariances:
    """Where running means and variances lie in the part of a flat state that travels.

    With `how` as "averaged", or where they stay at the clients, nothing is done to them.
    """

    def __init__(
        self, how: Literal["averaged", "pooled"], layout: Layout, shared: slice, model: nn.Module, device: torch.device
    ) -> None:
        travels = shared.stop >= layout.statistics.stop
        layers = [k for k in batch_norms(model) if f"{k}.running_var" in layout.places] if travels else []
        self.pooled = how == "pooled" and bool(layers)
        if self.pooled:
            spans = [[layout.places[f"{k}.running_{what}"].span for k in layers] for what in ("mean", "var")]
            mean, var = (torch.cat([torch.arange(s.start, s.stop) for s in of]) - shared.start for of in spans)
            self._mean, self._var = mean.to(device), var.to(device)

    def gather(self, shared: Tensor, around: Tensor) -> None:
        """Make a client's variances mean squares around other running means: their mean over clients is of all data."""
        if self.pooled:
            shared[self._var] += (shared[self._mean] - around[self._mean]) ** 2

    def pool(self, shared: Tensor, around: Tensor) -> None:
        """Take back what `gather` did, once clients' tensors are averaged."""
        if self.pooled:
            shared[self._var] = (shared[self._var] - (shared[self._mean] - around[self._mean]) ** 2).clamp(min=0)
