"""FedAdam: Reddi et al., Adaptive Federated Optimization (2021), algorithm 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Mean, Server

if TYPE_CHECKING:
    from torch import Tensor


class FedAdam(Algorithm):
    """Adam at the server, on the mean change D of the clients' models as its gradient.

    m <- b1 m + (1 - b1) D, v <- b2 v + (1 - b2) D^2, x <- x + eta_g m / (sqrt(v) + tau), without bias correction;
    m starts at 0 and v at `v0`. Only what is trained and travels goes through Adam; running statistics are plainly
    averaged. A coordinate moves by about eta_g in round 1, whatever the clients' rate: a large eta_g destroys
    pre-trained weights.

    Down and up each round as FedAvg. Kept: m and v at the server. Defaults: b1 0.9, b2 0.99, tau 1e-3 as the paper
    recommends, v0 tau^2 as it requires; eta_g 0.01 is our decision, UniFed's and TsmoBN's are not known.
    """

    paper = "Reddi et al. 2021"
    server_lr: float = Field(0.01, gt=0, description="the server's learning rate (eta_g)")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the mean of changes")
    beta2: float = Field(0.99, ge=0, le=1, description="decay of the mean of squared changes")
    tau: float = Field(1e-3, gt=0, description="added to the root: the degree of adaptivity")
    v0: float | None = Field(None, ge=0, description="where v starts; null: tau squared")

    def server_state(self, server: Server) -> dict[str, Tensor]:
        start = self.tau**2 if self.v0 is None else self.v0
        return {"m": server.zeros(), "v": server.zeros().add_(start)}

    def update(self, server: Server, mean: Mean) -> None:
        server.average_statistics(mean)
        change = mean.params - server.params
        m = server.state["m"].lerp_(change, 1 - self.beta1)
        v = server.state["v"].mul_(self.beta2).addcmul_(change, change, value=1 - self.beta2)
        server.params.addcdiv_(m, v.sqrt().add_(self.tau), value=self.server_lr)
