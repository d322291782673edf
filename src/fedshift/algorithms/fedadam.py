"""FedAdam: Reddi et al., Adaptive Federated Optimization (2021), algorithm 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._adaptive import Adaptive

if TYPE_CHECKING:
    from torch import Tensor


class FedAdam(Adaptive):
    """Adam at the server, which takes the mean change D of the clients' models as its gradient.

    With x the server's parameters: m <- b1 m + (1 - b1) D, v <- b2 v + (1 - b2) D^2, x <- x + eta_g m / (sqrt(v) +
    tau), without bias correction; m starts at 0 and v at `v0`. Only parameters that are trained and exchanged have
    moments; running statistics of batch norm are averaged. In round 1 a coordinate moves by about eta_g, whatever the
    clients' learning rate is. A large eta_g therefore destroys pre-trained weights.

    Server and clients exchange the tensors of FedAvg. The server keeps m and v between rounds. Defaults: b1 0.9, b2
    0.99 and tau 1e-3, as the paper recommends, and v0 = tau^2, as it requires. eta_g 0.01 is our decision; the values
    of UniFed and TsmoBN are not known.
    """

    beta2: float = Field(0.99, ge=0, le=1, description="decay of the running mean of the squared changes")

    def second_moment(self, v: Tensor, change: Tensor) -> None:
        v.mul_(self.beta2).addcmul_(change, change, value=1 - self.beta2)
