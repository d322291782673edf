"""FedAdagrad: Reddi et al., Adaptive Federated Optimization (2021), algorithm 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._adaptive import Adaptive

if TYPE_CHECKING:
    from torch import Tensor


class FedAdagrad(Adaptive):
    """Adagrad at the server, which takes the mean change D of the clients' models as its gradient.

    With x the server's parameters: v <- v + D^2 and x <- x + eta_g m / (sqrt(v) + tau), where m <- b1 m + (1 - b1) D.
    Since v only grows, the server's learning rate falls from round to round. Only parameters that are trained and
    exchanged have moments; running statistics of batch norm are averaged.

    Server and clients exchange the tensors of FedAvg. The server keeps m and v between rounds. Defaults: b1 0, as in
    the paper's runs, tau 1e-3 and v0 = tau^2; eta_g 0.01 is our decision, as for FedAdam. The authors' code starts v at
    0. Its best eta_g was 0.1 with tau 0.01, for CIFAR-100 and for EMNIST.
    """

    beta1: float = Field(0.0, ge=0, lt=1, description="decay of the running mean of the models' changes")

    def second_moment(self, v: Tensor, change: Tensor) -> None:
        v.addcmul_(change, change)
