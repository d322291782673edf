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

    f_i is the client's loss and w its weights. A local step draws independent batches D, D', D''; g(w; D) is the
    gradient on a batch. With w' = w - alpha g(w; D) and v = g(w'; D'), the first-order variant steps along v. The
    Hessian-free variant steps along v - alpha (g(w + delta v; D'') - g(w - delta v; D'')) / (2 delta). The learning
    rate of this step, beta in the paper, is that of the training. D' are the batches of FedAvg; D and D'' are drawn in
    addition. Both steps act on all parameters that are trained at the client. Running statistics follow the pass over
    D' alone (our decision).

    Server and clients exchange and keep the same tensors as in FedAvg. A study evaluates the model without
    personalisation. With `personalise` in an inference, it evaluates the model after gradient steps on labelled images
    of the site, and the page marks this. Defaults: first order, alpha 0.01, delta 0.001; UniFed's variant and rates are
    not known.
    """

    display_name = "Per-FedAvg"
    paper = "Fallah et al. 2020"
    variant: Literal["first_order", "hessian_free"] = Field(
        "first_order",
        description="gradient of the outer step: without second derivatives, or with their difference quotient",
    )
    alpha: float = Field(0.01, ge=0, description="learning rate of the inner step")
    delta: float = Field(1e-3, gt=0, description="length of the difference in the Hessian-free variant")

    def gradient(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        start = local.all_params.clone()
        inner = self._gradient_at(local, start, *local.draw())
        local.all_params.copy_(start).sub_(inner, alpha=self.alpha)
        local.all_grad.zero_()
        logits = self.backward(local, x, y)
        if self.variant == "hessian_free":
            v, batch = local.all_grad.clone(), local.draw()
            # The same dropout on both sides of the difference.
            with undisturbed(v.device):
                ahead = self._gradient_at(local, start + self.delta * v, *batch)
            behind = self._gradient_at(local, start - self.delta * v, *batch)
            local.all_grad.copy_(v).sub_(ahead.sub_(behind), alpha=self.alpha / (2 * self.delta))
        local.all_params.copy_(start)
        return logits

    def _gradient_at(self, local: Local, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of the loss of a batch (x, y) at the weights `params`; running statistics do not change.

        The network keeps these weights afterwards.
        """
        local.all_params.copy_(params)
        local.all_grad.zero_()
        with local.untracked():
            self.backward(local, x, y)
        return local.all_grad.clone()
