"""APFL: Deng, Kamani, Mahdavi, Adaptive Personalized Federated Learning (2020), algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ._base import Algorithm, Blend, Local

if TYPE_CHECKING:
    from torch import Tensor, nn


class APFL(Algorithm):
    """Beside FedAvg, each client trains a personal network v_i, and is predicted with a mixture of both networks.

    w_i is the client's copy of the global model. The mixture has the outputs alpha z_v + (1 - alpha) z_w, with logits
    z_v of v_i and z_w of w_i. On each mini-batch v_i <- v_i - eta grad_v f_i(mixture), in which w_i is a constant, and
    w_i takes its step of FedAvg, so that the global model is the same as in FedAvg. Both steps follow the SGD of the
    training, each with its momentum buffer, and dropout draws the same numbers in both. The paper mixes weights, alpha
    v + (1 - alpha) w; its authors' code mixes outputs, as here, which is the same for linear models alone. A mixture of
    weights would need its own batch norm, while here v_i and w_i each have theirs: gamma, beta and running statistics
    of v_i are never averaged with another client's. As in algorithm 1, both steps start from the same w_i; the authors'
    code moves w_i first.

    With `adaptive`, each client moves its alpha on the first batch of each of its rounds, before its steps: alpha <-
    alpha - eta df_i/dalpha, cut to 0..1. The derivative is the sum over images of (z_v - z_w) times the gradient of the
    loss with respect to the mixture's logits: <v - w, grad f> for linear models, as in the paper. The authors' code
    multiplies gradients that already hold alpha and 1 - alpha by these factors once more, and adds 0.02 alpha: both are
    left out here. It also moves alpha after the steps on the first batch.

    Server and clients exchange the tensors of FedAvg. Each client keeps v_i between rounds, and alpha if it is
    adaptive. Only clients that take part in a round train theirs. v_i starts as the model that the client first
    receives. An internal site is predicted with the mixture of its v_i and of the model with which FedAvg would predict
    it (the authors' code mixes with the client's copy before it is averaged), and rounds are selected by these
    mixtures; an external site is predicted with the global model. An inference with `network: global` predicts internal
    sites with it too. A step takes two passes.

    With alpha 0 the mixture is FedAvg's network, with alpha 1 the network of `local`. 0.5 is the default of the
    authors' code.
    """

    paper = "Deng et al. 2020"
    external = "external sites get the global model, internal sites mixtures of it with their personal networks"
    alpha: float = Field(0.5, ge=0, le=1, description="weight of the personal network in the mixture, at first")
    adaptive: bool = Field(False, description="let each client move its alpha once in each of its rounds")

    @property
    def blended(self) -> Literal["internal"]:
        return "internal"

    def begin(self, local: Local) -> None:
        if "personal" not in local.state:
            local.state["personal"] = local.state_vector.clone()
        if self.adaptive and "alpha" not in local.state:
            local.state["alpha"] = local.state_vector.new_full((1,), self.alpha)

    def gradient(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        # Kept for the second network, whose dropout draws the same numbers.
        draws = local.next_draws()
        with _each_output(local.model, lambda z: outputs.append(z.detach())):
            logits = self.backward(local, x, y)
        of_global = local.all_grad.clone()
        local.all_grad.zero_()
        with local.holding(local.state["personal"], draws):
            self._step_of_the_personal_network(local, x, y, outputs)
        # The step of the engine follows this gradient, so the global network takes its step of FedAvg.
        local.all_grad.copy_(of_global)
        return logits

    def _step_of_the_personal_network(self, local: Local, x: Tensor, y: Tensor, outputs: list[Tensor]) -> None:
        """Take a step of the personal network v_i, and on the first batch of a round also of an adaptive alpha.

        `local.model` holds the tensors of v_i. `outputs` are the logits of w_i, one for each of its forward passes on
        x.
        """
        alpha = local.state["alpha"] if self.adaptive else local.state_vector.new_full((1,), self.alpha)
        moves = self.adaptive and local.steps == 0
        weight = alpha.clone().requires_grad_(moves)
        others = iter(outputs)
        with _each_output(local.model, lambda z: weight * z + (1 - weight) * next(others)):
            self.backward(local, x, y)
        local.descend("personal", local.all_params, local.all_grad)
        if weight.grad is not None:
            alpha.sub_(weight.grad, alpha=local.lr).clamp_(0, 1)

    def personal(self, local: Local) -> Tensor | Blend:
        if "personal" not in local.state:
            return local.state_vector
        alpha = float(local.state["alpha"]) if self.adaptive else self.alpha
        return Blend([local.state["personal"], local.state_vector], [alpha, 1 - alpha])


@contextmanager
def _each_output(model: nn.Module, change: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Replace every output z of the network by `change(z)` inside the context, or keep z where that is None."""
    handle = model.register_forward_hook(lambda _, __, z: change(z))
    try:
        yield
    finally:
        handle.remove()
