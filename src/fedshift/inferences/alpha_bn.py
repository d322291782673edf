"""alpha-BN: You et al. 2021; with a number of pseudo-samples: Schneider et al. 2020, section 3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import Field

from ._base import ORDERED, Inference, Predict

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn.modules.batchnorm import _BatchNorm


class AlphaBN(Inference):
    """Batch norm with a mixture of the training statistics and those of each test batch.

    mu = a mu_s + (1 - a) mu_b and v = a v_s + (1 - a) v_b, where s stands for training and b for the batch, whose
    variance is biased. a is `alpha` if it is given, and otherwise N / (N + n), with N = `prior` pseudo-samples of
    training and n images in the batch. Nothing is kept from batch to batch, and no parameter changes. a = 1 is
    `source`; a = 0 is batch statistics alone, for which a batch needs more than one value a channel.

    The mixed variance leaves out a (1 - a) (mu_s - mu_b)^2, as published. Some codes give `alpha` to the batch: here it
    is the weight of training. A layer that kept no statistics of training uses the batch's.
    """

    display_name = "alpha-BN"
    order: int | None = ORDERED
    prior: int = Field(16, ge=0, description="number of pseudo-samples that the training statistics count for (N)")
    alpha: float | None = Field(
        None, ge=0, le=1, description="weight of the training statistics, whatever the batch size; null uses prior"
    )

    @contextmanager
    def on_site(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> Iterator[Predict]:
        from ..nn.batchnorm import batch_norm_by, moments, normalise, require_spread

        def mixing(layer: _BatchNorm, call: int) -> Callable[[Tensor], Tensor]:
            def forward(x: Tensor) -> Tensor:
                mean, var = moments(x)
                alpha = self.prior / (self.prior + len(x)) if self.alpha is None else self.alpha
                if layer.running_mean is None or layer.running_var is None:
                    alpha = 0.0
                else:
                    mean = alpha * layer.running_mean + (1 - alpha) * mean
                    var = alpha * layer.running_var + (1 - alpha) * var
                # With alpha 0 nothing but the batch's statistics counts, and one value has no spread.
                require_spread(alpha == 0 and x.numel() == len(mean))
                return normalise(layer, x, mean, var)

            return forward

        with batch_norm_by(model, mixing):
            yield model
