"""V-REx: Krueger et al., Out-of-Distribution Generalization via Risk Extrapolation (2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..core.console import say
from ._base import Local, Mean, Server
from ._reweighted import Risk

if TYPE_CHECKING:
    from torch import Tensor


class VREx(Risk):
    """Equal losses at all clients: the objective is the mean of the clients' losses plus beta times their variance.

    R_d is the loss of client d. The gradient of the objective is mean_d (1 + 2 beta (R_d - R)) grad R_d, with R the
    mean of all R_d: a client multiplies its local objective by this factor. Both R_d and R are those of the round
    before, since they must be known before the first step. They are the means over the images of a round's local steps,
    where batch norm normalises by the batch, and R is the mean over the clients of that round. A client that has not
    trained before has factor 1. With one local step a round this is DomainBed's method, one step late. A factor below 0
    stays as it is: the client then raises its loss, and a line on the terminal says so.

    Clients count equally, whatever their number of images: with beta 0 this is FedAvg with uniform weights. Weight
    decay is not multiplied.

    Server and clients exchange the tensors of FedAvg, and in addition R (down) and R_d (up). Each client keeps R_d
    between rounds, and the server keeps R. Defaults: beta 1 throughout (our decision, for plain SGD, whose steps grow
    with the factor). DomainBed uses Adam, and beta 1 for 500 of 5000 steps and then 10; `beta: 10` with `anneal_rounds`
    comes close to it, without its fresh optimiser.
    """

    display_name = "V-REx"
    paper = "Krueger et al. 2021"
    weighs_equally = True
    needs_sgd = "its factor on a client's loss does not change the length of steps of Adam"
    beta: float = Field(1.0, ge=0, description="weight of the variance of the clients' losses")
    anneal_rounds: int = Field(0, ge=0, description="number of first rounds in which beta is at most 1")

    def server_state(self, server: Server) -> dict[str, Tensor]:
        return {"risk": server.params.new_zeros(1)}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return {"risk": server.state["risk"]}

    def begin(self, local: Local) -> None:
        super().begin(local)
        beta = min(self.beta, 1) if local.round <= self.anneal_rounds else self.beta
        excess = local.state.get("risk", local.broadcast["risk"]) - local.broadcast["risk"]
        factor = local.scratch["factor"] = 1 + 2 * beta * excess
        if factor < 0:
            say(f"vrex: in round {local.round}, client {local.client!r} multiplies its loss by {float(factor):.3g}")

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss, logits = super().loss(local, x, y)
        return loss * local.scratch["factor"][0], logits

    def report(self, local: Local) -> dict[str, Tensor]:
        report = super().report(local)
        local.state["risk"] = report["risk"]
        return report

    def update(self, server: Server, mean: Mean) -> None:
        super().update(server, mean)
        server.state["risk"] = mean["risk"]
