"""FedDG-GA: Zhang et al., Federated Domain Generalization With Generalization Adjustment (2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ._base import Local, Mean, Server
from ._reweighted import Reweighted

if TYPE_CHECKING:
    from torch import Tensor


class FedDGGA(Reweighted):
    """Generalisation adjustment: clients for which averaging makes the model worse gain weight in the server's mean.

    m_i is the loss of a client's model after its local steps, and M_i the loss, at the same client, of the mean model
    that it receives next; gap_i = M_i - m_i. A client measures M_i as the next round begins, and sends gap_i with its
    model. Before the server averages these models, the weights a change: a_i <- clip(a_i + (s_t / N) gap_i / max_j
    |gap_j|, 0, 1), and a is divided by its sum. So a gap counts from the next round on, as in the authors' code. s_t
    falls linearly: in round t of T it is s (1 - (t - 2) / T), and the code's is larger by s/T. The code's factor 1/3 is
    1/N for its three clients. If all gaps are 0, the weights stay, where the code divides by 0. A client that takes
    part for the first time has no earlier model, and sends 0.

    Losses are over the client's validation images, or over its training images if it has none, in evaluation mode with
    the client's running statistics. With `metric: accuracy` they are the shares of wrong answers; this is the default
    of the authors' script. Running statistics have the same weights as the model. With s 0 this is FedAvg with uniform
    weights: sizes have no influence.

    Server and clients exchange the tensors of FedAvg; in addition each client sends gap_i. Each client keeps m_i
    between rounds, and the server keeps a, N floats; within a round, it holds the models of all clients that take part.
    Default: s 0.2, as in the authors' code.
    """

    display_name = "FedDG-GA"
    paper = "Zhang et al. 2023"
    per_client = frozenset({"shared", "gap"})
    step: float = Field(0.2, ge=0, lt=1, description="size of the first change of weights, in units of 1/N (s)")
    metric: Literal["loss", "accuracy"] = Field("loss", description="what a gap compares: the loss or the accuracy")

    def begin(self, local: Local) -> None:
        error = self._error(local)
        local.scratch["gap"] = error - local.state.get("error", error)

    def report(self, local: Local) -> dict[str, Tensor]:
        local.state["error"] = self._error(local)
        return super().report(local) | {"gap": local.scratch["gap"]}

    def update(self, server: Server, mean: Mean) -> None:
        a, gap = server.state["q"].clone(), mean["gap"][:, 0].double()
        if (largest := float(gap.abs().max())) > 0:
            # `server.round` counts finished rounds: in round t it is t - 1.
            step = self.step * max(0, 1 - (server.round - 1) / server.rounds)
            a[server.participants] += step / server.clients * gap / largest
            a.clamp_(0, 1)
            server.state["q"] = a / a.sum()
        # The models are kept apart until here, since their weights depend on the gaps of all clients.
        weights = self.round_weights(server, [1 / len(gap)] * len(gap))
        server.shared.copy_(mean.shared.new_tensor(weights) @ mean.shared)

    def _error(self, local: Local) -> Tensor:
        """Return the client's current validation loss, or 1 - accuracy with `metric: accuracy`, as a tensor (1,)."""
        loss, accuracy = local.evaluation(validation=True)
        return local.params.new_tensor([loss if self.metric == "loss" else 1 - accuracy])
