"""SCAFFOLD: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning (2020), algorithm 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ..core.errors import UserError
from ._base import Algorithm, Local, Mean, Server

if TYPE_CHECKING:
    from torch import Tensor

    from ._training import Training


class Scaffold(Algorithm):
    """Control variates: a local step follows g_i(y) - c_i + c, and the server steps by eta_g along the mean.

    After K local steps, option I sets c_i to the gradient at the round's start over all local data (one more pass),
    option II to c_i - c + (x - y_i) / (K eta), the mean of the uncorrected gradients along the path. The server adds
    the mean change of c_i, times the part of clients that took part, to c. One weighting serves x and c, so that c
    stays the weighted mean of all c_i; the paper's is uniform. Control variates cover what is trained and travels;
    running statistics are plainly averaged. Option II counts weight decay as part of the gradient, and after clipping
    takes the clipped path.

    Down each round: the model and c. Up: the model and the change of c_i. Kept: c_i at clients, c at the server, all
    zero at first. Defaults: option II, eta_g 1.
    """

    paper = "Karimireddy et al. 2020"
    option: Literal[1, 2] = Field(2, description="how c_i is renewed: I, by a pass over the data; II, from the path")
    server_lr: float = Field(1.0, gt=0, description="the server's step along the mean change of the model (eta_g)")

    def require(self, training: Training, bn: str) -> None:
        super().require(training, bn)
        if self.option == 2 and training.momentum:
            raise UserError(
                "training.momentum",
                f"is {training.momentum:g}, but SCAFFOLD's option II takes the path for plain SGD's",
                "set momentum to 0, or use option: 1",
            )

    def server_state(self, server: Server) -> dict[str, Tensor]:
        return {"c": server.zeros()}

    def client_state(self, server: Server) -> dict[str, Tensor]:
        return {"c": server.zeros()}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return {"c": server.state["c"]}

    def begin(self, local: Local) -> None:
        local.scratch["correction"] = local.broadcast["c"] - local.state["c"]
        if self.option == 1:
            local.scratch["c"] = local.full_gradient()

    def correct(self, local: Local) -> None:
        local.grad.add_(local.scratch["correction"])

    def report(self, local: Local) -> dict[str, Tensor]:
        if self.option == 1:
            c = local.scratch["c"]
        else:
            path = (local.received_params - local.params).div_(local.steps * local.lr)
            c = path.sub_(local.scratch["correction"])
        change = c - local.state["c"]
        local.state["c"].copy_(c)
        return {"shared": local.shared, "c": change}

    def update(self, server: Server, mean: Mean) -> None:
        server.average_statistics(mean)
        server.params.lerp_(mean.params, self.server_lr)
        server.state["c"].add_(mean["c"], alpha=server.participation)
