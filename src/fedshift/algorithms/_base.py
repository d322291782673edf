"""The base of all federated algorithms, whose behaviour as it stands is FedAvg.

McMahan et al. 2017: clients start from the server's tensors, take local steps, and the server averages what
they send back. An algorithm overrides only what differs; see `algorithms/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from ..core.errors import UserError, did_you_mean
from ..core.registry import Plugin, build
from ..nn.bn_policy import POLICIES

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..nn.bn_policy import BNPolicy
    from ..nn.flat_state import Layout
    from ._training import Training

Bessel = Literal["none", "torch", "fedtan_code"]


@dataclass
class Server:
    """What the server holds.

    `shared` is the flat vector of all tensors that travel under the BN policy; `trainable` and `statistics` are the
    slices of it that are trained and that are running statistics. `state` holds the algorithm's own tensors.
    `fraction` is the summed weight of the clients that take part in this round, 1 if all do; `lr` their rate in it.
    """

    shared: Tensor
    trainable: slice
    statistics: slice
    state: dict[str, Tensor] = field(default_factory=dict)
    round: int = 0
    fraction: float = 1.0
    lr: float = 0.0

    @property
    def params(self) -> Tensor:
        """The shared trainable part, as a view."""
        return self.shared[self.trainable]

    def zeros(self) -> Tensor:
        """A zero for each shared trainable parameter."""
        import torch

        return torch.zeros_like(self.params)

    def take_statistics(self, mean: Tensor) -> None:
        """Running statistics are plainly averaged, whatever is done to parameters."""
        self.shared[self.statistics] = mean[self.statistics]


@dataclass(kw_only=True)
class Local:
    """One client's work in one round, as seen by an algorithm's hooks. All vectors are flat.

    `start` is what the server sent, `shared` the same tensors as they are now, `params` and `grad` the shared trainable
    part now and its gradient. `whole` holds all tensors of the client, what stays at home first and last, and
    `all_params`, `all_grad` its trainable part. `sent` holds the server's extra tensors, `state` the client's own,
    kept between rounds; `vectors` and `networks` are forgotten after it. `share` is the client's part of all samples
    (or an equal one), among `clients`. `steps` counts local steps taken so far.
    """

    client: str
    share: float
    clients: int
    model: nn.Module
    start: Tensor
    whole: Tensor
    shared: Tensor
    params: Tensor
    grad: Tensor
    all_params: Tensor
    all_grad: Tensor
    trainable: slice
    sent: dict[str, Tensor]
    state: dict[str, Tensor]
    lr: float
    momentum: float
    round: int
    objective: Objective
    autocast: AbstractContextManager[None]
    vectors: dict[str, Tensor] = field(default_factory=dict)
    networks: dict[str, nn.Module] = field(default_factory=dict)
    steps: int = 0

    @property
    def start_params(self) -> Tensor:
        """The shared trainable part as the server sent it."""
        return self.start[self.trainable]

    def draw(self) -> tuple[Tensor, Tensor]:
        """Another batch of the client's data, independent of those that the local steps go through."""
        raise NotImplementedError

    def full_gradient(self) -> Tensor:
        """The gradient over all the client's data at the weights of now.

        A mean over shuffled batches, each normalised by its own statistics, without augmentation; BN's running
        statistics stay.
        """
        raise NotImplementedError

    def frozen(self, slot: str, whole: Tensor) -> nn.Module:
        """A second network with the tensors of `whole`, in evaluation mode; one for each `slot`."""
        raise NotImplementedError

    def untracked(self) -> AbstractContextManager[None]:
        """Inside, training leaves running statistics and counters as they are."""
        raise NotImplementedError


Objective = Callable[[Local, "Tensor", "Tensor"], "tuple[Tensor, Tensor]"]


