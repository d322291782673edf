"""The base class of all federated algorithms. Unchanged, it is FedAvg.

McMahan et al. 2017: clients start from the server's tensors, take local steps, and the server averages what
they send back. An algorithm overrides only what differs; see `algorithms/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from ..core.errors import UserError, did_you_mean
from ..core.registry import Plugin, build
from ..core.rng import Draws
from ..nn.policies import LAYERS, POLICIES
from ..tasks import Task
from ._collaboration import Collaboration

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from ..nn.features import Outputs
    from ..nn.flat_state import Layout
    from ..nn.policies import BNPolicy
    from ._training import Training

LOGGED = "log_"
"""Prefix of the columns of the history and of rounds.parquet that hold numbers of plug-ins."""
Bessel = Literal["none", "torch", "fedtan_code"]


class Images(Protocol):
    """Training images of a client, fetched by batch."""

    def __len__(self) -> int: ...

    def batch(self, index: np.ndarray, /) -> tuple[Tensor, Tensor]:
        """Return the inputs (batch, ...), not augmented, and labels (batch,) of the images at the positions `index`."""
        ...


@dataclass
class Server:
    """State of the server.

    Attributes
    ----------
    shared : flat vector (float) of all tensors that travel under the BN policy
    trainable, statistics : slices of `shared` with the trained parameters and with the running statistics of batch norm
    state : the algorithm's own tensors, by name
    round : number of rounds done so far
    participation : sum of the weights of the clients that take part in the current round; 1 if all do
    lr : learning rate of the clients in the current round
    clients : number of clients in the federation
    rounds : number of rounds that the training is to have
    channels : number of channels of each batch-norm layer with running statistics, in the order of the network
    participants : positions, among all clients, of those that take part in the current round, in ascending order
    classes : number of classes
    features : inputs of the network's last linear layer, without an add-on; 0 if it has none
    shares : share of each client in all training samples, or equal shares, according to `training.weights`
    losses : mean training loss of each client in the last round in which it took part, (clients,), float64; NaN before
    offers : what clients sent before the first round (see `Algorithm.offer`), with one row for each client
    logged : numbers that `update` wants to be seen, by name: columns `log_NAME` of the history and of rounds.parquet
    """

    shared: Tensor
    trainable: slice
    statistics: slice
    state: dict[str, Tensor] = field(default_factory=dict)
    round: int = 0
    participation: float = 1.0
    lr: float = 0.0
    clients: int = 1
    rounds: int = 1
    channels: Sequence[int] = ()
    participants: Sequence[int] = ()
    classes: int = 0
    features: int = 0
    shares: Sequence[float] = ()
    losses: Sequence[float] = ()
    offers: Mapping[str, Tensor] = field(default_factory=dict)
    logged: dict[str, float] = field(default_factory=dict)

    @property
    def params(self) -> Tensor:
        """The shared trainable parameters, as a view."""
        return self.shared[self.trainable]

    def zeros(self) -> Tensor:
        """Return a zero vector with one entry for each shared trainable parameter."""
        import torch

        return torch.zeros_like(self.params)

    def average_statistics(self, mean: Mean) -> None:
        """Set the running statistics to their mean over clients, independently of what happens to the parameters."""
        self.shared[self.statistics] = mean.shared[self.statistics]


class Mean(dict[str, "Tensor"]):
    """Weighted mean over clients of each tensor that `Algorithm.report` returned, by name.

    A tensor that is named in `Algorithm.per_client` is not averaged: it has one row for each client of the round, in
    the order of `Server.participants`.

    Attributes
    ----------
    shared : mean of the clients' flat shared vectors, if the algorithm reports them under this name
    params : trainable part of this mean
    """

    def __init__(self, tensors: Mapping[str, Tensor], trainable: slice) -> None:
        super().__init__(tensors)
        self.trainable = trainable

    def __missing__(self, name: str) -> Tensor:
        raise UserError("update", f"no client reports {name!r}", f"`report` gives: {', '.join(map(repr, self))}")

    @property
    def shared(self) -> Tensor:
        """The mean of the clients' shared vectors."""
        return self["shared"]

    @property
    def params(self) -> Tensor:
        """The mean of the clients' shared trainable parameters, as a view."""
        return self.shared[self.trainable]


