"""The base class of all federated algorithms. Unchanged, it is FedAvg.

McMahan et al. 2017: clients start from the server's tensors, take local steps, and the server averages the tensors that
they send back. An algorithm overrides only the hooks in which it differs; see `algorithms/`.
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
"""Prefix of the columns, in the history and in rounds.parquet, of numbers that plug-ins log."""
Bessel = Literal["none", "torch", "fedtan_code"]


class Images(Protocol):
    """A client's training images, which are read batch by batch."""

    def __len__(self) -> int: ...

    def batch(self, index: np.ndarray, /) -> tuple[Tensor, Tensor]:
        """Return inputs (batch, ...), not augmented, and labels (batch,) of the images at positions `index`."""
        ...


@dataclass
class Server:
    """State of the server in a federated training.

    Attributes
    ----------
    shared : flat vector (float) of all tensors that clients and server exchange under the BN policy
    trainable, statistics : slices of `shared` with the trained parameters, and with the running statistics of batch
        norm
    state : the algorithm's own tensors at the server, by name
    round : number of finished rounds
    participation : sum of the weights of the clients that take part in the current round; 1 if all do
    lr : learning rate of the clients in the current round
    clients : number of clients in the federation
    rounds : planned number of rounds of the training
    channels : number of channels of each batch-norm layer with running statistics, in the order of the network
    participants : positions, among all clients, of the clients that take part in the current round, in ascending order
    classes : number of classes
    features : number of inputs of the network's last linear layer, without an add-on; 0 if the network has none
    shares : share of each client in all training samples, or equal shares, according to `training.weights`
    losses : mean training loss of each client in the last round in which it took part, (clients,), float64; NaN before
        its first round
    offers : tensors that clients sent once, before the first round (see `Algorithm.offer`), each with a row for every
        client
    logged : numbers that `update` logs, by name: columns `log_NAME` of the history and of rounds.parquet
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
        """The trained parameters within `shared`, as a view: changing it changes the server."""
        return self.shared[self.trainable]

    def zeros(self) -> Tensor:
        """Return a zero vector with one entry for each shared trainable parameter."""
        import torch

        return torch.zeros_like(self.params)

    def average_statistics(self, mean: Mean) -> None:
        """Set the running statistics of batch norm to their mean over clients, and leave parameters unchanged."""
        self.shared[self.statistics] = mean.shared[self.statistics]


class Mean(dict[str, "Tensor"]):
    """Weighted mean over clients of each tensor that `Algorithm.report` returned, by name.

    A tensor that is named in `Algorithm.per_client` is not averaged: it has one row for each client of the round, in
    the order of `Server.participants`.

    Attributes
    ----------
    shared : mean of the clients' flat vectors of exchanged tensors, if the algorithm reports them as "shared"
    params : the trained parameters within `shared`, as a view
    """

    def __init__(self, tensors: Mapping[str, Tensor], trainable: slice) -> None:
        super().__init__(tensors)
        self.trainable = trainable

    def __missing__(self, name: str) -> Tensor:
        raise UserError("update", f"no client reports {name!r}", f"`report` gives: {', '.join(map(repr, self))}")

    @property
    def shared(self) -> Tensor:
        """The mean of the clients' flat vectors of exchanged tensors. Raises UserError if none reports "shared"."""
        return self["shared"]

    @property
    def params(self) -> Tensor:
        """The mean of the clients' trained parameters, as a view of `shared`."""
        return self.shared[self.trainable]


