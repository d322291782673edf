"""LG-FedAvg: Liang et al., Think Locally, Act Globally (2020), algorithm 1."""

from typing import ClassVar, Literal

from pydantic import Field

from ._base import Algorithm
from ._collaboration import Collaboration, SharedHead


class LGFedAvg(Algorithm):
    """The last linear layer (head) is averaged; all other layers (body) stay at their client.

    A client trains both together, with one learning rate. Batch norm is part of the body, so no running statistics are
    exchanged. The paper shares the top layers of the network, here the last linear one. The authors' code for CIFAR-10
    shares the two convolutions instead and keeps the linear layers at the clients, starts from a model that FedAvg has
    trained for hundreds of rounds, and keeps each client's round with the best test accuracy. Here every client starts
    from the same random weights, and `select` chooses one round for all by their validation images.

    In each round server and clients exchange the head. Each client keeps the body with its running statistics. The
    authors' code averages clients with equal weights: `weights: uniform`.

    External sites are not predicted by default, since the mean of separately trained bodies has no meaning. With
    `ensemble` they are predicted as the paper predicts a new device: with the plain mean of the probabilities of all
    clients' networks that have trained. All bodies have to be sent for that, once after the training, which the ledger
    does not count. Training is the same in both cases, and an inference with `network: global` then predicts internal
    sites with the ensemble too.
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
        """A clause that says what predicts external sites: with `ensemble` all clients' networks, otherwise nothing."""
        if self.ensemble:
            return "external sites get the plain mean of the probabilities that all clients' networks give"
        return "external sites are not predicted, since the mean of the clients' bodies has no meaning"

    @property
    def collaboration(self) -> Collaboration:  # type: ignore[override]
        """How clients work together: with `ensemble` there is a model for external sites, otherwise there is none."""
        return Collaboration() if self.ensemble else SharedHead()

    @property
    def blended(self) -> Literal["", "external"]:
        return "external" if self.ensemble else ""
