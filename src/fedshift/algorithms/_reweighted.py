"""Base classes of algorithms whose clients report their losses, or whose server adapts the clients' weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._base import Algorithm, Local, Server

if TYPE_CHECKING:
    from torch import Tensor


class Risk(Algorithm):
    """FedAvg whose clients also report R, the mean loss over the images of a round's local steps.

    R is measured in training mode while the model changes: batch norm normalises by the batch.
    """

    def begin(self, local: Local) -> None:
        super().begin(local)
        local.scratch["risk"] = local.params.new_zeros(2)

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss, logits = super().loss(local, x, y)
        local.scratch["risk"][0] += loss.detach() * len(y)
        local.scratch["risk"][1] += len(y)
        return loss, logits

    def report(self, local: Local) -> dict[str, Tensor]:
        total, images = local.scratch["risk"]
        return super().report(local) | {"risk": (total / images).view(1)}


class Reweighted(Algorithm):
    """FedAvg with a weight q for each client in the server's mean; subclasses change the weights in `update`.

    The server keeps them. They begin at 1/N for N clients and always sum to 1. If only some clients take part in a
    round, their weights are divided by the sum of their weights; if this sum is 0, they are equal. The clients' shares
    of samples have no influence.
    """

    weighs_equally = True

    def server_state(self, server: Server) -> dict[str, Tensor]:
        # In float64, so that weights that are multiplied round after round still sum to 1.
        return {"q": server.params.new_ones(server.clients).double() / server.clients}

    def round_weights(self, server: Server, weights: Sequence[float]) -> Sequence[float]:
        q = server.state["q"][server.participants]
        total = float(q.sum())
        return [float(weight) / total for weight in q] if total > 0 else weights
