"""Batch normalisation with the statistics of all of a site's images, in two passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ._base import ORDERED, Inference, Predict

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn.modules.batchnorm import _BatchNorm


class Population(Inference):
    """Batch norm with the site's own mean and variance over all its images: one pass to take them, one to predict.

    In the first pass every layer normalises with its batch's statistics, as in training, and adds up mean and variance;
    the second normalises with the site's mean and (biased) variance, as SiloBN does at a new site and as FedBN is
    evaluated on Morpho-MNIST (our decision; whether the authors took two passes is not known). In the first pass, all
    but the first layer see inputs that earlier layers have normalised by batches: their statistics depend on the
    batches, and would depend on a sorted order. With one batch the result is exact. The method needs all images at
    once.
    """

    order: int | None = ORDERED

    @contextmanager
    def on_site(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> Iterator[Predict]:
        from ..nn.batchnorm import batch_norm_by

        pooled: dict[tuple[nn.Module, int], _Pooled] = {}

        def collecting(layer: _BatchNorm, call: int) -> Callable[[Tensor], Tensor]:
            pooled[layer, call] = _Pooled(layer)
            return pooled[layer, call].collect

        with batch_norm_by(model, collecting):
            for x in batches():
                model(x)
        with batch_norm_by(model, lambda layer, call: pooled[layer, call].normalise):
            yield model


class _Pooled:
    """Running mean and biased variance of the inputs of one batch-norm layer over all batches of a site, in float64."""

    def __init__(self, layer: _BatchNorm) -> None:
        self.layer = layer
        self.n = 0

    def collect(self, x: Tensor) -> Tensor:
        """Normalise a batch with its own statistics, and add these to the pooled statistics of all batches."""
        from ..nn.batchnorm import moments, normalise

        mean, var = moments(x)
        n = x.numel() // len(mean)
        if self.n == 0:
            self.mean = mean.double()
            self.var = var.double()
        else:
            part = n / (self.n + n)
            shift = mean - self.mean
            self.mean = self.mean + part * shift
            self.var = (1 - part) * self.var + part * var + part * (1 - part) * shift**2
        self.n += n
        return normalise(self.layer, x, mean, var)

    def normalise(self, x: Tensor) -> Tensor:
        """Normalise a batch with the pooled statistics of all batches that `collect` has seen."""
        from ..nn.batchnorm import normalise, require_spread

        require_spread(self.n == 1)
        # Statistics are pooled in float64, and used in the type of the network.
        dtype = self.layer.weight.dtype if self.layer.affine else x.dtype
        return normalise(self.layer, x, self.mean.to(dtype), self.var.to(dtype))
