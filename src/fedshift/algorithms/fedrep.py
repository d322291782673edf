"""FedRep: Collins et al., Exploiting Shared Representations for Personalized Federated Learning (2021), algorithm 1."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from ..core.errors import UserError
from ._base import Algorithm, Phase

if TYPE_CHECKING:
    from ._training import Training


class FedRep(Algorithm):
    """The last linear layer (head) stays at its client, and is trained before the other layers (body) in each round.

    A client trains its head for `head_epochs` passes over its data while the body is fixed, and then the body for the
    epochs or steps of `training` while the head is fixed. Each phase has a new optimiser. In both phases batch norm
    normalises by the batch and changes its running statistics: the authors' networks have no batch norm, and FedBABU's
    port of their code does so. With `freeze_statistics` it normalises by fixed running statistics while the head
    trains, so that the fixed body is the network that is tested. Gamma and beta are trained in the body's phase alone.

    In each round server and clients exchange the body, except what the BN policy keeps at the clients. Each client
    keeps its head. All clients start from the same random head. An internal site is predicted with its own head, an
    external one with the plain mean of the heads. `personalise` in an inference adapts the network to labelled images
    of the site; unlike the paper's protocol for new clients it changes all layers.

    The default of 10 passes is that of the authors' code for CIFAR-10, where 1 pass for the body follows them, with
    learning rate 0.01, momentum 0.5 and batches of 10. The code also decays weights but not biases, which is left out
    here, and tunes the heads of all clients once more before its last test: `tune_heads` does so after the last round,
    for `head_epochs` passes over each client's data, also where it never took part, at the rate of that round. Nothing
    is sent for it but the body that every client gets for its test. With 0 passes this is FedBABU.
    """

    paper = "Collins et al. 2021"
    layers = "head_home"
    external = "external sites get the plain mean of the clients' last layers, on the common body"
    head_epochs: int = Field(
        10, ge=0, description="number of passes over a client's data that train its head, before those of training"
    )

    later_fields: ClassVar[frozenset[str]] = frozenset({"freeze_statistics", "tune_heads"})
    freeze_statistics: bool = Field(
        False, description="keep running statistics of batch norm, and normalise by them, while the head trains"
    )
    tune_heads: bool = Field(False, description="train the heads of all clients once more after the last round")

    def require(self, training: Training, bn: str) -> None:
        super().require(training, bn)
        if self.tune_heads and training.select != "last":
            problem = "may keep an earlier round, and tune_heads trains heads after the last round only"
            raise UserError("training.select", problem, "use 'last', or leave out tune_heads")

    def phases(self) -> tuple[Phase, ...]:
        head = Phase("home", epochs=self.head_epochs, freezes_statistics=self.freeze_statistics)
        return head, Phase("rest"), *([replace(head, finishes=True)] if self.tune_heads else [])
