"""GroupDRO: Sagawa et al., Distributionally Robust Neural Networks for Group Shifts (2020), algorithm 1."""

from __future__ import annotations

from pydantic import Field

from ._base import Mean, Server
from ._reweighted import Reweighted, Risk


class GroupDRO(Risk, Reweighted):
    """Trains for the worst client: weights q in the server's mean grow exponentially with the clients' losses.

    The groups of the paper are the clients. R_i is the mean loss over the images of client i's local steps in a round,
    where batch norm normalises by the batch. With x the server's model and y_i the client's, the server takes x <- sum
    q_i y_i, and q_i <- q_i exp(eta_q R_i) / Z for the next round, where Z makes the sum 1. The paper and DomainBed
    change q in every step, before it is used; here it changes once a round, after it (our decision), so that one eta_q
    means a slower change. AFL differs in the step of q: it adds, and projects.

    q begins at 1/N for N clients, whatever their numbers of images. A client that does not take part in a round has R_i
    0, like a group that is not in a batch. Running statistics have the same weights as the model. With eta_q 0 this is
    FedAvg with uniform weights.

    Server and clients exchange the tensors of FedAvg; in addition each client sends R_i, which the server needs from
    each client and not as a mean. The server keeps q, N floats, between rounds. Default: eta_q 0.01, as in the paper
    and in DomainBed.
    """

    paper = "Sagawa et al. 2020"
    per_client = frozenset({"risk"})
    weight_lr: float = Field(0.01, ge=0, description="learning rate of the clients' weights (eta_q)")

    def update(self, server: Server, mean: Mean) -> None:
        super().update(server, mean)
        # As logarithms, since exp(eta_q R) of a large loss would overflow; softmax divides by the sum.
        exponent = server.state["q"].log()
        exponent[server.participants] += self.weight_lr * mean["risk"][:, 0]
        server.state["q"] = exponent.softmax(0)
