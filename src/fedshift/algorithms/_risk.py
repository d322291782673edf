"""The base of algorithms in which clients report the loss of their local steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base import Algorithm, Local

if TYPE_CHECKING:
    from torch import Tensor


class Risk(Algorithm):
    """FedAvg whose clients report R, the mean of the local objective over the images of a round's local steps.

    Batch norm normalises by the batch there, and R is measured while the model moves.
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
