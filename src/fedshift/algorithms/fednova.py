"""FedNova: Wang et al., Tackling the Objective Inconsistency Problem (2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Local, Mean, Server

if TYPE_CHECKING:
    from torch import Tensor


class FedNova(Algorithm):
    """Normalised averaging: clients send d_i = (x - y_i) / a_i, and the server steps by sum p_i a_i along their mean.

    x is the server's model, y_i client i's model after tau local steps, p_i its weight, and a_i the total weight of its
    gradients in these steps. For plain SGD a_i is tau. With the momentum of the training and the proximal term mu, the
    recursion n <- momentum n + 1, a <- (1 - eta mu) a + n gives it. As in this recursion, the proximal term stays out
    of the momentum buffer. With equal clients and one optimiser for all, the update is exactly the plain mean. The
    reference code differs: it takes sum p_i tau_i where mu > 0, counts a step twice where momentum and mu are combined,
    and puts the proximal term into the buffer. Weight decay acts on the weights after the proximal pull, and gradient
    clipping does not see this pull. Running statistics of batch norm are averaged.

    In each round server and clients exchange: down the model; up d_i, running statistics and a_i. The server keeps the
    buffer of the server momentum, if it is used. Defaults: no proximal term, no server momentum.
    """

    paper = "Wang et al. 2020"
    needs_sgd = "a_i counts the weights of gradients in steps of SGD"
    mu: float = Field(0.0, ge=0, description="weight of the proximal term, as in FedProx")
    server_momentum: float = Field(0.0, ge=0, lt=1, description="slow momentum at the server (gmf)")

    def server_state(self, server: Server) -> dict[str, Tensor]:
        return {"buffer": server.zeros()} if self.server_momentum else {}

    def correct(self, local: Local) -> None:
        if self.mu:
            # y - eta mu (y - x) here, outside of the momentum buffer; the step along the buffer follows.
            local.params.lerp_(local.received_params, local.lr * self.mu)

    def report(self, local: Local) -> dict[str, Tensor]:
        a = n = 0.0
        for _ in range(local.steps):
            n = local.momentum * n + 1
            a = (1 - local.lr * self.mu) * a + n
        return {
            "direction": (local.received_params - local.params) / a,
            "statistics": local.shared[local.trainable.stop :],
            "a": local.params.new_tensor([a]),
        }

    def update(self, server: Server, mean: Mean) -> None:
        server.shared[server.statistics] = mean["statistics"]
        step = mean["direction"] * mean["a"]
        if self.server_momentum:
            # The buffer is in units of gradients, so that a falling rate scales its past too.
            step = server.state["buffer"].mul_(self.server_momentum).add_(step / server.lr) * server.lr
        server.params.sub_(step)
