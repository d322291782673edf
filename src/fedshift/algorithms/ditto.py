"""Ditto: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization (2021), algorithm 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from ..core.errors import UserError
from ._base import Algorithm, Local

if TYPE_CHECKING:
    from torch import Tensor

    from ._training import Training


class Ditto(Algorithm):
    """Beside FedAvg, each client trains a personal network v_i that a penalty draws towards the global model x.

    On each mini-batch of a round that begins with x, v_i <- v_i - eta (grad f_i(v_i) + lambda (v_i - x)), and then the
    client's copy of the global model takes its step of FedAvg, so that the global model is the same as in FedAvg. Both
    follow the SGD of the training, each with its own momentum buffer. Batch norm of v_i (gamma, beta and running
    statistics) is never averaged with another client's. The penalty covers the parameters that clients and server
    exchange, and no running statistics (our decision; two ports of the method draw these too).

    Server and clients exchange the tensors of FedAvg. Each client keeps v_i between rounds. Only clients that take part
    in a round train theirs. v_i starts as the model that the client first receives: where all take part these are the
    initial weights, as in the paper. An internal site is predicted with its v_i, and rounds are selected by these
    networks; an external site is predicted with x. An inference with `network: global` predicts internal sites with x
    too. A step takes two passes.

    The default lambda 1 is a value of the authors' code. The code can also choose among 0.1, 1 and 2 at each client by
    its validation data: `candidates: [0.1, 1, 2]` takes the personal step with each, and keeps the step with the lowest
    loss on the client's validation images (on its training images if it has none), the first of equal ones. Each step
    chooses anew, and v_i goes through these images once for each candidate. It needs SGD without momentum, as in the
    authors' code. The paper leaves the number of personal steps open; its code interleaves them as here. With lambda 0,
    v_i is the network of `local`. Beyond 2 / eta the personal steps diverge.
    """

    paper = "Li et al. 2021c"
    external = "external sites get the global model, internal sites their personal networks"
    later_fields: ClassVar[frozenset[str]] = frozenset({"candidates"})
    lam: float = Field(1.0, ge=0, description="weight of the pull towards the global model (lambda)")
    candidates: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (),
        description="values in place of lam, of which each personal step takes the one with the lowest validation loss",
    )

    def require(self, training: Training, bn: str) -> None:
        super().require(training, bn)
        if self.candidates and (training.momentum or training.optimiser != "sgd"):
            problem = "has momentum or moments, and the candidates of ditto are steps that start from the same state"
            raise UserError("training.optimiser", problem, "use sgd with momentum 0, or leave out candidates")

    def begin(self, local: Local) -> None:
        if "personal" not in local.state:
            local.state["personal"] = local.state_vector.clone()

    def gradient(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        with local.holding(local.state["personal"]):
            self.backward(local, x, y)
            if self.candidates:
                self._best_step(local)
            else:
                self._step(local, self.lam)
        local.all_grad.zero_()
        return self.backward(local, x, y)

    def _step(self, local: Local, lam: float) -> None:
        """Take a step of the personal network v_i with penalty weight `lam`.

        `local.model` holds the tensors of v_i, and `local.grad` the gradient of its loss.
        """
        # `grad` is the part of all gradients that travels: the pull leaves out what stays at the client.
        local.grad.add_(local.params - local.received_params, alpha=lam)
        local.descend("personal", local.all_params, local.all_grad)

    def _best_step(self, local: Local) -> None:
        """Take the personal network's step with the candidate of lambda that leads to the lowest validation loss."""
        start = local.all_params.clone()
        of_loss = local.all_grad.clone()
        losses: list[float] = []
        ends: list[Tensor] = []
        for lam in self.candidates:
            local.all_params.copy_(start)
            local.all_grad.copy_(of_loss)
            self._step(local, lam)
            losses.append(local.evaluation(validation=True)[0])
            ends.append(local.all_params.clone())
        local.all_params.copy_(ends[losses.index(min(losses))])

    def personal(self, local: Local) -> Tensor:
        return local.state.get("personal", local.state_vector)
