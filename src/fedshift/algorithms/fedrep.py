"""FedRep: Collins et al., Exploiting Shared Representations for Personalized Federated Learning (2021), algorithm 1."""

from __future__ import annotations

from pydantic import Field

from ._base import Algorithm, Phase


class FedRep(Algorithm):
    """The last linear layer (head) stays at its client, and is trained before the other layers (body) in each round.

    A client trains its head for `head_epochs` passes over its data while the body rests, and then the body for the
    epochs or steps of `training` while the head rests. Each phase has a new optimiser. In both phases batch norm
    normalises by the batch and moves its running statistics: the authors' networks have no batch norm, and FedBABU's
    port of their code does so. Of gamma and beta the body's phase alone has the training.

    Down and up each round: the body, as far as the BN policy lets it travel. Kept at the clients: the head. All clients
    start from the same random head. An internal site is predicted with its own head, an external one with the plain
    mean of the heads. `personalise` in an inference adapts the network to labelled images of the site; unlike the
    paper's protocol for new clients it moves all layers.

    The default of 10 passes is that of the authors' code for CIFAR-10, where 1 pass for the body follows them, with
    learning rate 0.01, momentum 0.5 and batches of 10. That code also decays weights but not biases, and tunes all
    heads once more before its last test; here both are left out. With 0 passes this is FedBABU.
    """

    paper = "Collins et al. 2021"
    layers = "head_home"
    external = "external sites get the plain mean of the clients' last layers, on the common body"
    head_epochs: int = Field(
        10, ge=0, description="number of passes over a client's data that train its head, before those of training"
    )

    def phases(self) -> tuple[Phase, ...]:
        return Phase("home", epochs=self.head_epochs), Phase("rest")
