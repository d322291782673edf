"""One round: this process's clients train in turn or together, and report to the server, which makes their mean."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from ..algorithms import Algorithm, Mean, Training
from ..core.console import say
from ..nn.transfer import wait_for
from .client import Client, whole
from .flat_network import RunningVariances
from .joint_step import Exchange, FirstStep
from .local_training import Assignment, LocalTrainer
from .ranks import Ranks
from .round_state import RoundState, SiteRecord
from .stack import Stack
from .tally import Tally

Cost = tuple[float, int, int, int, dict[str, float]]
"""What a client's round takes: seconds, floats down, floats up, messages; and the numbers that plug-ins log."""


class ServerRound:
    """The server's part of the round after those in `rounds`.

    Attributes
    ----------
    number : number of the round
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
        """Leave out the clients at other positions, before any report is added: the others' weights then sum to 1."""
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
        """Return what one client needs to know for its local training."""
        return assignment(self.rounds, position, self.broadcast)

    def add(self, position: int, report: Mapping[str, Tensor]) -> None:
        """Add what one client reports to the mean. To be called in the order of clients: sums of floats depend on it.

        The tensors may change afterwards: they are not kept.
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
        """Update the server, given the mean over all clients that take part, and end the round."""
        server = self.rounds.server
        # Clients' variances were turned into mean squares around the means before this round; the update moves them.
        before = server.shared.clone() if variances.pooled else server.shared
        self.algorithm.update(server, Mean(mean, server.trainable))
        variances.pool(server.shared, before)
        for k in self.participants:
            client = self.rounds.clients[k]
            client.first_round = client.first_round or self.number
        server.round = self.number


def assignment(rounds: RoundState, position: int, broadcast: Mapping[str, Tensor]) -> Assignment:
    """Return what the client at a position needs to know for the local training after the current round."""
    server = rounds.server
    return Assignment(
        server.round + 1,
        server.lr,
        server.shared,
        rounds.received(position),
        broadcast,
        len(rounds.clients),
        server.classes,
    )


class LocalRound:
    """Local training of this process's clients in one round.

    Parameters
    ----------
    trainer : the network on which clients train
    server_round : the server's part of the round, which gets the reports of this process's clients
    clients : all clients of the federation
    ranks : the processes that share the clients
    stack : networks on which several clients train together; None if each trains alone
    """

    def __init__(
        self,
        trainer: LocalTrainer,
        server_round: ServerRound,
        clients: Sequence[Client],
        ranks: Ranks,
        stack: Stack | None = None,
    ) -> None:
        self.stack = stack
        self.trainer, self.server_round, self.ranks = trainer, server_round, ranks
        self.number = server_round.number
        here = [k for k in server_round.participants if clients[k].here]
        self.clients = [clients[k] for k in here]
        self.positions = here
        # Opened before any client trains: a joint step takes the first batch of each.
        self.batches = [trainer.batches(c.train, self.number, c.name) for c in self.clients]
        self.first: Sequence[FirstStep | None] = [None] * len(self.clients)
        # What each client sends, receives and takes in the joint step, beside its local training.
        self.floats = self.messages = 0
        self.seconds = 0.0

    def first_steps(self) -> None:
        """Take the first step, if the algorithm asks for a joint one: all processes at the same time."""
        trainer = self.trainer
        joint = trainer.algorithm.joint(self.number)
        if joint is None:
            return
        began = time.perf_counter()
        batches = [next(client_batches) for client_batches in self.batches]
        images = list(itertools.chain(*self.ranks.each(lambda: [len(y) for _, y in batches])))
        weights = [self.server_round.weights[k] for k in self.positions]
        if self.number == 1:
            report_disproportion(weights, [len(y) for _, y in batches], images)
        exchange = Exchange(weights, joint, images, self.ranks)
        # The tensors that travel are the same for all clients, so any client's turn serves.
        trainer.take_turn(self.clients[0], self.server_round.assignment(self.positions[0]))
        self.first = trainer.first_steps(batches, [c.own for c in self.clients], exchange)
        trainer.end_turn()
        self.floats = exchange.floats
        self.messages = exchange.messages
        wait_for(trainer.device)
        self.seconds = (time.perf_counter() - began) / len(self.clients)

    def run(self, should_stop: Callable[[], bool]) -> list[SiteRecord]:
        """Take all local steps, and return a record of each client.

        Raises UserError if a loss or a weight is not finite, and Interrupted if `should_stop` returns True between
        batches.
        """
        tally = Tally(self.number, self.trainer.task)
        costs = [*(self._alone if self.stack is None else self._together)(should_stop, tally)]
        # Losses are read after the last client, so that no client waits for the device.
        return [
            SiteRecord(client.name, *tally.means(client.name), seconds, down, up, messages, logged=logged)
            for client, (seconds, down, up, messages, logged) in zip(self.clients, costs, strict=True)
        ]

    def _alone(self, should_stop: Callable[[], bool], tally: Tally) -> Iterator[Cost]:
        """Train one client after another, and yield what each costs."""
        turns = zip(self.positions, self.clients, self.batches, self.first, strict=True)
        for position, client, batches, first in turns:
            began = time.perf_counter()
            assigned = self.server_round.assignment(position)
            with self.trainer.trained(client, assigned, batches, should_stop, tally, first) as report:
                added = self._add(position, assigned, report)
                logged = self.trainer.logged
            yield self.seconds + time.perf_counter() - began, *added, logged

    def _together(self, should_stop: Callable[[], bool], tally: Tally) -> Iterator[Cost]:
        """Train as many clients together as there are rows, and yield what each costs: an equal share of the time."""
        assert self.stack
        chunk = len(self.stack.rows)
        for start in range(0, len(self.clients), chunk):
            began = time.perf_counter()
            clients, positions = self.clients[start : start + chunk], self.positions[start : start + chunk]
            assigned = [self.server_round.assignment(position) for position in positions]
            rows = self.stack.train(clients, assigned, self.batches[start : start + chunk], should_stop, tally)
            costs = []
            for client, position, one, row in zip(clients, positions, assigned, rows, strict=True):
                with row.reported(client, one) as report:
                    costs.append((*self._add(position, one, report), row.logged))
            seconds = (time.perf_counter() - began) / len(clients)
            yield from ((seconds, *cost) for cost in costs)

    def _add(self, position: int, assigned: Assignment, report: Mapping[str, Tensor]) -> tuple[int, int, int]:
        """Add a client's report to the server's mean, and return floats down, floats up, and messages."""
        self.server_round.add(position, report)
        return cost(assigned, report, self.floats, self.messages)


def report_disproportion(weights: Sequence[float], own: Sequence[int], images: Sequence[int]) -> None:
    """Say so if the weights of clients in a joint step are not in proportion to their batches.

    `own` are the sizes of these clients' batches, and `images` those of all clients.
    """
    if not np.allclose(weights, [n / sum(images) for n in own]):
        say(
            "joint step: the clients' weights are not in proportion to their batches. Its gradient is not that of "
            "the union of batches; with equal batches, set weights: uniform"
        )


def cost(assigned: Assignment, report: Mapping[str, Tensor], floats: int, messages: int) -> tuple[int, int, int]:
    """Return floats down, floats up and messages of a client's round; `floats` and `messages` are of a joint step."""
    down = assigned.shared.numel() + _floats(assigned.broadcast) + floats
    up = _floats(report) + floats
    return down, up, messages + bool(down or up)


def _floats(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() for t in tensors.values())
