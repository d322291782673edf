"""Mixup: Zhang et al., mixup: Beyond Empirical Risk Minimization (2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..algorithms import Local, class_loss
from ._base import Addon

if TYPE_CHECKING:
    from torch import Tensor


class Mixup(Addon):
    """Images are mixed in pairs, and the loss is the same mixture of the losses for both labels.

    Each batch draws one lam from Beta(alpha, alpha) and an order of its images. With x' and y' the batch in this order,
    the network sees lam x + (1 - lam) x', and the loss is lam CE(y) + (1 - lam) CE(y'). Pairs lie within a client, so
    no images of two sites are mixed. DomainBed, which pairs images of different domains, is another method.

    Logged training loss and accuracy are those of the mixed images against y. Nothing is added to the network, to the
    exchange or to the state, and nothing is done at test time. Defaults: alpha 0.2, as in DomainBed; FedDG's benchmark
    takes 0.1 for Camelyon17. With alpha 0, lam is 1 and this is FedAvg.
    """

    paper = "Zhang et al. 2018"
    weighs_classes = True
    alpha: float = Field(
        0.2, ge=0, description="both parameters of the Beta distribution of the mixing weight; 0 mixes nothing"
    )

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        import torch
        from torch.distributions import Beta

        lam = 1.0
        if self.alpha:
            lam = float(Beta(self.alpha, self.alpha).sample())
        # A draw for each image: y may be masks.
        order = torch.rand_like(y.reshape(len(y), -1)[:, 0], dtype=torch.float32).argsort()
        logits = local.model(torch.lerp(x.index_select(0, order), x, lam))
        other_loss = class_loss(local, logits, y.index_select(0, order))
        return torch.lerp(other_loss, class_loss(local, logits, y), lam), logits
