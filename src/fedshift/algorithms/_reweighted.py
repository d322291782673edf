"""The base of algorithms whose server learns the weights of the clients in its mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._base import Algorithm, Server

if TYPE_CHECKING:
    from torch import Tensor


class Reweighted(Algorithm):
    """FedAvg with weights q, one for each client, which the server keeps and a subclass changes in `update`.

    They begin at 1/N and always sum to 1. If only some clients take part in a round, their weights are divided by their
    sum; if this sum is 0, they are equal. Shares of samples have no influence.
    """

    weighs_equally = True

    def server_state(self, server: Server) -> dict[str, Tensor]:
        # In float64, so that weights that are multiplied round after round still sum to 1.
        return {"q": server.params.new_ones(server.clients).double() / server.clients}

    def round_weights(self, server: Server, weights: Sequence[float]) -> Sequence[float]:
        q = server.state["q"][server.participants]
        total = float(q.sum())
        return [float(weight) / total for weight in q] if total > 0 else weights