class Local:
    """Local training of one client in one round, as the hooks of an algorithm see it. All vectors are flat.

    Attributes
    ----------
    client : name of the client
    share : the client's share of all training samples, or an equal share, according to `training.weights`
    clients, classes : number of clients in the federation, and of classes
    round : number of the round, from 1
    lr, momentum : learning rate and momentum of the client's SGD in this round
    steps : local steps taken so far in this round
    phase : number of the phase of the current step, from 0 (see `Algorithm.phases`)
    model : the network; its tensors are views of `state_vector`
    received : tensors that the server sent, laid out as `shared`
    shared : the tensors that travel, with their current values
    params, grad : the trainable part of `shared`, and its gradient
    state_vector : all tensors of the client; those that stay at the client come first and last
    all_params, all_grad : the trainable part of `state_vector`, and its gradient
    trainable : slice of `shared` that is trained
    broadcast : the server's extra tensors, as `Algorithm.broadcast` returned them
    state : the client's own tensors, kept between rounds: those of the algorithm and of the add-on
    offers : tensors that clients sent once, before the first round, by client (see `Addon.offer`)
    scratch, networks : tensors and networks that are forgotten after the round
    logged : numbers that hooks want to be seen, by name: columns `log_NAME` of the history and of rounds.parquet
    task : what targets are, and how outputs become a loss
    objective : the local objective of the add-on, or the loss of the task
    class_weights : weight of each class in `class_loss`, (classes,); None if all count alike
    """

    client: str
    share: float
    clients: int
    classes: int
    round: int
    lr: float
    momentum: float
    steps: int
    phase: int
    model: nn.Module
    received: Tensor
    shared: Tensor
    params: Tensor
    grad: Tensor
    state_vector: Tensor
    all_params: Tensor
    all_grad: Tensor
    trainable: slice
    broadcast: Mapping[str, Tensor]
    state: dict[str, Tensor]
    offers: Mapping[str, Mapping[str, Tensor]]
    scratch: dict[str, Tensor]
    networks: dict[str, nn.Module]
    logged: dict[str, float]
    task: Task
    objective: Objective
    class_weights: Tensor | None = None

    @property
    def autocast(self) -> AbstractContextManager[None]:
        """A new context for one forward pass, which runs in lower precision where the training asks for it."""
        raise NotImplementedError

    @property
    def received_params(self) -> Tensor:
        """The shared trainable parameters as the server sent them."""
        return self.received[self.trainable]

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return another batch of the client's data, drawn independently of the batches of the local steps."""
        raise NotImplementedError

    def own_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all the client's training samples once, in batches of inputs and labels, in stored order.

        They are not augmented. The network is in evaluation mode until the last batch is taken.
        """
        raise NotImplementedError

    def full_gradient(self) -> Tensor:
        """Return the gradient over all the client's data at the current weights, laid out as `grad`.

        It is a mean over shuffled batches without augmentation; batch norm normalises each batch by its own statistics.
        The running statistics of batch norm do not change.
        """
        raise NotImplementedError

    def evaluation(self, validation: bool = False) -> tuple[float, float]:
        """Return mean cross-entropy and accuracy of the current tensors over all the client's training samples.

        With `validation`, its validation samples take their place if it has any. The network is in evaluation mode: no
        augmentation, no dropout, and batch norm uses running statistics.
        """
        raise NotImplementedError

    def frozen(self, slot: str, state_vector: Tensor) -> nn.Module:
        """Return a second network in evaluation mode with the tensors of `state_vector`; there is one for each slot."""
        raise NotImplementedError

    def untracked(self) -> AbstractContextManager[None]:
        """Return a context in which training leaves running statistics and counters unchanged."""
        raise NotImplementedError

    def class_counts(self, classes: int) -> Tensor:
        """Return how many of the client's training samples there are of each class: (classes,), int64."""
        raise NotImplementedError

    def holding(self, state_vector: Tensor, draws: Draws | None = None) -> AbstractContextManager[None]:
        """Return a context in which the network holds the tensors of `state_vector`, for a second network.

        Afterwards `state_vector` has what became of them, and the network has its own tensors and counters again.
        Inside, dropout draws the same numbers as after it, so that the client's own training is as without it; with
        `draws`, it draws the numbers that followed when `next_draws` returned these.
        """
        raise NotImplementedError

    def next_draws(self) -> Draws:
        """Return the state of the generators of dropout, for `holding`: a second network can draw the same numbers."""
        raise NotImplementedError

    def descend(self, slot: str, params: Tensor, grad: Tensor) -> None:
        """Move `params` in place by one step of the client's optimiser along `grad`, clipped as any gradient.

        Each slot has its own optimiser, whose memory ends with the round.
        """
        raise NotImplementedError


