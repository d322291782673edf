"""The server's side of a federation: rounds, drawn clients, weighted means, and traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from torch import Tensor

from ..algorithms import Algorithm, Mean, Server, Traffic, Training
from ..core.console import say
from ..core.errors import UserError
from ..core.rng import stream
from .flat_network import RunningVariances
from .local_training import LocalTrainer
from .round_state import Assignment, Member, RoundState, Selected, whole
from .specification import Specification


class ServerSide:
    """Base class of federations: runs, counts and logs rounds. Subclasses define what one round does.

    `Federation` has all clients in this process or several processes; `Coordinator` reaches sites by messages.

    Attributes
    ----------
    specification : what sites and server agree on
    algorithm, addon, task, seed : those of the specification
    training : the settings of training, with a number of local steps if every client takes equally many
    trainer : holds the network and takes its local steps
    rounds : state between two rounds: server, clients, selected round, history
    beforehand : traffic before the first round, which the ledger adds to that of the rounds
    """

    rounds: RoundState
    trainer: LocalTrainer
    training: Training
    beforehand: Traffic

    def __init__(self, specification: Specification) -> None:
        self.specification = specification
        self.algorithm = specification.algorithm
        self.addon = specification.addon
        self.task = specification.task
        self.seed = specification.seed
        self.beforehand = Traffic()

    def _new_server(self, members: Sequence[Member], classes: int) -> Server:
        """Return the server's state before the first round, without the clients' and the algorithm's extra tensors."""
        server = opened_server(self.trainer, self.specification.features, len(members), classes)
        server.shares = [member.share for member in members]
        server.losses = [math.nan] * len(members)
        return server

    def _round_state(self, server: Server, members: Sequence[Member]) -> RoundState:
        algorithm = self.algorithm
        download = algorithm.download if algorithm.has_downloads else None
        return RoundState(server, members, personal=algorithm.has_personal_networks, download=download)

    @property
    def server(self) -> Server:
        """State of the server."""
        return self.rounds.server

    @property
    def selected(self) -> Selected | None:
        """The round kept by model selection, if any."""
        return self.rounds.selected

    @property
    def history(self) -> list[dict[str, Any]]:
        """One dict for each round, site and split: round, site, split and the columns of `round_state.COLUMNS`."""
        return self.rounds.history

    def run(
        self,
        rounds: int | None = None,
        *,
        after_round: Callable[[Self], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Self:
        """Train until `rounds` rounds (default.

        `training.rounds`) are done in all, or patience ends. Return this object.

        `after_round` is called with it after each round. `should_stop` is called between batches; if it returns True,
        Interrupted is raised. Raises UserError if a loss is not finite, and for rounds past the end of the cosine
        schedule, which falls to zero.
        """
        if rounds is None:
            rounds = self.training.rounds
        if rounds > self.training.rounds and self.training.schedule == "cosine":
            problem = f"{rounds}, but the cosine schedule ends after {self.training.rounds}"
            raise UserError("rounds", problem, "raise training.rounds")
        while self.rounds.round < rounds and not self.exhausted:
            self.round(should_stop)
            if after_round:
                after_round(self)
        return self

    def round(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Do one round: local training from the server's tensors, aggregation, validation."""
        raise NotImplementedError

    @property
    def exhausted(self) -> bool:
        """True if the last `training.patience` rounds brought no better validation value."""
        patience = self.training.patience
        return bool(patience and self.selected and self.rounds.round - self.selected.round >= patience)

    @property
    def finishes(self) -> bool:
        """True if the last round is done, and the algorithm has phases that clients train after it."""
        return self.rounds.round == self.training.rounds and any(phase.finishes for phase in self.algorithm.phases())

    def _begin_round(self) -> ServerRound:
        """Begin the next round with the clients that are drawn for it, and return the server's part of it."""
        drawn_now = drawn(self.algorithm, self.server, self.training, self.seed, self.server.round + 1)
        return ServerRound(self.algorithm, self.training, self.rounds, drawn_now)

    def _note_finish(self) -> None:
        for client in self.rounds.clients:
            client.first_round = client.first_round or self.rounds.round

    def best(self) -> Selected:
        """Return the selected round, or the last if none was selected."""
        return self.selected or self.rounds.snapshot([])

    def ledger(self) -> dict[str, int]:
        """Return the numbers of floats and messages sent so far; see `totals`."""
        return totals(self.history, self.algorithm.has_downloads, self.beforehand)


def totals(history: Iterable[Mapping[str, Any]], unicast: bool, beforehand: Traffic) -> dict[str, int]:
    """Return the floats sent before the first round and in all rounds of a history, and the number of messages.

    `down` counts floats to every client separately (unicast), `down_broadcast` once a round for all clients together,
    and `up` from every client. With `unicast`, where clients receive different tensors, nothing can be broadcast, and
    both are the same. `messages` adds one for each time that all clients send something and wait for the answer.
    """
    rows = [row for row in history if row["split"] == "train"]
    rounds: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        rounds.setdefault(row["round"], []).append(row)

    def once(key: str) -> int:
        return sum(max(row[key] for row in clients) for clients in rounds.values())

    down = sum(row["floats_down"] for row in rows)
    return {
        "down": beforehand.down + down,
        "down_broadcast": beforehand.down_broadcast + (down if unicast else once("floats_down")),
        "up": beforehand.up + sum(row["floats_up"] for row in rows),
        "messages": beforehand.messages + once("messages"),
    }


def opened_server(trainer: LocalTrainer, features: int, clients: int, classes: int) -> Server:
    """Return the server's state before the first round, with the shared tensors that `trainer` holds.

    `features` is the number of inputs of the network's last linear layer.
    """
    trained = trainer.trainable.stop
    shared = trainer.shared.clone()
    server = Server(shared=shared, trainable=slice(0, trained), statistics=slice(trained, len(shared)))
    server.clients = clients
    server.rounds = trainer.training.rounds
    server.features = features
    server.classes = classes
    server.channels = [len(layer.running_mean) for layer in trainer.batch_norms if layer.running_mean is not None]
    return server


def drawn(algorithm: Algorithm, server: Server, training: Training, seed: int, number: int) -> list[int]:
    """Draw the clients of round `number`, and return their positions in ascending order.

    Raises UserError if the algorithm names another number of clients than `participation` asks for, or one twice.
    """
    count = training.clients_in_round(server.clients)
    # Sorted, since sums over clients run in this order, and sums of floats depend on it.
    chosen = sorted(algorithm.sample(server, count, stream(seed, number, "participants")))
    if len(set(chosen)) != count or not set(chosen) <= set(range(server.clients)):
        problem = f"names the clients {chosen} in round {number}"
        raise UserError(f"{algorithm.name}.sample", problem, f"return {count} positions below {server.clients}")
    return chosen


class ServerRound:
    """The server's part of one round: what it sends, the weighted mean of the clients' reports, and the update.

    Attributes
    ----------
    number : number of the round, one more than the rounds done in `rounds`
    broadcast : the server's extra tensors, as `Algorithm.broadcast` returned them
    weights : weights of the clients in the means of this round, by their positions among all clients
    mean : sum of the reports that were added, times the clients' weights; for tensors that are not averaged, a table
        with the rows of these clients, and zeros elsewhere
    """

    def __init__(
        self, algorithm: Algorithm, training: Training, rounds: RoundState, participants: Sequence[int]
    ) -> None:
        server = rounds.server
        self.algorithm, self.rounds = algorithm, rounds
        self.number = server.round + 1
        self.weights: dict[int, float] = {}
        self.mean: dict[str, Tensor] = {}
        self._include(participants)
        server.lr = training.rate(self.number)
        server.logged = {}
        self.broadcast = algorithm.broadcast(server)
        self._weigh()

    @property
    def participants(self) -> Sequence[int]:
        """Positions, among all clients, of those that take part in the round, in ascending order."""
        return self.rounds.server.participants

    def go_on_with(self, positions: Sequence[int]) -> None:
        """Keep only the clients at `positions`, and scale their weights so that their sum is 1.

        Call this before any report is added.
        """
        if [*positions] != [*self.participants]:
            self._include(positions)
            self._weigh()

    def _include(self, positions: Sequence[int]) -> None:
        server = self.rounds.server
        members = self.rounds.clients
        # Exactly 1 where all take part, which a sum of floats need not be.
        everyone = len(positions) == len(members)
        server.participation = 1.0 if everyone else sum(members[k].weight for k in positions)
        server.participants = list(positions)

    def _weigh(self) -> None:
        server = self.rounds.server
        shares = [self.rounds.clients[k].weight / server.participation for k in self.participants]
        weights = self.algorithm.round_weights(server, shares)
        weights = whole(f"{self.algorithm.name}.round_weights", weights, len(shares))
        self.weights = dict(zip(self.participants, weights, strict=True))

    def assignment(self, position: int) -> Assignment:
        """Return the inputs of the local training of the client at `position`."""
        return self.rounds.assignment(position, self.broadcast)

    def add(self, position: int, report: Mapping[str, Tensor]) -> None:
        """Add one client's report, tensors by name, to the weighted mean of the round.

        Call this in the order of clients, since sums of floats depend on it. The tensors may change afterwards: they
        are not kept.
        """
        mean, weight = self.mean, self.weights[position]
        for key, value in report.items():
            if key in self.algorithm.per_client:
                if key not in mean:
                    mean[key] = value.new_zeros(len(self.participants), *value.shape)
                mean[key][self.participants.index(position)] = value
            elif key in mean:
                mean[key].add_(value, alpha=weight)
            else:
                mean[key] = value * weight

    def close(self, variances: RunningVariances, mean: Mapping[str, Tensor]) -> None:
        """Update the server with the weighted `mean` over all clients that take part, and end the round.

        `variances` turns averaged mean squares back into running variances.
        """
        server = self.rounds.server
        # Clients' variances were turned into mean squares around the means before this round; the update moves them.
        before = server.shared.clone() if variances.pooled else server.shared
        self.algorithm.update(server, Mean(mean, server.trainable))
        variances.pool(server.shared, before)
        for k in self.participants:
            client = self.rounds.clients[k]
            client.first_round = client.first_round or self.number
        server.round = self.number


def report_disproportion(weights: Sequence[float], own: Sequence[int], images: Sequence[int]) -> None:
    """Print a warning if the weights of clients in a joint step are not in proportion to their batches.

    `own` are the sizes of these clients' batches, and `images` those of all clients.
    """
    if not np.allclose(weights, [n / sum(images) for n in own]):
        say(
            "joint step: the clients' weights are not in proportion to their batches. Its gradient is not that of "
            "the union of batches; with equal batches, set training.weights: uniform"
        )


def cost(assigned: Assignment, report: Mapping[str, Tensor], floats: int, messages: int) -> tuple[int, int, int]:
    """Return floats down, floats up and messages of a client's round.

    `floats` and `messages` are those of its joint step, 0 without one.
    """
    down = assigned.shared.numel() + _floats(assigned.broadcast) + floats
    up = _floats(report) + floats
    return down, up, messages + bool(down or up)


def _floats(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() for t in tensors.values())
