"""TsmoBN: test-specific and momentum-tracked batch normalisation (UniFed's testing stage)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ._base import ORDERED, Inference, Predict

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn.modules.batchnorm import _BatchNorm


class TsmoBN(Inference):
    """Batch norm with the test site's own statistics, tracked over its batches with momentum tau.

    For test batch t with batch mean m: at t = 1, mu = m and v = mean (x - mu)^2; afterwards
    mu <- tau mu + (1 - tau) m and v <- tau v + (1 - tau) mean (x - mu)^2, and the batch is normalised with the updated
    mu and v. The variance is biased. The state is per site and per use of a layer; no parameter or buffer
    changes.

    A single image gives a layer of vectors one value a channel, which has no spread: normalised by itself, nothing
    would be left of it. As the first batch of a site it is refused (UserError), and with tau = 0 it changes no history
    (our decision).
    """

    momentum: float = Field(
        0.9, ge=0, le=1, description="tau, the weight of history (not PyTorch's momentum, its complement)"
    )
    batch_size: int = Field(32, ge=1, description="images a test batch; the last may be smaller")
    order: int | None = ORDERED
    var_center: Literal["updated", "batch"] = Field(
        "updated", description="centre of the variance: the updated mu, as printed, or the batch's own mean"
    )
    affine: bool = Field(True, description="apply the trained gamma and beta")
    init: Literal["first_batch", "train_stats"] = Field("first_batch", description="what history starts from")

    def score_columns(self) -> dict[str, Any]:
        return super().score_columns() | {"momentum": self.momentum}

    @contextmanager
    def on_site(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> Iterator[Predict]:
        from ..nn.batchnorm import batch_norm_by

        with batch_norm_by(model, lambda layer, _: _Track(self, layer).forward):
            yield model


class _Track:
    """Running mean and variance of one batch-norm layer at a test site, tracked over the site's batches."""

    def __init__(self, settings: TsmoBN, layer: _BatchNorm) -> None:
        self.settings = settings
        self.layer = layer
        self.mean: Tensor | None = None
        self.var: Tensor | None = None
        if settings.init == "train_stats":
            self.mean, self.var = layer.running_mean, layer.running_var

    def forward(self, x: Tensor) -> Tensor:
        """Normalise one batch (batch, channels, ...) with the statistics of all batches up to this one."""
        import torch

        from ..nn.batchnorm import moments, normalise, require_spread

        s = self.settings
        layer = self.layer
        mean_b, var_b = moments(x)
        alone = x.numel() == len(mean_b)
        if self.mean is None or self.var is None:
            require_spread(alone)
            self.mean, self.var = mean_b, var_b
        elif not (alone and s.momentum == 0):
            self.mean = torch.lerp(mean_b, self.mean.detach(), s.momentum)
            if s.var_center == "updated":
                # mean (x - mu)^2 = Var_b + (m - mu)^2
                var_b = var_b + (mean_b - self.mean) ** 2
            self.var = torch.lerp(var_b, self.var.detach(), s.momentum)
        return normalise(layer, x, self.mean, self.var, s.affine)
