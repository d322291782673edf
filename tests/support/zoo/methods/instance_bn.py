"""Batch norm that leans towards each image's own statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.inferences import Inference, Predict
from fedshift.nn.batchnorm import batch_norm_by

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn.modules.batchnorm import _BatchNorm


class InstanceBN(Inference):
    """Batch norm by `share` times the mean of the image itself, plus 1 - share times that of training."""

    share: float = Field(0.3, ge=0, le=1, description="weight of the image's own mean")

    @contextmanager
    def on_site(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> Iterator[Predict]:
        with batch_norm_by(model, lambda layer, _: lambda x: self._moved(layer, x)):
            yield model

    def _moved(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        if layer.running_mean is None or x.dim() == 2:
            return type(layer).forward(layer, x)
        own = x.mean(tuple(range(2, x.dim())), keepdim=True)
        trained = layer.running_mean.view(1, -1, *(1,) * (x.dim() - 2))
        return type(layer).forward(layer, x - self.share * (own - trained))
