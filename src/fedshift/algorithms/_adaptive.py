"""The base class of adaptive servers: Reddi et al., Adaptive Federated Optimization (2021), algorithm 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Mean, Server

if TYPE_CHECKING:
    from torch import Tensor


class Adaptive(Algorithm):
    """A server optimiser whose step is divided by the square root of a second moment v, coordinate by coordinate.

    With x the server's parameters and D the mean change of the clients' models: m <- b1 m + (1 - b1) D and x <- x +
    eta_g m / (sqrt(v) + tau), without bias correction. Subclasses differ in how v is updated (`second_moment`). Running
    statistics of batch norm are averaged, without moments.
    """

    paper = "Reddi et al. 2021"
    server_lr: float = Field(0.01, gt=0, description="learning rate of the server (eta_g)")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the running mean of the models' changes")
    tau: float = Field(1e-3, gt=0, description="constant added to the square root: the degree of adaptivity")
    v0: float | None = Field(None, ge=0, description="initial value of v; null: tau squared")

    def server_state(self, server: Server) -> dict[str, Tensor]:
        start = self.tau**2 if self.v0 is None else self.v0
        return {"m": server.zeros(), "v": server.zeros().add_(start)}

    def second_moment(self, v: Tensor, change: Tensor) -> None:
        """Update the second moment v in place, given the mean change D of the clients' models; both are flat."""
        raise NotImplementedError

    def update(self, server: Server, mean: Mean) -> None:
        server.average_statistics(mean)
        change, v = mean.params - server.params, server.state["v"]
        # lerp_ and second_moment change the server's state in place.
        m = server.state["m"].lerp_(change, 1 - self.beta1)
        self.second_moment(v, change)
        server.params.addcdiv_(m, v.sqrt().add_(self.tau), value=self.server_lr)
