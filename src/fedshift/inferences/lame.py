"""LAME: Boudiaf et al. 2022, Parameter-free Online Test-time Adaptation, section 4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ._base import ORDERED, Inference, Predict

if TYPE_CHECKING:
    from torch import Tensor, nn

LEAST = 1e-10
"""The smallest probability, and the smallest width, that is distinguished from zero."""


class LAME(Inference):
    """Predictions of a batch that are drawn towards those of images with similar features. No parameter changes.

    With the network's predictions P (n, classes), U = -ln(P + 1e-10) and an affinity W (n, n) of the batch's features,
    Y <- softmax(-U + weight W Y) from Y = P, until the energy sum(Y ln Y + U Y - weight Y W Y) changes by less than
    1e-8 of itself, and at most 100 times. Features are the inputs of the last linear layer, each of length 1.

    Affinities: `rbf` is exp(-d^2 / (2 s^2)) with s the mean distance to the `neighbours`-th nearest image, which counts
    the image itself; `knn` is 1 for the nearest images, without the image itself; `linear` is the scalar product.

    It helps where a batch holds correlated labels, such as the frames of a video. On shuffled images it does harm (its
    authors say so; 64 % error against 43 % on CIFAR-10-C): here it is a control, not a contender.
    """

    tasks = ("classification",)
    needs_one_network: ClassVar[bool] = True
    order: int | None = ORDERED
    affinity: Literal["rbf", "knn", "linear"] = Field("rbf", description="how alike two images of a batch are")
    neighbours: int = Field(5, ge=1, description="number of nearest images for rbf and knn (k)")
    weight: float = Field(1.0, ge=0, description="weight of the affinities (lambda); 0 is the network alone")
    statistics: Literal["source", "batch"] = Field(
        "source", description="statistics of batch norm: those of training, or the batch's own"
    )

    @contextmanager
    def on_site(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> Iterator[Predict]:
        from torch.nn.functional import normalize

        from ..nn.batchnorm import statistics_of
        from ..nn.features import classifier, inputs_of

        with inputs_of(classifier(model)) as inputs:

            def predict(x: Tensor) -> Tensor:
                # In float64, since the energy must be compared to 1e-8 of itself.
                p = model(x).double().softmax(1)
                features = normalize(inputs.pop().double(), dim=1)
                inputs.clear()
                return agreed(p, self.weight * self._affinities(features)).clamp_min(LEAST).log()

            with statistics_of(model, self.statistics):
                yield predict

    def _affinities(self, features: Tensor) -> Tensor:
        """Return the affinities (n, n) of images by their `features` (n, dimensions), each of length 1."""
        import torch

        n = len(features)
        if self.affinity == "linear":
            return features @ features.T
        distance = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
        if self.affinity == "rbf":
            # The last of the nearest: `kthvalue` is not deterministic on a GPU.
            nearest = distance.topk(min(self.neighbours, n), dim=1, largest=False).values[:, -1]
            width = nearest.mean().clamp_min(LEAST)
            return torch.exp(-(distance**2) / (2 * width**2))
        distance.fill_diagonal_(torch.inf)
        nearest = distance.argsort(dim=1, stable=True)[:, : min(self.neighbours, n - 1)]
        return torch.zeros_like(distance).scatter_(1, nearest, 1.0)


def agreed(p: Tensor, affinity: Tensor) -> Tensor:
    """Return the predictions (n, classes) of LAME's iteration, in which similar images draw each other's together.

    `p` (n, classes) are the network's probabilities, and `affinity` (n, n) the weighted affinities.
    """
    unary = -(p + LEAST).log()
    y = p
    before = float("nan")
    for _ in range(100):
        pairwise = affinity @ y
        y = (pairwise - unary).softmax(1)
        energy = float((y * (y.clamp_min(LEAST).log() + unary - pairwise)).sum())
        if abs(energy - before) <= 1e-8 * abs(before):
            break
        before = energy
    return y
