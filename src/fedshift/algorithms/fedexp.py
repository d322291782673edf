"""FedExP: Jhunjhunwala et al., FedExP: Speeding Up Federated Averaging via Extrapolation (2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Local, Mean, Server

if TYPE_CHECKING:
    from torch import Tensor


class FedExP(Algorithm):
    """FedAvg with a server step that is longer the more the clients' changes differ in direction.

    With x the server's model, d_i = y_i - x the change of client i's model, and D the mean change, x <- x + eta_g D,
    where eta_g = max(1, sum p_i |d_i|^2 / (2 (|D|^2 + eps))). Norms are over the parameters that are trained and
    exchanged; running statistics of batch norm are averaged. p_i are the weights of the mean; in the paper all M
    clients of a round have p_i = 1/M. Where all clients change alike, or with one client, eta_g is 1, and the method is
    FedAvg.

    The paper reports the mean of the last two models, since the last one may oscillate; here the result is the model of
    the last or selected round (our decision). Server and clients exchange the tensors of FedAvg; in addition each
    client sends |d_i|^2, 1 float. eta_g is logged. Default: eps 1e-3 (our decision; the paper tunes it for each
    dataset).
    """

    paper = "Jhunjhunwala et al. 2023"
    eps: float = Field(1e-3, ge=0, description="number that is added to the squared norm of the mean change")

    def report(self, local: Local) -> dict[str, Tensor]:
        change = local.params - local.received_params
        return super().report(local) | {"square": change.square().sum().reshape(1)}

    def update(self, server: Server, mean: Mean) -> None:
        server.average_statistics(mean)
        change = mean.params - server.params
        bound = 2 * (float(change.square().sum()) + self.eps)
        rate = max(1.0, float(mean["square"]) / bound) if bound else 1.0
        server.params.add_(change, alpha=rate)
        server.logged["eta_g"] = rate
