"""Clients with few of all classes count less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.algorithms import Algorithm, Images, Server

if TYPE_CHECKING:
    from torch import Tensor


class LabelWeights(Algorithm):
    """FedAvg whose weights fall with the distance of a client's classes from equal frequencies.

    Before round 1, up: the client's class counts. Down and up each round: as FedAvg.
    """

    paper = "control"
    a: float = Field(0.5, ge=0, description="weight of the distance")

    def offer(self, server: Server, images: Images, labels: Tensor) -> dict[str, Tensor]:
        return {"class_counts": labels.bincount(minlength=server.classes)}

    def round_weights(self, server: Server, weights: Sequence[float]) -> Sequence[float]:
        counts = server.offers["class_counts"][server.participants].double()
        distances = (counts / counts.sum(1, keepdim=True) - 1 / server.classes).abs().sum(1)
        raw = [weight / (1 + self.a * distance) for weight, distance in zip(weights, distances.tolist(), strict=True)]
        return [weight / sum(raw) for weight in raw]
