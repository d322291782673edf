"""A pull towards the weights that a client met first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.addons import Addon
from fedshift.algorithms import Local, task_loss

if TYPE_CHECKING:
    from torch import Tensor


class L2SP(Addon):
    """Cross-entropy plus alpha |w - w0|^2, with w0 the weights at the client's first step. Nothing more is sent."""

    paper = "Li et al. 2018"
    weighs_classes = True
    alpha: float = Field(0.1, ge=0, description="weight of the pull")

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        loss, logits = task_loss(local, x, y)
        weights = torch.cat([parameter.flatten() for parameter in local.model.parameters()])
        start = local.state.setdefault("l2sp_start", weights.detach().clone())
        return loss + self.alpha * (weights - start).square().sum(), logits
