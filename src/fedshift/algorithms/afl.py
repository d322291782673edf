"""AFL: Mohri et al., Agnostic Federated Learning (2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Local, Mean, Server
from ._reweighted import Reweighted

if TYPE_CHECKING:
    from torch import Tensor


class AFL(Reweighted):
    """The best model for the worst mixture of clients: weights q in the server's mean climb the clients' losses.

    F_i is a client's loss at the model that it receives: over all its training images, in evaluation mode. The server
    takes x <- sum q_i y_i and then q <- P(q + eta_q F), where P is the projection onto the simplex (q_i >= 0, sum 1).
    The paper takes one gradient step a round; local epochs are our decision. So is that the model is x of the last or
    selected round: the paper's guarantee is for the mean of all rounds, which the code of Li et al. (2020) reports. The
    projection in that code is off by one element; this one is exact.

    q begins at 1/N, whatever the number of images. Of clients that do not take part, F is unknown, and q moves by the
    projection alone. Running statistics have the same weights as the model. With eta_q 0 this is FedAvg with uniform
    weights.

    Down each round: as FedAvg. Up: the model and F_i, which the server needs from each client and not as a mean. Kept
    at the server: q, N floats. A round takes one more pass over the data. Default: eta_q 0.01, as in FedDG_Benchmark.
    """

    paper = "Mohri et al. 2019"
    per_client = frozenset({"loss"})
    weight_lr: float = Field(0.01, ge=0, description="learning rate of the clients' weights (eta_q)")

    def begin(self, local: Local) -> None:
        loss, _ = local.evaluation()
        local.scratch["loss"] = local.params.new_tensor([loss])

    def report(self, local: Local) -> dict[str, Tensor]:
        return super().report(local) | {"loss": local.scratch["loss"]}

    def update(self, server: Server, mean: Mean) -> None:
        super().update(server, mean)
        q = server.state["q"].clone()
        q[server.participants] += self.weight_lr * mean["loss"][:, 0]
        server.state["q"] = _on_simplex(q)


def _on_simplex(point: Tensor) -> Tensor:
    """Return the closest point with no negative coordinate and sum 1: max(point - t, 0), for the right t."""
    largest = point.sort(descending=True).values
    excess = (largest.cumsum(0) - 1) / point.new_tensor(range(1, len(point) + 1))
    # Sorted, the coordinates that stay positive are the first ones.
    count = int((largest > excess).sum())
    return (point - excess[count - 1]).clamp_(min=0)
