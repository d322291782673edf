"""One round as the server sees it: what clients are sent, and the mean of what they report. It needs no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..algorithms import Algorithm, Mean, Training
from .client import whole
from .local_training import Assignment
from .round_state import RoundState
from .running_variance import RunningVariances


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
