"""FedAvgM: Hsu et al., Measuring the Effects of Non-Identical Data Distribution (2019), section 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Mean, Server

if TYPE_CHECKING:
    from torch import Tensor


class FedAvgM(Algorithm):
    """Momentum at the server, which takes the mean change D of the clients' models as its step.

    With x the server's parameters: u <- beta u + D and x <- x + eta_g u, where u starts at 0. This is heavy-ball
    momentum without a factor 1 - beta, so that x finally moves by D / (1 - beta) if D stays the same. Only parameters
    that are trained and exchanged have momentum; running statistics of batch norm are averaged. With beta 0 and eta_g 1
    this is FedAvg.

    Server and clients exchange the tensors of FedAvg. The server keeps u between rounds. Defaults: beta 0.9 and eta_g
    1. In the code of Reddi et al. (2021), the best eta_g with beta 0.9 was 1 for CIFAR-100 and 10^-0.5 for EMNIST.
    FedFA's code takes beta 0.01, and gives momentum to running statistics too.
    """

    paper = "Hsu et al. 2019"
    beta: float = Field(0.9, ge=0, lt=1, description="weight of the server's momentum")
    server_lr: float = Field(1.0, gt=0, description="learning rate of the server (eta_g)")

    def server_state(self, server: Server) -> dict[str, Tensor]:
        return {"u": server.zeros()}

    def update(self, server: Server, mean: Mean) -> None:
        server.average_statistics(mean)
        u = server.state["u"].mul_(self.beta).add_(mean.params - server.params)
        server.params.add_(u, alpha=self.server_lr)