class Local:
    """Local training of one client in one round, as an algorithm's hooks see it. All vectors are flat.

    Attributes
    ----------
    client : name of the client
    share : the client's share of all training samples, or an equal share, according to `training.weights`
    clients, classes : number of clients in the federation, and number of classes
    round : number of the round, from 1
    lr, momentum : learning rate and momentum of the client's SGD in this round
    steps : number of local steps taken so far in this round
    phase : number of the phase of the current step, from 0 (see `Algorithm.phases`)
    model : the network; its tensors are views of `state_vector`
    received : the tensors that the server sent, in the layout of `shared`
    shared : the current values of the tensors that client and server exchange
    params, grad : the trained parameters within `shared`, and their gradient
    state_vector : all tensors of the client's network; tensors that stay at the client come first and last
    all_params, all_grad : the trained parameters within `state_vector`, and their gradient
    trainable : slice of `shared` with the trained parameters
    broadcast : the server's extra tensors, as `Algorithm.broadcast` returned them
    state : the client's own tensors, kept between rounds: both the algorithm's and the add-on's
    offers : tensors that clients sent once, before the first round, by client (see `Addon.offer`)
    scratch, networks : tensors and networks that hooks keep until the end of the round
    logged : numbers that hooks log, by name: columns `log_NAME` of the history and of rounds.parquet
    task : the task of the study, such as classification: it defines targets, and the loss of outputs
    objective : function that returns loss and outputs of a batch: the add-on's, or `task_loss` without one
    class_weights : weight of each class in `class_loss`, (classes,); None if all classes have the same weight
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
        """A new context for one forward pass, in the number format that the training's setting `precision` names."""
        raise NotImplementedError

    @property
    def received_params(self) -> Tensor:
        """The trained parameters within `received`: as the server sent them at the start of the round."""
        return self.received[self.trainable]

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return a further batch of the client's data (inputs, labels), independent of the batches of local steps."""
        raise NotImplementedError

    def own_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all the client's training samples once, in stored order, as batches of inputs and labels.

        They are not augmented. The network is in evaluation mode until the last batch has been taken.
        """
        raise NotImplementedError

    def full_gradient(self) -> Tensor:
        """Return the gradient over all the client's training data at the current weights, in the layout of `grad`.

        It is a mean over shuffled batches without augmentation; batch norm normalises each batch by its own statistics.
        The running statistics of batch norm do not change.
        """
        raise NotImplementedError

    def evaluation(self, validation: bool = False) -> tuple[float, float]:
        """Return mean cross-entropy and accuracy of the current network over all the client's training samples.

        With `validation`, the client's validation samples are used instead, if it has any. The network is in evaluation
        mode: no augmentation, no dropout, and batch norm uses running statistics.
        """
        raise NotImplementedError

    def frozen(self, slot: str, state_vector: Tensor) -> nn.Module:
        """Return a second network in evaluation mode that holds the tensors of `state_vector`.

        `slot` names the network: a further call with the same name returns the same network with new tensors.
        """
        raise NotImplementedError

    def untracked(self) -> AbstractContextManager[None]:
        """Return a context in which training does not change the running statistics and counters of batch norm."""
        raise NotImplementedError

    def class_counts(self, classes: int) -> Tensor:
        """Return the number of the client's training samples of each class: (classes,), int64."""
        raise NotImplementedError

    def holding(self, state_vector: Tensor, draws: Draws | None = None) -> AbstractContextManager[None]:
        """Return a context in which the network holds the tensors of `state_vector`, for training a second network.

        On leaving the context, `state_vector` gets the tensors as they were changed inside, and the network gets its
        own tensors and counters back. Dropout inside the context draws the same numbers as after it, so that the
        client's own training is not changed by it. With `draws`, dropout draws the numbers that followed when
        `next_draws` returned `draws`.
        """
        raise NotImplementedError

    def next_draws(self) -> Draws:
        """Return the state of dropout's random generators, for `holding`: a second network can draw equal numbers."""
        raise NotImplementedError

    def descend(self, slot: str, params: Tensor, grad: Tensor) -> None:
        """Move `params` in place by a step of the client's optimiser along `grad`, clipped as in local steps.

        `slot` names an optimiser: each name has one of its own, whose moments end with the round.
        """
        raise NotImplementedError


Objective = Callable[[Local, "Tensor", "Tensor"], "tuple[Tensor, Tensor]"]


def class_loss(local: Local, logits: Tensor, y: Tensor, reduction: Literal["mean", "none"] = "mean") -> Tensor:
    """Return the task's loss of a batch, weighted by class: the mean over images, or (batch,) if `reduction` is `none`.

    For classification it is the cross-entropy. The mean divides by the number of images. If it divided by the sum of
    weights, as torch's loss does, weights would cancel in a batch of one class, and so at a client that has one class
    only.
    """
    return local.task.batch_loss(logits, y, local.class_weights, reduction)


