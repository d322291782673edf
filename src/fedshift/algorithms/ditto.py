"""Ditto: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization (2021), algorithm 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Local

if TYPE_CHECKING:
    from torch import Tensor


class Ditto(Algorithm):
    """Beside FedAvg, each client trains a personal network v_i that a penalty draws towards the global model x.

    On each mini-batch of a round that begins with x, v_i <- v_i - eta (grad f_i(v_i) + lambda (v_i - x)), and then the
    client's copy of the global model takes its step of FedAvg. So the global model is that of FedAvg. Both follow the
    SGD of the training, each with a momentum buffer of its own. v_i has batch norm of its own, gamma, beta and running
    statistics, which never meet another client's. The penalty covers the parameters that travel, and no running
    statistics (our decision; two ports of the method draw these too).

    Down and up each round: as FedAvg. Kept at the clients: v_i. Only clients that take part train theirs. v_i starts as
    the model that the client first receives: where all take part that is the paper's start, the initial weights. An
    internal site is predicted with its v_i, and rounds are selected by these networks; an external site is predicted
    with x. An inference with `network: global` predicts internal sites with x too. A step takes two passes.

    lambda 1 is a value of the authors' code, which also has 0.1 and 2 and can choose one for each client by its
    validation data; this is left out. The paper's number of personal steps is free; their code interleaves them as
    here. With lambda 0, v_i is the network of `local`. Beyond 2 / eta the personal steps diverge.
    """

    paper = "Li et al. 2021c"
    external = "external sites get the global model, internal sites their personal networks"
    lam: float = Field(1.0, ge=0, description="weight of the pull towards the global model (lambda)")

    def begin(self, local: Local) -> None:
        if "personal" not in local.state:
            local.state["personal"] = local.state_vector.clone()

    def gradient(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        with local.holding(local.state["personal"]):
            self.backward(local, x, y)
            local.grad.add_(local.params - local.received_params, alpha=self.lam)
            local.descend("personal", local.all_params, local.all_grad)
        local.all_grad.zero_()
        return self.backward(local, x, y)

    def personal(self, local: Local) -> Tensor:
        return local.state.get("personal", local.state_vector)
