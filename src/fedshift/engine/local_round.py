"""One round of this process's clients: they train in turn or together, and report to the server's part of the round."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from ..core.console import say
from .client import Client
from .joint_step import Exchange, FirstStep
from .local_training import Assignment, LocalTrainer
from .ranks import Ranks
from .read_ahead import wait_for
from .round_state import SiteRecord
from .server_round import ServerRound
from .stack import Stack
from .tally import Tally

Cost = tuple[float, int, int, int, dict[str, float]]
"""What a client's round takes: seconds, floats down, floats up, messages; and the numbers that plug-ins log."""


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
