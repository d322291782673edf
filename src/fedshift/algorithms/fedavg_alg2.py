"""FedAvg with algorithm 2 of Wang, Shi and Chang (2023), a simplified FedDNA; see `fedtan`."""

from __future__ import annotations

from pydantic import Field

from ._base import Algorithm, Bessel, Joint


class FedAvgAlg2(Algorithm):
    """FedTAN without its backward exchange: each client differentiates its own loss through the shared statistics.

    The mean of these gradients is not the gradient of the union of batches. Down and up each round: all tensors, and 2
    floats for each BN channel, its mean and its variance. A round takes 2 L + 1 messages, with L the number of BN
    layers. There is no extra state.
    """

    display_name = "FedAvg + algorithm 2"
    paper = "Wang et al. 2023"
    policies = ("aggregated",)
    why = "the joint step needs the same batch norm at all clients"
    needs_sgd = "the mean of the clients' first steps must be the step along their mean gradient"
    running_var_bessel: Bessel = Field(
        "torch", description="Bessel's correction of the joint variance that enters the running variance"
    )

    def joint(self, number: int) -> Joint | None:
        return Joint(gradients=False, bessel=self.running_var_bessel)
