"""Instance-aware batch norm, of NOTE: Gong et al. 2022, Robust Continual Test-time Adaptation, section 3.1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Inference, Predict

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn.modules.batchnorm import _BatchNorm


class IABN(Inference):
    """Batch norm with training statistics, corrected by those of each image where they differ by more than chance.

    A channel of an image with L values has the mean m and the unbiased variance w; mu and v are those of training. It
    is normalised by mu + S(m - mu; k s) and v + S(w - v; k t), the latter at least 0, where S(z; r) = sign(z) max(0,
    |z| - r), s = sqrt((v + eps) / L) and t = (v + eps) sqrt(2 / (L - 1)): the standard errors of m and w if the L
    values were independent draws. Each image is predicted alone, so batches make no difference. Where L is 1, training
    statistics serve.

    The authors train with these layers, and NOTE also has a memory and steps that lower the entropy. Here a network
    that was trained with ordinary batch norm is predicted with them (our decision); nothing is kept from image to
    image. A layer without running statistics is left alone. Default: k 4, as in their code. A large k is `source`.
    """

    display_name = "IABN"
    batches_matter = False
    k: float = Field(4.0, ge=0, description="number of standard errors by which an image must differ")
    batch_size: int = Field(256, ge=1, description="images a batch; no effect on the result")

    @contextmanager
    def on_site(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> Iterator[Predict]:
        from ..nn.batchnorm import batch_norm_by

        with batch_norm_by(model, lambda layer, _: lambda x: self._normalised(layer, x)):
            yield model

    def _normalised(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Return a batch (batch, channels, ...) normalised image by image, with corrected statistics of `layer`."""
        from ..nn.batchnorm import normalise

        values = x[0, 0].numel()
        mu, v = layer.running_mean, layer.running_var
        if mu is None or v is None:
            return type(layer).forward(layer, x)
        if values == 1:
            return normalise(layer, x, mu, v)
        shape = (1, -1, *(1,) * (x.dim() - 2))
        mu, v = mu.view(shape), v.view(shape)
        places = tuple(range(2, x.dim()))
        mean, var = x.mean(places, keepdim=True), x.var(places, keepdim=True)
        spread = v + layer.eps
        mean = mu + _beyond(mean - mu, self.k * (spread / values).sqrt())
        var = (v + _beyond(var - v, self.k * spread * (2 / (values - 1)) ** 0.5)).clamp(min=0)
        out = (x - mean) / (var + layer.eps).sqrt()
        if layer.affine:
            out = out * layer.weight.view(shape) + layer.bias.view(shape)
        return out


def _beyond(z: Tensor, limit: Tensor) -> Tensor:
    """Return the soft threshold of `z`: z - limit above `limit`, z + limit below -`limit`, and 0 in between."""
    return z.sign() * (z.abs() - limit).clamp(min=0)
