"""LG-FedAvg: Liang et al., Think Locally, Act Globally (2020), algorithm 1."""

from typing import ClassVar, Literal

from pydantic import Field

from ._base import Algorithm
from ._collaboration import Collaboration, SharedHead


class LGFedAvg(Algorithm):
    """The last linear layer (head) is averaged; all other layers (body) stay at their client.

    A client trains both together, with one learning rate. Batch norm is part of the body, so no running statistics
    travel. The paper shares the top layers of the network, here the last linear one. The authors' code for CIFAR-10
    shares the two convolutions instead and keeps the linear layers at home, starts from a model that FedAvg has trained
    for hundreds of rounds, and keeps each client's round with the best test accuracy. Here every client starts from the
    same random weights, and `select` chooses one round for all by their validation images.

    Down and up each round: the head. Kept at the clients: the body with its running statistics. The authors' code
    averages clients with equal weights: `weights: uniform`.

    External sites are not predicted by default, since the mean of bodies that were trained apart has no meaning. With
    `ensemble` they get the paper's answer for a new device: the plain mean of the probabilities that the networks of
    all clients give, of those that have trained. All bodies have to travel for that, once after the training, which the
    ledger does not count. Training is the same in both cases, and an inference with `network: global` then predicts
    internal sites with the ensemble too.
    """

    display_name = "LG-FedAvg"
    paper = "Liang et al. 2020"
    policies = ("local",)
    why = "the body stays at its client, and batch norm is part of it"
    layers = "body_home"
    later_fields: ClassVar[frozenset[str]] = frozenset({"ensemble"})
    ensemble: bool = Field(False, description="predict external sites with the networks of all clients together")

    @property
    def external(self) -> str:  # type: ignore[override]
        """Return a clause that names what external sites get."""
        if self.ensemble:
            return "external sites get the plain mean of the probabilities that all clients' networks give"
        return "external sites are not predicted, since the mean of the clients' bodies has no meaning"

    @property
    def collaboration(self) -> Collaboration:  # type: ignore[override]
        """Return the strategy: with the ensemble, there is a model for external sites."""
        return Collaboration() if self.ensemble else SharedHead()

    @property
    def blended(self) -> Literal["", "external"]:
        return "external" if self.ensemble else ""
