"""FedAvg that also shares the mean features of each class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.algorithms import Algorithm, Local, Mean, Server
from fedshift.nn.features import classifier, inputs_of

if TYPE_CHECKING:
    from torch import Tensor


class SharedFeatures(Algorithm):
    """FedAvg with a pull of each image's features towards the mean features of its class over all clients.

    Down: the model and, from round 2 on, K prototypes and K flags. Up: the model, K sums of features and K counts.
    """

    paper = "control"
    tasks = ("classification",)
    weight: float = Field(0.5, ge=0, description="weight of the pull")

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return dict(server.state)

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with inputs_of(classifier(local.model)) as features:
            loss, logits = super().loss(local, x, y)
        if local.broadcast:
            away = (features[0] - local.broadcast["prototypes"][y]).square().mean(1)
            loss = loss + self.weight * (away * local.broadcast["known"][y]).mean()
        return loss, logits

    def report(self, local: Local) -> dict[str, Tensor]:
        import torch

        last = classifier(local.model)
        sums = local.params.new_zeros(local.classes, last.in_features)
        counts = local.params.new_zeros(local.classes)
        with torch.no_grad(), inputs_of(last) as features:
            for x, y in local.own_batches():
                local.model(x)
                sums.index_add_(0, y, features.pop().to(sums))
                counts += y.bincount(minlength=local.classes)
        return super().report(local) | {"sums": sums, "counts": counts}

    def update(self, server: Server, mean: Mean) -> None:
        super().update(server, mean)
        known = (mean["counts"] > 0).to(mean["counts"])
        server.state = {"prototypes": mean["sums"] / mean["counts"].clamp(min=1e-9)[:, None], "known": known}
