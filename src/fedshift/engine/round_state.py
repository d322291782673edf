"""State of a federation between two rounds, inputs of local training, and measurements of a round, as plain data."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..algorithms import LOGGED, Algorithm, Server
from ..core.errors import UserError
from ..tasks import CLASSIFICATION, Task


@dataclass(eq=False, kw_only=True)
class ClientTensors:
    """Tensors that a client keeps from round to round, on the CPU.

    Attributes
    ----------
    own : flat vector of the tensors that stay at the client
    counters : integer buffers of batch norm
    state : the client's tensors of the algorithm and the add-on, by name
    """

    own: Tensor = field(default_factory=lambda: torch.empty(0))
    counters: Tensor = field(default_factory=lambda: torch.empty(0))
    state: dict[str, Tensor] = field(default_factory=dict)

    def kept(self) -> ClientTensors:
        """Return the tensors alone, without a client's samples, so that they can be sent to other processes."""
        return ClientTensors(own=self.own, counters=self.counters, state=self.state)

    def keep(self, tensors: ClientTensors) -> None:
        """Replace this client's own tensors, counters and state by those of `tensors`."""
        self.own = tensors.own
        self.counters = tensors.counters
        self.state = tensors.state


@dataclass(eq=False)
class Member(ClientTensors):
    """A site that trains, as the server knows it.

    Attributes
    ----------
    name : name of the site
    share : the client's share of all training samples, or an equal share, according to `training.weights`
    weight : the client's weight in every mean, which the algorithm derives from the share
    first_round : the first round in which the client trained; None before
    here : True if this process does the local training of the client
    """

    name: str
    share: float
    weight: float
    first_round: int | None = None
    here: bool = True