def cross_entropy(local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The objective without an add-on: mean cross-entropy of a batch, and its logits (batch, classes)."""
    from torch.nn.functional import cross_entropy as loss

    logits = local.model(x)
    return loss(logits, y), logits


@dataclass(frozen=True)
class Joint:
    """How the first local step is done by all clients together, layer by layer.

    `gradients`: whether the gradients of BN's means and variances are exchanged too, and not only these.
    `bessel`: what the shared variance is multiplied by before it enters the running variance.
    """

    gradients: bool
    bessel: Bessel


class Algorithm(Plugin):
    """FedAvg. Each hook says what it may change.

    `paper` names the source. `policies` are the BN policies it can be combined with, the default first, and `why` says
    what is wrong with the others.
    """

    kind: ClassVar[str] = "algorithm"
    paper: ClassVar[str] = ""
    policies: ClassVar[tuple[str, ...]] = tuple(POLICIES)
    why: ClassVar[str] = ""
    stands_for: ClassVar[str] = ""
    """The algorithm that this is another name of, with the default of its `policies`."""
    pools: ClassVar[bool] = False
    """Whether all clients' data are one client's."""
    isolated: ClassVar[bool] = False
    """Whether each client ends with a model of its own, and there is no global one."""

    def canonical(self) -> Algorithm:
        """The algorithm that this name stands for: itself, but for names such as FedBN."""
        if not self.stands_for:
            return self
        named: Algorithm = build(self.kind, self.stands_for)
        return named

    def require(self, training: Training, bn: str) -> None:
        """Raise UserError for settings that have no meaning together."""
        if bn not in POLICIES:
            raise UserError("bn", f"unknown BN policy {bn!r}", did_you_mean(bn, POLICIES))
        if bn not in self.policies:
            raise UserError("bn", f"{bn!r} has no meaning with {self.name}: {self.why}", f"use {self.policies[0]!r}")

    def extend(self, model: nn.Module) -> nn.Module:
        """The network with layers of the algorithm's own, in its place; called inside a keyed random state."""
        return model

    # ---- what travels, and how it is weighted

    def shared(self, policy: BNPolicy, layout: Layout) -> slice:
        """The part of the flat state that travels."""
        return policy.shared(layout)

    def weights(self, shares: Sequence[float]) -> Sequence[float]:
        """The clients' weights in every mean, given their shares by `training.weights`; each sums to 1."""
        return shares

    # ---- the server, before a round

    def server_state(self, server: Server) -> dict[str, Tensor]:
        """The server's extra tensors before the first round."""
        return {}

    def client_state(self, server: Server) -> dict[str, Tensor]:
        """A client's extra tensors before the first round."""
        return {}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        """What the server sends beside the model; counted as floats down."""
        return {}

    def joint(self, number: int) -> Joint | None:
        """Whether the first local step of round `number` is a joint one."""
        return None

    def freezes_statistics(self, number: int) -> bool:
        """Whether BN normalises with the running statistics during training in round `number`, and keeps them."""
        return False

    # ---- a client's local work

    @property
    def reads_gradient(self) -> bool:
        """Whether `gradient` or `correct` looks at a step's gradient, which then has to lie in one vector."""
        return type(self).gradient is not Algorithm.gradient or type(self).correct is not Algorithm.correct

    def begin(self, local: Local) -> None:
        """Before the first local step."""

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The local objective of one batch: its mean loss (scalar) and the logits (batch, classes)."""
        return local.objective(local, x, y)

    def gradient(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradient of a step to `local.all_grad`, which is zero before. Returns the logits."""
        return self.backward(local, x, y)

    def backward(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        """One forward and backward pass of the local objective. Returns the logits."""
        with local.autocast:
            loss, logits = self.loss(local, x, y)
        loss.backward()
        return logits.detach()

    def correct(self, local: Local) -> None:
        """Change `local.grad` (or `local.params`) in place, after the backward pass and before the step."""

    def report(self, local: Local) -> dict[str, Tensor]:
        """What the client sends back after its local work, running statistics as a view; counted as floats up."""
        return {"shared": local.shared}

    # ---- the server, after a round

    def update(self, server: Server, mean: dict[str, Tensor]) -> None:
        """Change the server in place, given the weighted mean over clients of each reported tensor."""
        server.shared.copy_(mean["shared"])
