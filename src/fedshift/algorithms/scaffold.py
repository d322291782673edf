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
    """Control variates: a local step follows g_i(y) - c_i + c, a gradient corrected for the client's drift.

    g_i(y) is client i's gradient at its model y; c_i and c estimate the mean gradient of the client and of all clients.
    After K local steps with the learning rate eta, the server moves its model x by eta_g along the mean change, and c_i
    is renewed. Option I sets it to the gradient over all local data at the start of the round, which takes one more
    pass. Option II sets it to c_i - c + (x - y_i) / (K eta), the mean of the uncorrected gradients along the path. The
    server adds the mean change of c_i, times the fraction of clients that took part, to c. x and c use the same weights
    of clients, so that c stays the weighted mean of all c_i; the paper's weights are uniform. Control variates cover
    parameters that are trained and exchanged; running statistics of batch norm are averaged. Option II counts weight
    decay as part of the gradient, and with clipping it uses the clipped path.

    In each round server and clients exchange: down the model and c; up the model and the change of c_i. Each client
    keeps c_i between rounds, and the server keeps c. All are zero at first. Defaults: option II, eta_g 1.
    """

    display_name = "SCAFFOLD"
    paper = "Karimireddy et al. 2020"
    option: Literal[1, 2] = Field(
        2, description="how c_i is renewed: 1 by a pass over the data, 2 from the path of the local steps"
    )
    server_lr: float = Field(
        1.0, gt=0, description="learning rate of the server, along the mean change of the model (eta_g)"
    )

    def require(self, training: Training, bn: str) -> None:
        super().require(training, bn)
        if self.option == 2 and training.optimiser != "sgd":
            problem = (
                f"{training.optimiser!r} has no meaning with option II: its c_i is the mean gradient on a path of SGD"
            )
            raise UserError("training.optimiser", problem, "use 'sgd', or the algorithm's setting option: 1")
        if self.option == 2 and training.momentum:
            raise UserError(
                "training.momentum",
                f"is {training.momentum:g}, but SCAFFOLD's option II assumes plain SGD",
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
        # Clients that are away keep their c_i, so that c stays the mean of all.
        server.state["c"].add_(mean["c"], alpha=server.participation)
