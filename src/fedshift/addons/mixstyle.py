"""MixStyle: Zhou et al., Domain Generalization with MixStyle (2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..algorithms import Local, task_loss
from ._base import Addon

if TYPE_CHECKING:
    from torch import Tensor, nn


class MixStyle(Addon):
    """Features of an image take a mixture of two styles: of this image, and of another image of the batch.

    A style is the mean u and the standard deviation s of each channel of an image (unbiased variance plus 1e-6, no
    gradient). At each place, with probability p a step, x becomes s_mix (x - u) / s + u_mix. Here u_mix = lam u +
    (1 - lam) u', where u' is that of another image in a random order of the batch, and likewise s_mix; lam is drawn
    from Beta(alpha, alpha) for each image. Labels stay as they are.

    The places are the first ones where maps become smaller, and that a convolution follows: poolings, and the inputs of
    residual blocks with a stride. In AlexNet these are the first two poolings, in DenseNet the pooling of the stem and
    the first two transitions, in ResNet-20 the ends of its first two stages. Networks without them mix after each ReLU
    but the last (our decision). The paper's variant across domains needs two domains in a batch, which a client does
    not have. Maps of one pixel have no style, and stay.

    Nothing is added to the network, to the exchange or to the state, and nothing is done at test time. Running
    statistics of later layers follow mixed features. Defaults: p 0.5 and alpha 0.1, as in the paper. With p 0 this is
    FedAvg.
    """

    paper = "Zhou et al. 2021"
    weighs_classes = True
    p: float = Field(0.5, ge=0, le=1, description="probability that a place mixes styles in a step")
    alpha: float = Field(
        0.1, ge=0, description="both parameters of the Beta distribution of the mixing weight; 0 mixes nothing"
    )
    places: int = Field(3, ge=1, description="largest number of places, counted from the input")

    def extend(self, model: nn.Module) -> nn.Module:
        from ._places import places

        places(model, self.places, last=False)  # refuses a network without any
        return model

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from ._places import changed, places

        with changed(places(local.model, self.places, last=False), self._mixed):
            return task_loss(local, x, y)

    def _mixed(self, _: int, x: Tensor) -> Tensor:
        """Mix the styles of features (batch, channels, height, width) with probability p, or return them unchanged."""
        import torch
        from torch.distributions import Beta

        from ..nn.device import to_device
        from ._places import styles

        if float(torch.rand(())) >= self.p or not self.alpha or x.size(-1) * x.size(-2) == 1:
            return x
        mean, std = styles(x.detach())
        order = torch.rand_like(mean[:, 0, 0, 0], dtype=torch.float32).argsort()
        lam = Beta(self.alpha, self.alpha).sample((x.size(0), 1, 1, 1)).to(mean.dtype)
        lam = to_device(lam, mean.device)
        mean_mix = torch.lerp(mean.index_select(0, order), mean, lam)
        std_mix = torch.lerp(std.index_select(0, order), std, lam)
        return ((x - mean) / std * std_mix + mean_mix).to(x.dtype)
