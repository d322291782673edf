"""The base of all federated algorithms, whose behaviour as it stands is FedAvg.

McMahan et al. 2017: clients start from the server's tensors, take local steps, and the server averages what
they send back. An algorithm overrides only what differs; see `algorithms/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from .registry import Plugin

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass
class Server:
    """What the server holds.

    `shared` is the flat vector of all tensors that travel under the BN policy; `trainable` and `statistics` are the
    slices of it that are trained and that are running statistics. `state` holds the algorithm's own tensors.
    """

    shared: Tensor
    trainable: slice
    statistics: slice
    state: dict[str, Tensor] = field(default_factory=dict)
    round: int = 0


@dataclass
class Local:
    """One client's work in one round, as seen by an algorithm's hooks. All vectors are flat.

    `start` is what the server sent, `shared` the same tensors as they are now, `params` and `grad` the shared trainable
    part now and its gradient; what stays at the client is not among them. `sent` holds the server's extra
    tensors, `state` the client's own, kept between rounds. `steps` counts local steps taken so far.
    """

    client: str
    model: nn.Module
    start: Tensor
    shared: Tensor
    params: Tensor
    grad: Tensor
    trainable: slice
    sent: dict[str, Tensor]
    state: dict[str, Tensor]
    lr: float
    round: int
    steps: int = 0

    @property
    def start_params(self) -> Tensor:
        """The shared trainable part as the server sent it."""
        return self.start[self.trainable]


class Algorithm(Plugin):
    """FedAvg. Each hook says what it may change."""

    kind: ClassVar[str] = "algorithm"
    paper: ClassVar[str] = ""

    def server_state(self, server: Server) -> dict[str, Tensor]:
        """The server's extra tensors before the first round."""
        return {}

    def client_state(self, server: Server) -> dict[str, Tensor]:
        """A client's extra tensors before the first round."""
        return {}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        """What the server sends beside the model; counted as floats down."""
        return {}

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The local objective of one batch: its mean loss (scalar) and the logits (batch, classes)."""
        from torch.nn.functional import cross_entropy

        logits = local.model(x)
        return cross_entropy(logits, y), logits

    def correct(self, local: Local) -> None:
        """Change `local.grad` in place, after the backward pass and before the step."""

    def report(self, local: Local) -> dict[str, Tensor]:
        """What the client sends back after its local work; counted as floats up."""
        return {"shared": local.shared}

    def update(self, server: Server, mean: dict[str, Tensor]) -> None:
        """Change the server in place, given the weighted mean over clients of each reported tensor."""
        server.shared.copy_(mean["shared"])
