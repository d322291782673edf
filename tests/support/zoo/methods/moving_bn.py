"""Running statistics that follow the test batches by less and less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.inferences import ORDERED, Inference, Predict
from fedshift.nn.batchnorm import batch_norms, moments

if TYPE_CHECKING:
    from torch import Tensor, nn


class MovingBN(Inference):
    """Before each batch is predicted, running means move towards those of the layers' inputs, with weight rate^k."""

    order: int | None = ORDERED
    rate: float = Field(0.8, gt=0, lt=1, description="factor on the weight at each batch")

    @contextmanager
    def on_site(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> Iterator[Predict]:
        weight = 1.0

        def move(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if layer.running_mean is not None:
                layer.running_mean.lerp_(moments(inputs[0])[0].to(layer.running_mean), weight)

        def predict(x: Tensor) -> Tensor:
            nonlocal weight
            weight *= self.rate
            logits: Tensor = model(x)
            return logits

        for layer in batch_norms(model).values():
            layer.register_forward_pre_hook(move)
        yield predict
