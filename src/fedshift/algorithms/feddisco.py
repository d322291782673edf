"""FedDisco: Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration (2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Images, Server

if TYPE_CHECKING:
    from torch import Tensor


class FedDisco(Algorithm):
    """FedAvg with lower weights for clients whose classes are less equally frequent.

    A client's weight in a round is max(0, n_i - a d_i + b), divided by the sum over the clients that take part. n_i is
    its share of their training samples, and d_i the Euclidean distance between its shares of classes and 1/K for each
    of K classes. If all of these are 0, the weights are n_i (our decision). Under pure feature shift with equally
    frequent classes d_i is 0, and b alone draws the weights together. With a 0 and b 0 this is FedAvg.

    Before round 1 each client sends its number of training samples of each class, K numbers, which leave the site. In
    each round, server and clients exchange the tensors of FedAvg. Defaults: a 0.5 and b 0.1, as in the paper.
    """

    paper = "Ye et al. 2023"
    a: float = Field(0.5, ge=0, description="weight of the distance from equally frequent classes")
    b: float = Field(0.1, description="number that is added to each weight")

    def offer(self, server: Server, images: Images, labels: Tensor) -> dict[str, Tensor]:
        return {"class_counts": labels.bincount(minlength=server.classes)}

    def round_weights(self, server: Server, weights: Sequence[float]) -> Sequence[float]:
        counts = server.offers["class_counts"][server.participants].double()
        shares = counts / counts.sum(1, keepdim=True)
        distances = (shares - 1 / server.classes).norm(dim=1)
        raw = [max(0.0, n - self.a * d + self.b) for n, d in zip(weights, distances.tolist(), strict=True)]
        total = sum(raw)
        return [weight / total for weight in raw] if total > 0 else weights