def task_loss(local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the local objective without an add-on: `class_loss` of a batch, and the logits (batch, classes, ...)."""
    logits = local.model(x)
    return class_loss(local, logits, y), logits


@dataclass(frozen=True)
class Blend:
    """Several networks that predict a site together, by a weighted mean of their outputs.

    Attributes
    ----------
    networks : all tensors of each network, in the layout of `Local.state_vector`; a client's personal network comes
        first
    weights : weight of each network; they sum to 1
    of : the outputs that are averaged: `logits` or `probabilities`
    """

    networks: Sequence[Tensor]
    weights: Sequence[float]
    of: Outputs = "logits"


@dataclass(frozen=True)
class Joint:
    """Settings of a joint first local step: all clients take it together, layer by layer, as in FedTAN.

    Attributes
    ----------
    gradients : True if clients also exchange the gradients with respect to the means and variances of batch norm
    bessel : correction of the shared variance before it enters the running variance: see `FedTAN.running_var_bessel`
    """

    gradients: bool
    bessel: Bessel


@dataclass(frozen=True)
class Phase:
    """Consecutive local steps of a round that train the same layers.

    Attributes
    ----------
    trains : which layers are trained: `all`; `home`, the layers that stay at the client under the algorithm's layer
        policy; or `rest`, all other layers. Untrained layers keep their parameters, but running statistics of batch
        norm change in every phase that does not freeze them
    epochs : number of passes over the client's data; None for as many steps as the settings of training say
    freezes_statistics : True if batch norm normalises with fixed running statistics in this phase
    finishes : True for a phase after the last round: all clients train it once, from the model of the last round, and
        send nothing
    """

    trains: Literal["all", "home", "rest"] = "all"
    epochs: int | None = None
    freezes_statistics: bool = False
    finishes: bool = False

    def steps(self, n: int, training: Training) -> int:
        """Return the number of local steps that a client with `n` training samples takes in this phase."""
        return training.steps_in_round(n) if self.epochs is None else self.epochs * training.steps_in_epoch(n)


class Algorithm(Plugin):
    """The base class of federated algorithms. Unchanged, it is FedAvg; each hook says what an override may change.

    `paper` names the source. `policies` are the BN policies (which tensors of batch norm stay at the clients) that the
    algorithm can be combined with; the first is the default. `why` says why others are refused.
    """

    kind: ClassVar[str] = "algorithm"
    paper: ClassVar[str] = ""
    policies: ClassVar[tuple[str, ...]] = tuple(POLICIES)
    why: ClassVar[str] = ""
    needs_sgd: ClassVar[str] = ""
    """Why local steps must be steps of SGD; empty if any optimiser will do."""
    needs_body: ClassVar[str] = ""
    """Why more than the last layer must be trained; empty if `training.train` may be `head`."""
    stands_for: ClassVar[str] = ""
    """Name of the algorithm that this one is only another name for, with the first of `policies` as BN policy; empty
    otherwise."""
    layers: ClassVar[str] = "full"
    """Name of the layer policy: which layers stay at the clients, in addition to what the BN policy keeps there."""
    external: ClassVar[str] = ""
    """A clause that says which model predicts external sites; empty if it is the same global model as at internal
    sites."""
    collaboration: ClassVar[Collaboration] = Collaboration()
    """How clients work together. In the controls `local` and `pooled` each client trains alone, or one has all data."""
    per_client: ClassVar[frozenset[str]] = frozenset()
    """Names of tensors of `report` that `update` gets unaveraged, with a row for each client of the round."""

    network_fields: ClassVar[frozenset[str]] = frozenset()
    """Settings that change the network in `extend`; a hyper-parameter search cannot vary them."""
    weighs_equally: ClassVar[bool] = False
    """True if all clients have the same weight in every mean, whatever `training.weights` says."""

    @property
    def blended(self) -> Literal["", "internal", "external"]:
        """The role of the sites that several networks predict together, internal or external; empty if none are."""
        return ""

    @property
    def has_personal_networks(self) -> bool:
        """Whether clients are evaluated with personal networks, besides the global network."""
        return self.has_downloads or type(self).personal is not Algorithm.personal

    @property
    def has_downloads(self) -> bool:
        """Whether the server sends each client another vector (see `download`), so that it cannot broadcast one."""
        return type(self).download is not Algorithm.download

    @property
    def needs_flat_gradient(self) -> bool:
        """Whether hooks may read or change gradients: they are then kept in one vector, in large networks too."""
        cls = type(self)
        hooks = (cls.phases, cls.gradient, cls.backward, cls.correct)
        return hooks != (Algorithm.phases, Algorithm.gradient, Algorithm.backward, Algorithm.correct)

    def canonical(self) -> Algorithm:
        """Return the algorithm for which this one is another name, such as FedAvg for FedBN; else return itself."""
        if not self.stands_for:
            return self
        algorithm: Algorithm = build(self.kind, self.stands_for)
        return algorithm

    def require(self, training: Training, bn: str) -> None:
        """Raise UserError if the algorithm cannot be combined with the settings of training or BN policy `bn`."""
        if bn not in POLICIES:
            raise UserError("bn", f"unknown BN policy {bn!r}", did_you_mean(bn, POLICIES))
        if bn not in self.policies:
            raise UserError("bn", f"{bn!r} has no meaning with {self.name}: {self.why}", f"use {self.policies[0]!r}")
        if self.needs_sgd and training.optimiser != "sgd":
            problem = f"{training.optimiser!r} has no meaning with {self.name}: {self.needs_sgd}"
            raise UserError("training.optimiser", problem, "use 'sgd'")
        needs_body = self.needs_body or (
            ""
            if self.layers == "full"
            else "it treats the last layer and the others differently, and only the last one would be trained"
        )
        if needs_body and training.train == "head":
            problem = f"'head' has no meaning with {self.name}: {needs_body}"
            raise UserError("training.train", problem, "use 'all' or ['norm', 'head']")

    def extend(self, model: nn.Module) -> nn.Module:
        """Return the network with the algorithm's own layers; the caller seeds torch's generator for weights."""
        return model

    # ---- what travels, and how it is weighted

    def shared(self, policy: BNPolicy, layout: Layout) -> slice:
        """Return the slice of the network's flat state that clients and server exchange under a BN policy."""
        return layout.shared(policy)

    def stays(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters of `model` that stay at the clients under the algorithm's layer policy."""
        if self.layers not in LAYERS:
            problem = f"names the unknown layer policy {self.layers!r}"
            raise UserError(f"{self.name}.layers", problem, did_you_mean(self.layers, LAYERS))
        return LAYERS[self.layers].stays(model)

    def weights(self, shares: Sequence[float]) -> Sequence[float]:
        """Return the weight of each client in every mean, given `shares` by `training.weights`. Both sum to 1."""
        return [1 / len(shares)] * len(shares) if self.weighs_equally else shares

    def round_weights(self, server: Server, weights: Sequence[float]) -> Sequence[float]:
        """Return the weights of the clients that take part in this round, for the means of this round; they sum to 1.

        `weights` follow from `Algorithm.weights`, and are in the order of `Server.participants`.
        """
        return weights

    # ---- before the first round

    def offer(self, server: Server, images: Images, labels: Tensor) -> dict[str, Tensor]:
        """Return tensors that a client sends to the server once, before the first round.

        Their shapes must be the same at all clients. They leave the site: the ledger counts them as floats up, and the
        page of a study names them. The server's hooks find them in `server.offers`. `images` are the client's training
        images, and `labels` (n,), int64, their labels.
        """
        return {}

    # ---- the server, before a round

    def sample(self, server: Server, count: int, rng: np.random.Generator) -> Sequence[int]:
        """Return the positions of the `count` clients that take part in the next round; by default drawn uniformly.

        Positions must differ. Other clients do not train in the round, and send and receive nothing. `rng` depends on
        seed and round alone. An override can use `server.shares` and `server.losses`.
        """
        if count == server.clients:
            return range(count)
        return [int(k) for k in rng.permutation(server.clients)[:count]]

    def server_state(self, server: Server) -> dict[str, Tensor]:
        """Return the algorithm's own tensors at the server, by name, as they are before the first round."""
        return {}

    def client_state(self, server: Server) -> dict[str, Tensor]:
        """Return the algorithm's own tensors at a client, by name, as they are before the first round."""
        return {}

    def download(self, server: Server, client: int) -> Tensor:
        """Return the flat vector of exchanged tensors that one client receives and is evaluated with.

        `client` is its position among all clients. External sites are always predicted with `server.shared`.
        """
        return server.shared

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        """Return tensors, by name, that the server sends in addition to the model. They count as floats down."""
        return {}

    def joint(self, number: int) -> Joint | None:
        """Return the settings of a joint first local step in round `number`, or None if each client takes it alone."""
        return None

    def freezes_statistics(self, number: int, rounds: int) -> bool:
        """Return whether BN normalises with fixed running statistics in training round `number` of `rounds`."""
        return False

    # ---- a client's local training

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases of a client's local training in a round, in order, each with a new optimiser.

        Phases with `finishes` are trained once, after the last round.
        """
        return (Phase(),)

    def begin(self, local: Local) -> None:
        """Prepare a client's local training, before the first step of a round, such as by filling `local.scratch`."""

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the local objective of a batch (x, y): its mean loss (scalar), and the logits (batch, classes)."""
        return local.objective(local, x, y)

    def gradient(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradient of a step on batch (x, y) to `local.all_grad`, which is zero before; return logits."""
        return self.backward(local, x, y)

    def backward(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        """Run a forward and a backward pass of the local objective on the batch (x, y), and return the logits."""
        with local.autocast:
            loss, logits = self.loss(local, x, y)
        loss.backward()
        return logits.detach()

    def correct(self, local: Local) -> None:
        """Change `local.grad` or `local.params` in place, after the backward pass and before the step."""

    def personal(self, local: Local) -> Tensor | Blend:
        """Return all tensors of the network that a client is evaluated with, in the layout of `local.state_vector`.

        `local.state_vector` holds the client's tensors, with the server's values for exchanged ones, and `local.state`
        holds the algorithm's own tensors at the client. An override returns a personal network, which only this client
        knows. An algorithm whose `blended` is `internal` returns a `Blend` of several networks that predict together.
        """
        return local.state_vector

    def report(self, local: Local) -> dict[str, Tensor]:
        """Return the tensors that a client sends to the server after its local steps, by name.

        They count as floats up. Report running statistics as a view of `local.shared`: with the setting
        `running_variance: pooled`, the engine changes them in place after this call.
        """
        return {"shared": local.shared}

    # ---- the server, after a round

    def update(self, server: Server, mean: Mean) -> None:
        """Update the server in place after a round, given the weighted mean of each reported tensor."""
        server.shared.copy_(mean.shared)
