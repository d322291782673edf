"""FedAdam: Reddi et al., Adaptive Federated Optimization (2021), algorithm 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Mean, Server

if TYPE_CHECKING:
    from torch import Tensor


class FedAdam(Algorithm):
    """Adam at the server, which takes the mean change D of the clients' models as its gradient.

    m <- b1 m + (1 - b1) D, v <- b2 v + (1 - b2) D^2, x <- x + eta_g m / (sqrt(v) + tau), without bias correction; m
    starts at 0 and v at `v0`. Only parameters that are trained and travel go through Adam; running statistics are
    plainly averaged. In round 1 a coordinate moves by about eta_g, whatever the clients' learning rate is. A large
    eta_g therefore destroys pre-trained weights.

    Down and up each round: as FedAvg. Kept at the server: m and v. Defaults: b1 0.9, b2 0.99 and tau 1e-3, as the paper
    recommends, and v0 = tau^2, as it requires. eta_g 0.01 is our decision; the values of UniFed and TsmoBN are not
    known.
    """

    paper = "Reddi et al. 2021"
    server_lr: float = Field(0.01, gt=0, description="learning rate of the server (eta_g)")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the running mean of the models' changes")
    beta2: float = Field(0.99, ge=0, le=1, description="decay of the running mean of the squared changes")
    tau: float = Field(1e-3, gt=0, description="constant added to the square root: the degree of adaptivity")
    v0: float | None = Field(None, ge=0, description="initial value of v; null: tau squared")

    def server_state(self, server: Server) -> dict[str, Tensor]:
        start = self.tau**2 if self.v0 is None else self.v0
        return {"m": server.zeros(), "v": server.zeros().add_(start)}

    def update(self, server: Server, mean: Mean) -> None:
        server.average_statistics(mean)
        change = mean.params - server.params
        m = server.state["m"].lerp_(change, 1 - self.beta1)
        v = server.state["v"].mul_(self.beta2).addcmul_(change, change, value=1 - self.beta2)
        server.params.addcdiv_(m, v.sqrt().add_(self.tau), value=self.server_lr)
