"""FixBN: Zhong, Chen and Chao, Making Batch Normalization Great in Federated Deep Learning (2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..core.errors import UserError
from ._base import Algorithm

if TYPE_CHECKING:
    from ._training import Training


class FixBN(Algorithm):
    """FedAvg whose running statistics of batch norm are frozen after `freeze_after` rounds (M).

    Until round M this is FedAvg. From round M + 1 on, the batch-norm layers normalise with the statistics of round M in
    training too: they do not change, and no gradient flows through them. All parameters, gamma and beta included, go on
    training, and dropout stays as it is in training. So the network is trained with the statistics with which it is
    tested.

    Server and clients exchange the tensors of FedAvg. The frozen statistics are still sent, as FedTAN's tables count
    them. The clients keep nothing. M = 0 freezes the initial statistics, and M equal to the number of rounds is FedAvg.
    Where statistics stay at the clients (`bn: local`), each freezes its own after round M; a client that first takes
    part later keeps the initial ones. This variant is not published.

    Differences from the paper: the paper also keeps the momentum of SGD across rounds, averaged by the server, which is
    not done here. Its M is not known to us. The default, half of the rounds, is that of the re-implementation in
    HybridBN (github.com/Hongyao-Chen/HybridBN), which puts the whole network in evaluation mode, dropout included,
    weights clients by numbers of samples, and trains FixBN at a fifth of the learning rate of FedAvg. At the rate of
    FedAvg, all trainings of a pretrained EfficientNet-Lite0 broke down after round M (docs/mitosis.md).
    """

    display_name = "FixBN"
    paper = "Zhong et al. 2023"
    freeze_after: int | None = Field(
        None, ge=0, description="rounds until the statistics freeze (M); default: half of the rounds, rounded up"
    )

    def require(self, training: Training, bn: str) -> None:
        super().require(training, bn)
        if (self.freeze_after or 0) > training.rounds:
            raise UserError(
                f"algorithm ({self.name}).freeze_after",
                f"is {self.freeze_after}, more than the {training.rounds} rounds of the training",
                "lower it, or use fedavg",
            )

    def freezes_statistics(self, number: int, rounds: int) -> bool:
        return number > (rounds - rounds // 2 if self.freeze_after is None else self.freeze_after)
