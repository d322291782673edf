"""T3A: Iwasawa and Matsuo 2021, Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ._base import ORDERED, Inference, Predict

if TYPE_CHECKING:
    from torch import Tensor, nn


class T3A(Inference):
    """A classifier whose class vectors are mean features of those test images that it classifies with least entropy.

    The supports of class k start as the k-th row of the last linear layer, with the entropy of that layer's prediction
    for it. For each batch, every image's features join the supports of the class that the layer predicts. Each class
    then keeps its `supports` supports of lowest entropy, for good. The class vector c_k is the normalised sum of the
    normalised supports of class k, and the answer is z . c_k for features z, scaled by the mean length of the layer's
    rows so that probabilities keep their spread (our decision; the class predicted is the same). No gradient is taken.

    The layer's bias decides to which class an image belongs, and not the answer. So answers may change before any image
    is seen. A row of the layer always belongs to its own class, so no class is ever without support (our decision;
    the authors' code takes the predicted class, and drops one support too many where all are kept).
    """

    tasks = ("classification",)
    needs_one_network: ClassVar[bool] = True
    order: int | None = ORDERED
    supports: int | None = Field(100, ge=1, description="number of supports that a class keeps (M); null keeps all")
    statistics: Literal["source", "batch"] = Field(
        "source", description="statistics of batch norm: those of training, or the batch's own"
    )

    @contextmanager
    def on_site(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> Iterator[Predict]:
        import torch
        from torch.nn.functional import normalize, one_hot

        from ..nn.batchnorm import statistics_of
        from ..nn.features import classifier, inputs_of
        from ._steps import entropies

        last = classifier(model)
        vectors = last.weight.detach()
        scale = vectors.norm(dim=1).mean()
        classes = len(vectors)
        labels = torch.arange(classes, device=vectors.device)
        entropy = entropies(last(vectors))

        with inputs_of(last) as inputs:

            def predict(x: Tensor) -> Tensor:
                nonlocal vectors, labels, entropy
                logits = model(x)
                # The hook adds the inputs of each pass, and the list would grow over the site.
                features = inputs.pop()
                inputs.clear()
                vectors = torch.cat([vectors, features])
                labels = torch.cat([labels, logits.argmax(1)])
                entropy = torch.cat([entropy, entropies(logits)])
                if self.supports is not None:
                    chosen = torch.cat([self._surest(labels == k, entropy) for k in range(classes)])
                    vectors = vectors[chosen]
                    labels = labels[chosen]
                    entropy = entropy[chosen]
                member = one_hot(labels, classes).to(vectors)
                centres = normalize(member.T @ normalize(vectors, dim=1), dim=1)
                return scale * features @ centres.T

            with statistics_of(model, self.statistics):
                yield predict

    def _surest(self, members: Tensor, entropy: Tensor) -> Tensor:
        """Return the indices of the at most `supports` images with the lowest `entropy` (n,) in the mask `members`."""
        (indices,) = members.nonzero(as_tuple=True)
        return indices[entropy[indices].argsort(stable=True)[: self.supports]]
