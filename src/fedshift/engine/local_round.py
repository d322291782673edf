"""One round of this process's clients: each trains in turn, and their reports add up to a mean."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from ..core.console import say
from .client import Client
from .flat_network import Batch
from .joint_step import Exchange, FirstStep, joint_step
from .local_training import LocalTrainer
from .ranks import Ranks
from .read_ahead import wait_for
from .round_state import RoundState, SiteRecord
from .tally import Tally


class LocalRound:
    """Local training of this process's clients in one round, given all clients that take part.

    Attributes
    ----------
    mean : sum of the clients' reports times their weights: this process's part of the mean over all clients; for
        tensors that are not averaged, a table with the rows of this process's clients, and zeros elsewhere
    """

    def __init__(self, trainer: LocalTrainer, rounds: RoundState, participants: Sequence[Client], ranks: Ranks) -> None:
        self.trainer, self.rounds, self.participants, self.ranks = trainer, rounds, participants, ranks
        self.number = rounds.round + 1
        self.clients = [client for client in participants if client.here]
        self.broadcast = trainer.algorithm.broadcast(rounds.server)
        shares = [client.weight / rounds.server.participation for client in participants]
        weights = trainer.algorithm.round_weights(rounds.server, shares)
        self.weights = [weight for client, weight in zip(participants, weights, strict=True) if client.here]
        # Opened before any client trains: a joint step takes the first batch of each.
        self.batches = [trainer.batches(c.train, self.number, c.name) for c in self.clients]
        self.first: Sequence[FirstStep | None] = [None] * len(self.clients)
        self.mean: dict[str, Tensor] = {}
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
        if self.number == 1 and not np.allclose(self.weights, [len(y) / sum(images) for _, y in batches]):
            say(
                "joint step: the clients' weights are not in proportion to their batches. Its gradient is not that of "
                "the union of batches; with equal batches, set weights: uniform"
            )
        exchange = Exchange(self.weights, joint, images, self.ranks)
        # The tensors that travel are the same for all clients, so any client's turn serves.
        trainer.take_turn(self.clients[0], self.rounds, self.broadcast)
        objective = functools.partial(trainer.algorithm.loss, trainer)
        key = (trainer.seed, self.number, "joint dropout")
        self.first = joint_step(trainer, objective, batches, [c.own for c in self.clients], exchange, key)
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
        costs = [
            self._train(client, weight, batches, first, should_stop, tally)
            for client, weight, batches, first in zip(self.clients, self.weights, self.batches, self.first, strict=True)
        ]
        # Losses are read after the last client, so that no client waits for the device.
        return [
            SiteRecord(client.name, *tally.means(client.name), seconds, down, up, messages, logged=logged)
            for client, (seconds, down, up, messages, logged) in zip(self.clients, costs, strict=True)
        ]

    def _train(
        self,
        client: Client,
        weight: float,
        batches: Iterator[Batch],
        first: FirstStep | None,
        should_stop: Callable[[], bool],
        tally: Tally,
    ) -> tuple[float, int, int, int, dict[str, float]]:
        """Train one client, and return seconds, floats down, floats up, messages, and numbers of the plug-ins."""
        began = time.perf_counter()
        trainer = self.trainer
        shared = self.rounds.server.shared
        with trainer.turn(client, self.rounds, self.broadcast):
            report = trainer.train(batches, should_stop, tally, first)
            trainer.variances.gather(trainer.shared, shared)
            self._add(report, client, weight)
            logged = trainer.logged
        down = shared.numel() + _floats(self.broadcast) + self.floats
        up = _floats(report) + self.floats
        return self.seconds + time.perf_counter() - began, down, up, self.messages + bool(down or up), logged

    def _add(self, report: Mapping[str, Tensor], client: Client, weight: float) -> None:
        for key, value in report.items():
            if key in self.trainer.algorithm.per_client:
                if key not in self.mean:
                    self.mean[key] = value.new_zeros(len(self.participants), *value.shape)
                self.mean[key][self.participants.index(client)] = value
            elif key in self.mean:
                self.mean[key].add_(value, alpha=weight)
            else:
                self.mean[key] = value * weight


def finish(trainer: LocalTrainer, rounds: RoundState, should_stop: Callable[[], bool]) -> None:
    """Train what follows after the last round, at each client of this process, from the tensors that it receives.

    Nothing is sent: only what stays at the client changes. Raises as `LocalRound.run` does.
    """
    tally = Tally(rounds.round, trainer.task)
    broadcast = trainer.algorithm.broadcast(rounds.server)
    for client in rounds.here:
        with trainer.turn(client, rounds, broadcast, finishing=True):
            trainer.train(trainer.batches(client.train, trainer.round, client.name), should_stop, tally)
            tally.read()


def _floats(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() for t in tensors.values())
