"""Per-FedAvg: Fallah et al., Personalized Federated Learning: A Meta-Learning Approach (2020), algorithm 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ..core.rng import undisturbed
from ._base import Algorithm, Local

if TYPE_CHECKING:
    from torch import Tensor


class PerFedAvg(Algorithm):
    """A model that is good after a gradient step: clients minimise F_i(w) = f_i(w - alpha grad f_i(w)).

    A local step draws independent batches D, D', D''. With w' = w - alpha g(w; D) and v = g(w'; D'), the first-order
    variant steps along v, the Hessian-free one along
    v - alpha (g(w + delta v; D'') - g(w - delta v; D'')) / (2 delta). The rate of this step, beta in the paper, is the
    training's. D' are the batches that FedAvg would go through, D and D'' are drawn beside them. Both steps act on all
    that is trained at the client; running statistics follow the pass over D' alone, our decision.

    Down, up and state as FedAvg. A study scores it as it is; with `personalise` in an inference, after gradient steps
    on labelled images of the site, which the page marks. Defaults: first order, alpha 0.01, delta 0.001; UniFed's
    variant and rates are not known.
    """

    paper = "Fallah et al. 2020"
    variant: Literal["first_order", "hessian_free"] = Field("first_order", description="how the outer step is taken")
    alpha: float = Field(0.01, ge=0, description="rate of the inner step")
    delta: float = Field(1e-3, gt=0, description="length of the difference of the Hessian-free variant")

    def gradient(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        start = local.all_params.clone()
        inner = self._gradient_at(local, start, *local.draw())
        local.all_params.copy_(start).sub_(inner, alpha=self.alpha)
        local.all_grad.zero_()
        logits = self.backward(local, x, y)
        if self.variant == "hessian_free":
            v, batch = local.all_grad.clone(), local.draw()
            with undisturbed(v.device):  # dropout is the same on both sides
                ahead = self._gradient_at(local, start + self.delta * v, *batch)
            behind = self._gradient_at(local, start - self.delta * v, *batch)
            local.all_grad.copy_(v).sub_(ahead.sub_(behind), alpha=self.alpha / (2 * self.delta))
        local.all_params.copy_(start)
        return logits

    def _gradient_at(self, local: Local, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of one batch at other parameters; running statistics stay."""
        local.all_params.copy_(params)
        local.all_grad.zero_()
        with local.untracked():
            self.backward(local, x, y)
        return local.all_grad.clone()
