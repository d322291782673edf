"""FedAvg with algorithm 2 of Wang, Shi and Chang (2023), see `fedtan`: a simplified FedDNA."""

from __future__ import annotations

from pydantic import Field

from ._base import Algorithm, Bessel, Joint


class FedAvgAlg2(Algorithm):
    """FedTAN without its backward exchange: each client differentiates its own loss through the shared statistics.

    The mean of these gradients is not that of the union of batches. Down and up each round: all tensors, and 2 floats
    a BN channel each way, the means and variances. 2 L + 1 messages with L layers. No extra state.
    """

    paper = "Wang et al. 2023"
    policies = ("aggregated",)
    why = "the joint step needs the same batch norm at all clients"
    running_var_bessel: Bessel = Field("torch", description="correction of the joint variance that is kept")

    def joint(self, number: int) -> Joint | None:
        return Joint(gradients=False, bessel=self.running_var_bessel)
