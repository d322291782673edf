"""FedTAN-II: Wang, Shi and Chang (2023), see `fedtan`. The layer-wise exchange ends after a number of rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..core.errors import UserError
from ._base import Algorithm, Bessel, Joint

if TYPE_CHECKING:
    from ._training import Training


class FedTAN2(Algorithm):
    """FedTAN for `exchange_rounds` rounds (M); then the running statistics are frozen, and FedAvg trains the rest.

    After round M, BN layers normalise with the fixed running statistics in training too. A round takes 3 L + 1 messages
    until round M, with L the number of BN layers, and 1 message afterwards. The frozen statistics are still sent with
    the model, as the paper counts. The paper lowers the learning rate after M; use `schedule: steps` for this.
    """

    display_name = "FedTAN-II"
    paper = "Wang et al. 2023"
    policies = ("aggregated",)
    why = "the joint step needs the same batch norm at all clients"
    needs_sgd = "the mean of the clients' first steps must be the step along their mean gradient"
    needs_body = "clients exchange statistics and gradients of batch norm, which would not be trained"
    label_fields = frozenset({"exchange_rounds"})
    exchange_rounds: int = Field(
        100, ge=0, description="rounds of layer-wise exchange before the statistics freeze (M)"
    )
    running_var_bessel: Bessel = Field(
        "torch",
        description="Bessel's correction of the shared variance before it enters the running variance: none, torch (by "
        "the number of elements of all batches) or fedtan_code (by one client's number of images)",
    )

    def require(self, training: Training, bn: str) -> None:
        super().require(training, bn)
        if self.exchange_rounds > training.rounds:
            raise UserError(
                f"algorithm ({self.name}).exchange_rounds",
                f"is {self.exchange_rounds}, more than the {training.rounds} rounds of the training",
                "lower it, or use fedtan",
            )

    def joint(self, number: int) -> Joint | None:
        exchanges = number <= self.exchange_rounds
        return Joint(gradients=True, bessel=self.running_var_bessel) if exchanges else None

    def freezes_statistics(self, number: int, rounds: int) -> bool:
        return number > self.exchange_rounds
