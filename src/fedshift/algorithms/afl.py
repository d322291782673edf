"""AFL: Mohri et al., Agnostic Federated Learning (2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Local, Mean, Server
from ._reweighted import Reweighted

if TYPE_CHECKING:
    from torch import Tensor


class AFL(Reweighted):
    """Trains for the worst mixture of clients: weights q in the server's mean grow with the clients' losses.

    x is the server's model, and y_i client i's model after its local steps. F_i is the client's loss at the model that
    it receives: over all its training images, in evaluation mode. The server takes x <- sum q_i y_i and then q <- P(q +
    eta_q F), where P is the projection onto the simplex (q_i >= 0, sum 1). The paper takes one gradient step a round;
    local epochs are our decision. So is that the result is x of the last or selected round: the paper's guarantee is
    for the mean of all rounds, which the code of Li et al. (2020) reports. The projection in that code is off by one
    element; this one is exact.

    q begins at 1/N for N clients, whatever their numbers of images. Of clients that do not take part in a round, F is
    unknown, and q changes by the projection alone. Running statistics have the same weights as the model. With eta_q 0
    this is FedAvg with uniform weights.

    Server and clients exchange the tensors of FedAvg; in addition each client sends F_i, which the server needs from
    each client and not as a mean. The server keeps q, N floats, between rounds. A round takes one more pass over the
    data. The default eta_q 0.01 is that of FedDG_Benchmark.
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
    """Return the projection of `point` (n,) onto the simplex: the closest point with sum 1 and no negative entry.

    It is max(point - t, 0), where t makes the sum 1.
    """
    largest = point.sort(descending=True).values
    excess = (largest.cumsum(0) - 1) / point.new_tensor(range(1, len(point) + 1))
    # Sorted, the coordinates that stay positive are the first ones.
    count = int((largest > excess).sum())
    return (point - excess[count - 1]).clamp_(min=0)
