"""FedDC: Gao et al., Federated Learning with Non-IID Data via Local Drift Decoupling and Correction (2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..core.errors import UserError
from ._base import Algorithm, Local, Mean, Server

if TYPE_CHECKING:
    from torch import Tensor

    from ._training import Training


class FedDC(Algorithm):
    """FedAvg with a gradient correction and a drift variable h_i, which each client learns and the server adds back.

    x is the server's model, y client i's, and g_i its gradient. A local step follows g_i(y) + alpha_i (y - x + h_i) + s
    / w_i - s_i, where s and s_i are the control variates of server and client (as in SCAFFOLD), w_i is the client's
    share of samples divided by the mean share, and alpha_i = alpha / w_i. After K steps with the learning rate eta,
    with D_i = y_i - x: h_i <- h_i + D_i and s_i <- s_i - s / w_i - D_i / (K eta). The server takes the plain mean of
    the y_i plus the mean of all h_i. It adds the mean of w_i times the change of s_i to s. The first step of the server
    is therefore twice that of FedProx, in the reference code as here. K is each client's own number of steps; the
    reference code has one number for all.

    Shares enter through w_i alone; means over clients are plain. The method covers parameters that are trained and
    exchanged; running statistics are averaged (the reference code drops them). In each round the server sends the model
    and s; a client sends its model and the change of s_i. Each client keeps h_i and s_i between rounds; the server
    keeps s and the mean of h_i. Defaults: alpha 0.01, the value of the reference code for CIFAR; UniFed's value is not
    known. The reference code clips gradients at norm 10; use training.clip_norm for this.
    """

    paper = "Gao et al. 2022"
    weighs_equally = True
    needs_sgd = "s_i is the mean gradient on a path of SGD"
    alpha: float = Field(0.01, ge=0, description="weight of the penalty around x - h_i")
    drift: bool = Field(True, description="learn and add the drift h_i; without it and with alpha 0 this is SCAFFOLD")
    correction: bool = Field(True, description="correct gradients by s / w_i - s_i")

    def require(self, training: Training, bn: str) -> None:
        super().require(training, bn)
        if training.momentum:
            raise UserError(
                "training.momentum",
                f"is {training.momentum:g}, but FedDC's correction assumes plain SGD",
                "set momentum to 0",
            )

    def server_state(self, server: Server) -> dict[str, Tensor]:
        return {"s": server.zeros(), "drift": server.zeros()}

    def client_state(self, server: Server) -> dict[str, Tensor]:
        return {"s": server.zeros(), "drift": server.zeros()}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return {"s": server.state["s"]}

    def begin(self, local: Local) -> None:
        w = local.share * local.clients
        local.scratch["correction"] = local.broadcast["s"] / w - local.state["s"]
        local.scratch["anchor"] = local.received_params - local.state["drift"]

    def correct(self, local: Local) -> None:
        if self.alpha:
            alpha = self.alpha / (local.share * local.clients)
            local.grad.add_(local.params, alpha=alpha).sub_(local.scratch["anchor"], alpha=alpha)
        if self.correction:
            local.grad.add_(local.scratch["correction"])

    def report(self, local: Local) -> dict[str, Tensor]:
        moved = local.params - local.received_params
        if self.drift:
            local.state["drift"].add_(moved)
        s = moved.div_(-local.steps * local.lr).sub_(local.scratch["correction"])
        change = (s - local.state["s"]).mul_(local.share * local.clients)
        local.state["s"].copy_(s)
        return {"shared": local.shared, "s": change}

    def update(self, server: Server, mean: Mean) -> None:
        server.average_statistics(mean)
        mean_params = mean.params
        server.state["s"].add_(mean["s"], alpha=server.participation)
        if self.drift:
            server.state["drift"].add_(mean_params - server.params, alpha=server.participation)
        # The mean holds the drift of this round, and the state adds it again: the first step is twice that of FedProx.
        server.params.copy_(mean_params + server.state["drift"])