def at_home(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a client's tensors detached and on the CPU, where they stay between rounds."""
    return {k: v.detach().cpu() for k, v in state.items()}


def shared_out(names: Sequence[str], sizes: Sequence[int], by_size: bool, algorithm: Algorithm) -> list[Member]:
    """Return the clients, each with its share and weight, given their names and numbers of training samples (`sizes`).

    With `by_size`, shares follow these numbers; otherwise they are equal. The algorithm turns shares into weights.
    """
    shares = [1 / len(sizes)] * len(sizes)
    if by_size:
        total = sum(sizes)
        shares = [size / total for size in sizes]
    weights = whole(f"{algorithm.name}.weights", algorithm.weights(shares), len(shares))
    return [Member(*row) for row in zip(names, shares, weights, strict=True)]


def whole(hook: str, weights: Sequence[float], clients: int) -> Sequence[float]:
    """Return `weights` as they are. Raises UserError unless each client has one, and their sum is 1.

    `hook` names the method of the algorithm that gave the weights.
    """
    if len(weights) != clients:
        raise UserError(hook, f"gives {len(weights)} weights", f"return one for each of the {clients} clients")
    # Weights that were computed in float32 miss 1 by less than this. NaN is refused, too.
    if not abs(sum(weights) - 1) <= 1e-4:
        raise UserError(
            hook, f"gives weights whose sum is {sum(weights):.6g}", "divide them by their sum, so that it is 1"
        )
    return weights


class Assignment(NamedTuple):
    """What a client needs to know for its local training in one round, from the server.

    Attributes
    ----------
    round : number of the round, from 1; one more than the last for phases that follow after the last round
    lr : learning rate of the client
    shared : the server's shared tensors, flat
    received : the shared tensors from which this client starts: those of the server, unless clients get different ones
    broadcast : the server's extra tensors, as `Algorithm.broadcast` returned them
    clients, classes : number of clients in the federation, and of classes
    """

    round: int
    lr: float
    shared: Tensor
    received: Tensor
    broadcast: Mapping[str, Tensor]
    clients: int
    classes: int


class SiteRecord(NamedTuple):
    """Measurements at one site in one round: a row of the history.

    `floats_down`, `floats_up` and `messages` are the traffic of training. `score` is the value of the metric that
    selects rounds, if one is computed in addition to loss and accuracy. `logged` are numbers of the plug-ins, by name.
    """

    site: str
    loss: float
    accuracy: float
    seconds: float
    floats_down: int = 0
    floats_up: int = 0
    messages: int = 0
    score: float | None = None
    logged: Mapping[str, float] = {}


COLUMNS = ("loss", "accuracy", "floats_down", "floats_up", "messages", "seconds")
"""Columns that every row of the history has, beside round, site and split."""


@dataclass
class Selected:
    """The round kept by model selection.

    Attributes
    ----------
    round : number of the round; if each client trains alone, the last round in which any client improved
    values : the mean validation value over clients; if each client trains alone, each client's value
    shared : the shared tensors, flat
    clients : each client's tensors in that round, in the order of clients; `state` is empty unless clients have
        personal networks
    received : the shared tensors that each client receives, if these differ between clients; otherwise empty
    """

    round: int
    values: list[float]
    shared: Tensor
    clients: list[ClientTensors]
    received: list[Tensor] = field(default_factory=list)

    def received_by(self, position: int) -> Tensor:
        """Return the shared tensors that the client at `position` received."""
        return self.received[position] if self.received else self.shared


@dataclass
class RoundState:
    """Everything that the next round depends on.

    Attributes
    ----------
    server : state of the server, with the number of rounds done
    clients : states of the clients, in the order of their names
    selected : the round kept by model selection, if any
    history : one dict for each round, site and split
    gathered : the last round after which this process held the tensors of all clients
    personal : True if clients are scored with personal networks
    download : `Algorithm.download`, which returns the shared tensors for a client by its position; None if all clients
        receive the server's
    """

    server: Server
    clients: Sequence[Member]
    selected: Selected | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    gathered: int = 0
    personal: bool = False
    download: Callable[[Server, int], Tensor] | None = None

    @property
    def round(self) -> int:
        """Number of rounds done."""
        return self.server.round

    def received(self, position: int) -> Tensor:
        """Return the shared tensors that the client at `position` receives after the current round."""
        if self.download is None:
            return self.server.shared
        return self.download(self.server, position)

    def assignment(self, position: int, broadcast: Mapping[str, Tensor]) -> Assignment:
        """Return the inputs of the next round's local training for the client at `position`.

        `broadcast` are the server's extra tensors, by name.
        """
        number, received = self.round + 1, self.received(position)
        server, clients = self.server, len(self.clients)
        return Assignment(number, server.lr, server.shared, received, broadcast, clients, server.classes)

    def log(self, split: str, parts: Iterable[Iterable[SiteRecord]], logged: Mapping[str, float] = {}) -> None:
        """Add the records of all processes for the current round to the history, in the order of sites.

        `parts` has the records of each process. `logged` are numbers of the server, which each of the rows gets. Losses
        of the split `train` also become the server's last training losses.
        """
        rows = list[dict[str, Any]]()
        for record in sorted(itertools.chain(*parts), key=lambda record: record.site):
            row: dict[str, Any] = {"round": self.round, "site": record.site, "split": split}
            row |= {column: getattr(record, column) for column in COLUMNS}
            if record.score is not None:
                row["score"] = record.score
            row |= {LOGGED + name: float(value) for name, value in {**logged, **record.logged}.items()}
            rows.append(row)
        self.history += rows
        self.note_losses(rows)

    def note_losses(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Set the server's last training loss of each client with a row of split `train` in `rows`."""
        losses = {row["site"]: row["loss"] for row in rows if row["split"] == "train"}
        before = zip(self.clients, self.server.losses, strict=True)
        self.server.losses = [losses.get(client.name, loss) for client, loss in before]

    def snapshot(self, values: list[float], better: Sequence[bool] = ()) -> Selected:
        """Return a copy of the current round's tensors as the selected round, with its validation `values`.

        `better` says for each client whether its validation value improved. A client whose value did not improve keeps
        its earlier selection. Empty means that all clients improved.
        """
        new = Selected(self.round, values, self.server.shared.clone(), [self._copied(c) for c in self.clients])
        if self.download:
            new.received = [self.received(k).clone() for k in range(len(self.clients))]
        for k, improved in enumerate(better):
            if self.selected and not improved:
                new.clients[k] = self.selected.clients[k]
                new.received[k : k + 1] = self.selected.received[k : k + 1]
        return new

    def _copied(self, client: Member) -> ClientTensors:
        state = client.state if self.personal else {}
        return ClientTensors(
            own=client.own.clone(),
            counters=client.counters.clone(),
            state={k: v.clone() for k, v in state.items()},
        )

    def mean_own(self, clients: Sequence[ClientTensors], number: int) -> Tensor:
        """Return the unweighted mean of the clients' own tensors, over the clients that had trained by round `number`.

        If no client had trained, the mean is over all of them.
        """
        return torch.stack([clients[k].own for k in self.trained(number)]).mean(0)

    def trained(self, number: int) -> list[int]:
        """Return the positions of the clients that had trained by round `number`; all positions if none had."""
        trained = [k for k, client in enumerate(self.clients) if (client.first_round or math.inf) <= number]
        return trained or list(range(len(self.clients)))


# ---- loss and accuracy of local steps


EVERY = 64
"""Number of steps after which losses are read from the device; a NaN is noticed up to this many steps late."""


class Tally:
    """Computes each client's training loss (cross-entropy) and accuracy in a round, as means over its local steps.

    Each batch is measured with the weights before its step. Penalties and losses of add-ons are left out, so that
    algorithms can be compared.
    """

    def __init__(self, number: int, task: Task = CLASSIFICATION) -> None:
        self.round = number
        self.task = task
        self.steps: list[tuple[str, Tensor, Tensor]] = []
        self.weights: list[tuple[str, Tensor]] = []
        self.sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def add(self, client: str, logits: Tensor, y: Tensor) -> None:
        """Note a training step of a client, from its logits (batch, classes, ...) and targets (batch, ...).

        Losses and correct predictions are read from the device only every few steps, so that no step waits for it.
        """
        self.steps.append((client, *self.task.kept(logits, y)))
        if len(self.steps) == EVERY:
            self.read()

    def add_weights(self, client: str, tensors: Iterable[Tensor]) -> None:
        """Note the sums of a client's weights after its last step, by which `read` finds NaN and infinity."""
        self.weights += [(client, tensor.sum()) for tensor in tensors]

    def read(self) -> None:
        """Read all noted losses and weights from the device. Raises UserError if one is not finite."""
        if self.steps:
            self._read_steps()
        if self.weights:
            clients, sums = zip(*self.weights, strict=True)
            self.weights = []
            for client, total in zip(clients, torch.stack(sums).tolist(), strict=True):
                if not math.isfinite(total):
                    raise diverged(self.round, client, "a weight is not finite after the last step")

    def _read_steps(self) -> None:
        clients, outputs, labels = zip(*self.steps, strict=True)
        self.steps = []
        measured = self.task.measured((torch.cat(outputs), torch.cat(labels))).cpu().numpy()
        sizes = [len(y) for y in labels]
        starts = list(itertools.accumulate(sizes[:-1], initial=0))
        # Many steps are read from the device at once, and summed apart: `starts` is where each step's images begin.
        sums_by_step = np.add.reduceat(measured, starts, axis=1).tolist()
        for client, loss, right, seen in zip(clients, *sums_by_step, sizes, strict=True):
            if not math.isfinite(loss):
                raise diverged(self.round, client, f"the training loss is {loss / seen}")
            sums = self.sums[client]
            sums[0] += loss
            sums[1] += right
            sums[2] += seen

    def means(self, client: str) -> tuple[float, float]:
        """Return mean training loss and accuracy of one client over all steps noted so far."""
        self.read()
        loss, right, seen = self.sums[client]
        return loss / seen, right / seen


def diverged(number: int, client: str, what: str) -> UserError:
    """Return the error for a training that diverged; its message names the round and the client."""
    place = f"round {number}, client {client!r}"
    return UserError(place, what, "lower training.lr, or look for broken inputs at this client")
