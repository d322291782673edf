"""A server that goes further where clients differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.algorithms import Algorithm, Local, Mean, Server

from ._geometry import squared

if TYPE_CHECKING:
    from torch import Tensor


class Extrapolated(Algorithm):
    """FedAvg times max(1, mean |d|^2 / (2 |mean d|^2 + eps)), where d are the clients' changes. Up: one float more."""

    paper = "control"
    eps: float = Field(0.0, ge=0, description="number added to the denominator")

    def report(self, local: Local) -> dict[str, Tensor]:
        return super().report(local) | {"square": squared(local.params - local.received_params)}

    def update(self, server: Server, mean: Mean) -> None:
        server.average_statistics(mean)
        change = mean.params - server.params
        rate = max(1.0, float(mean["square"] / (2 * squared(change) + self.eps + 1e-12)))
        server.params.add_(change, alpha=rate)
        server.logged["rate"] = rate