Objective = Callable[[Local, "Tensor", "Tensor"], "tuple[Tensor, Tensor]"]


def class_loss(local: Local, logits: Tensor, y: Tensor, reduction: Literal["mean", "none"] = "mean") -> Tensor:
    """Return the task's loss of a batch with the weights of classes: its mean over images, or (batch,) with `none`.

    For classification it is the cross-entropy. The mean divides by the number of images. If it divided by the sum of
    weights, as torch's does, weights would cancel in a batch of one class, and so at a client that has one class only.
    """
    return local.task.batch_loss(logits, y, local.class_weights, reduction)


def task_loss(local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the objective without an add-on: `class_loss` of a batch, and its logits (batch, classes, ...)."""
    logits = local.model(x)
    return class_loss(local, logits, y), logits


@dataclass(frozen=True)
class Blend:
    """Several networks that predict a site together.

    Attributes
    ----------
    networks : all tensors of each network, laid out as `Local.state_vector`; a personal network comes first
    weights : weight of each network; the sum is 1
    of : the outputs that are averaged: `logits` or `probabilities`
    """

    networks: Sequence[Tensor]
    weights: Sequence[float]
    of: Outputs = "logits"


@dataclass(frozen=True)
class Joint:
    """Settings of a first local step that all clients take together, layer by layer.

    Attributes
    ----------
    gradients : True if clients also exchange the gradients of the means and variances of batch norm
    bessel : factor on the shared variance before it enters the running variance
    """

    gradients: bool
    bessel: Bessel


@dataclass(frozen=True)
class Phase:
    """Consecutive local steps of a round that train the same layers.

    Attributes
    ----------
    trains : `all` layers; those that the layer policy keeps at `home`; or the `rest`. Other layers keep their
        parameters, but running statistics of batch norm move in every phase that does not freeze them
    epochs : passes over the client's data; None for as many steps as the settings of training ask for
    freezes_statistics : True if batch norm normalises with fixed running statistics in this phase
    finishes : True for a phase after the rounds: all clients train it once, from the model of the last round,
        and send nothing
    """

    trains: Literal["all", "home", "rest"] = "all"
    epochs: int | None = None
    freezes_statistics: bool = False
    finishes: bool = False

    def steps(self, n: int, training: Training) -> int:
        """Return the number of local steps that a client with `n` samples takes in this phase."""
        return training.steps_in_round(n) if self.epochs is None else self.epochs * training.steps_in_epoch(n)


class Algorithm(Plugin):
    """FedAvg. Each hook says what it may change.

    `paper` names the source. `policies` are the BN policies that the algorithm can be combined with; the first is the
    default. `why` says what is wrong with the others.
    """

    kind: ClassVar[str] = "algorithm"
    paper: ClassVar[str] = ""
    policies: ClassVar[tuple[str, ...]] = tuple(POLICIES)
    why: ClassVar[str] = ""
    needs_sgd: ClassVar[str] = ""
    """Why local steps must be those of SGD; empty if they may be those of any optimiser."""
    needs_body: ClassVar[str] = ""
    """Why more than the last layer must be trained; empty if `training.train` may be `head`."""
    stands_for: ClassVar[str] = ""
    """Name of the algorithm for which this one is another name; the BN policy is then the first of `policies`."""
    layers: ClassVar[str] = "full"
    """Name of the layer policy: which layers stay at the clients, beside what the BN policy keeps there."""
    external: ClassVar[str] = ""
    """A clause that names the model of external sites; empty if internal sites get the same global model."""
    collaboration: ClassVar[Collaboration] = Collaboration()
    """How clients work together; the controls `local` and `pooled` have another strategy."""
    per_client: ClassVar[frozenset[str]] = frozenset()
    """Names of tensors of `report` that reach `update` as they are, one row for each client, and not as a mean."""

    network_fields: ClassVar[frozenset[str]] = frozenset()
    """Settings that shape the network in `extend`, which a search cannot vary."""
    weighs_equally: ClassVar[bool] = False
    """True if all clients have the same weight in every mean, whatever `training.weights` says."""

    @property
    def blended(self) -> Literal["", "internal", "external"]:
        """Return which sites several networks predict together; nothing if each site is predicted with one."""
        return ""

    @property
    def has_personal_networks(self) -> bool:
        """Return whether clients are scored with personal networks, beside the global one."""
        return self.has_downloads or type(self).personal is not Algorithm.personal

    @property
    def has_downloads(self) -> bool:
        """Return whether the server sends each client other tensors, so that none can be broadcast."""
        return type(self).download is not Algorithm.download

    @property
    def needs_flat_gradient(self) -> bool:
        """Return whether hooks may read or change gradients, which then lie in one vector in large networks too."""
        cls = type(self)
        hooks = (cls.phases, cls.gradient, cls.backward, cls.correct)
        return hooks != (Algorithm.phases, Algorithm.gradient, Algorithm.backward, Algorithm.correct)

    def canonical(self) -> Algorithm:
        """Return the algorithm that this name stands for: itself, except for names such as FedBN."""
        if not self.stands_for:
            return self
        algorithm: Algorithm = build(self.kind, self.stands_for)
        return algorithm

    def require(self, training: Training, bn: str) -> None:
        """Raise UserError for settings that cannot be combined."""
        if bn not in POLICIES:
            raise UserError("bn", f"unknown BN policy {bn!r}", did_you_mean(bn, POLICIES))
        if bn not in self.policies:
            raise UserError("bn", f"{bn!r} has no meaning with {self.name}: {self.why}", f"use {self.policies[0]!r}")
        if self.needs_sgd and training.optimiser != "sgd":
            problem = f"{training.optimiser!r} has no meaning with {self.name}: {self.needs_sgd}"
            raise UserError("training.optimiser", problem, "use 'sgd'")
        needs_body = self.needs_body or (
            "" if self.layers == "full" else "it tells head and body apart, and the body would rest"
        )
        if needs_body and training.train == "head":
            problem = f"'head' has no meaning with {self.name}: {needs_body}"
            raise UserError("training.train", problem, "use 'all' or ['norm', 'head']")

    def extend(self, model: nn.Module) -> nn.Module:
        """Return the network with the algorithm's own layers; the caller sets a keyed random state."""
        return model

    # ---- what travels, and how it is weighted

    def shared(self, policy: BNPolicy, layout: Layout) -> slice:
        """Return the slice of the flat state that travels."""
        return layout.shared(policy)

    def stays(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters that the layer policy keeps at the clients."""
        if self.layers not in LAYERS:
            problem = f"names the unknown layer policy {self.layers!r}"
            raise UserError(f"{self.name}.layers", problem, did_you_mean(self.layers, LAYERS))
        return LAYERS[self.layers].stays(model)

    def weights(self, shares: Sequence[float]) -> Sequence[float]:
        """Return the clients' weights in every mean, given their shares by `training.weights`. Both sum to 1."""
        return [1 / len(shares)] * len(shares) if self.weighs_equally else shares

    def round_weights(self, server: Server, weights: Sequence[float]) -> Sequence[float]:
        """Return the weights, in the means of this round, of the clients that take part; the sum is 1.

        `weights` are those that follow from `Algorithm.weights`, in the order of `Server.participants`.
        """
        return weights

    # ---- before the first round

    def offer(self, server: Server, images: Images, labels: Tensor) -> dict[str, Tensor]:
        """Return what a client sends to the server once, before the first round, in tensors of the same shapes at each.

        They leave the site: the ledger counts them as floats up, and the page of a study names them. The server's hooks
        find them in `server.offers`. `images` are the client's training samples, and `labels` (n,), int64, theirs.
        """
        return {}

    # ---- the server, before a round

    def sample(self, server: Server, count: int, rng: np.random.Generator) -> Sequence[int]:
        """Return the positions of the `count` clients that take part in the next round; by default drawn uniformly.

        Each must be there once. The others do not train, and send and receive nothing. `rng` depends on seed and round
        alone; `server.shares` and `server.losses` serve other rules.
        """
        if count == server.clients:
            return range(count)
        return [int(k) for k in rng.permutation(server.clients)[:count]]

    def server_state(self, server: Server) -> dict[str, Tensor]:
        """Return the server's extra tensors before the first round."""
        return {}

    def client_state(self, server: Server) -> dict[str, Tensor]:
        """Return a client's extra tensors before the first round."""
        return {}

    def download(self, server: Server, client: int) -> Tensor:
        """Return the shared vector that a client receives and is scored with; `client` is its position among all.

        External sites get `server.shared` in any case.
        """
        return server.shared

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        """Return the tensors that the server sends in addition to the model. They count as floats down."""
        return {}

    def joint(self, number: int) -> Joint | None:
        """Return how the first local step of round `number` is taken jointly, or None if it is not."""
        return None

    def freezes_statistics(self, number: int, rounds: int) -> bool:
        """Return whether BN normalises with fixed running statistics in the training of round `number` of `rounds`."""
        return False

    # ---- a client's local training

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases of a client's local training in each round, in order; each begins with a new optimiser.

        Phases that `finishes` marks follow once, after the last round.
        """
        return (Phase(),)

    def begin(self, local: Local) -> None:
        """Prepare the local training, before its first step."""

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the local objective of one batch: its mean loss (scalar) and the logits (batch, classes)."""
        return local.objective(local, x, y)

    def gradient(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradient of a step to `local.all_grad`, which is zero before, and return the logits."""
        return self.backward(local, x, y)

    def backward(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        """Run one forward and backward pass of the local objective, and return the logits."""
        with local.autocast:
            loss, logits = self.loss(local, x, y)
        loss.backward()
        return logits.detach()

    def correct(self, local: Local) -> None:
        """Change `local.grad` (or `local.params`) in place, after the backward pass and before the step."""

    def personal(self, local: Local) -> Tensor | Blend:
        """Return all tensors of the network that a client is scored with, laid out as `local.state_vector`.

        `local.state_vector` holds the tensors that the client uses, with those of the server where these travel, and
        `local.state` the client's own. An override gives another network, of which nobody else knows; or a `Blend` of
        several that predict together, for an algorithm whose `blended` is `internal`.
        """
        return local.state_vector

    def report(self, local: Local) -> dict[str, Tensor]:
        """Return the tensors that the client sends back. They count as floats up; running statistics may be a view."""
        return {"shared": local.shared}

    # ---- the server, after a round

    def update(self, server: Server, mean: Mean) -> None:
        """Change the server in place, given the weighted mean over clients of each reported tensor."""
        server.shared.copy_(mean.shared)
