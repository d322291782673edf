"""q-FFL: Li et al., Fair Resource Allocation in Federated Learning (2020), algorithm 2 (q-FedAvg)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Local, Mean, Server

if TYPE_CHECKING:
    from torch import Tensor


class QFFL(Algorithm):
    """Fairness between clients: the server minimises the mean of F_i^(q+1) / (q+1), so high losses count for more.

    F_i is the client's loss, plus 1e-10, at the model x that it receives: over all its training images, in evaluation
    mode. After local steps to the model y_i, with G_i = (x - y_i) / eta, the client sends Delta_i = F_i^q G_i and h_i =
    q F_i^(q-1) ||G_i||^2 + F_i^q / eta. The server takes x <- x - sum Delta_i / sum h_i over the clients of the round.
    eta is the clients' learning rate in this round, in place of 1 over a Lipschitz constant, as in the authors' code.

    Clients count equally, whatever their number of images: with q 0 this is FedAvg with uniform weights. Delta and h
    cover the parameters that are trained and exchanged; running statistics are averaged with equal weights.

    In each round server and clients exchange: down the tensors of FedAvg; up Delta_i, running statistics and h_i. No
    state is kept. A round takes one more pass over the data. Default: q 1, our decision; the authors' values range from
    0.001 to 15, and depend on the data.
    """

    display_name = "q-FFL"
    paper = "Li et al. 2020b"
    weighs_equally = True
    needs_sgd = "G_i is the sum of gradients on a path of SGD"
    q: float = Field(1.0, ge=0, description="how much more clients with a high loss count: 0 not at all")

    def begin(self, local: Local) -> None:
        loss, _ = local.evaluation()
        local.scratch["loss"] = local.params.new_tensor([loss + 1e-10])

    def report(self, local: Local) -> dict[str, Tensor]:
        loss, path = local.scratch["loss"], (local.received_params - local.params) / local.lr
        return {
            "delta": loss**self.q * path,
            "statistics": local.shared[local.trainable.stop :],
            "h": self.q * loss ** (self.q - 1) * path.square().sum() + loss**self.q / local.lr,
        }

    def update(self, server: Server, mean: Mean) -> None:
        server.shared[server.statistics] = mean["statistics"]
        # A quotient of means is that of the sums in the paper.
        server.params.sub_(mean["delta"] / mean["h"])
