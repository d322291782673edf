"""FedYogi: Reddi et al., Adaptive Federated Optimization (2021), algorithm 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._adaptive import Adaptive

if TYPE_CHECKING:
    from torch import Tensor


class FedYogi(Adaptive):
    """Yogi at the server: as FedAdam, but v moves towards D^2 by steps whose size does not depend on v.

    D is the mean change of the clients' models and v the second moment: v <- v - (1 - b2) D^2 sign(v - D^2), where Adam
    has v <- v - (1 - b2) (v - D^2). If v is far above D^2, because changes have become small, it falls slowly, and the
    server's learning rate rises slowly. All else is FedAdam: m <- b1 m + (1 - b1) D and x <- x + eta_g m / (sqrt(v) +
    tau), without bias correction. Only parameters that are trained and exchanged have moments; running statistics of
    batch norm are averaged.

    Server and clients exchange the tensors of FedAvg. The server keeps m and v between rounds. Defaults: b1 0.9, b2
    0.99, tau 1e-3 and v0 = tau^2, as in the paper; eta_g 0.01 is our decision, as for FedAdam. The authors' code
    differs: it corrects the bias of both moments, takes 0.999 for b2, and starts v at 0. Its best eta_g was 1 with tau
    0.1 for CIFAR-100, and 10^-2.5 with tau 1e-4 for EMNIST.
    """

    beta2: float = Field(0.99, ge=0, le=1, description="1 minus the size of the steps of v, in units of D squared")

    def second_moment(self, v: Tensor, change: Tensor) -> None:
        squared = change.square()
        v.addcmul_(squared, (squared - v).sign_(), value=1 - self.beta2)
