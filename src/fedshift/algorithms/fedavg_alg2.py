"""FedAvg with algorithm 2 of Wang, Shi and Chang (2023), a simplified FedDNA; see `fedtan`."""

from __future__ import annotations

from ._base import Joint
from .fedtan import FedTAN


class FedAvgAlg2(FedTAN):
    """FedTAN without its backward exchange: each client differentiates its own loss through the shared statistics.

    The mean of these gradients is not the gradient of the union of all batches. In each round server and clients
    exchange all tensors, and 2 floats for each BN channel: its mean and its variance. A round takes 2 L + 1 messages,
    with L the number of BN layers. No state is kept.
    """

    display_name = "FedAvg + algorithm 2"

    def joint(self, number: int) -> Joint | None:
        return Joint(gradients=False, bessel=self.running_var_bessel)
