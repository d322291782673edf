"""What a federation has at the server, whether its sites are in this process or elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

from ..algorithms import Algorithm, Server, Training
from ..core.errors import UserError
from ..core.rng import stream
from .client import Member
from .ledger import Traffic, totals
from .local_training import LocalTrainer
from .round import ServerRound
from .round_state import RoundState, Selected
from .specification import Specification


class ServerSide:
    """The rounds of a federation, as the server counts and logs them. What a round does is up to those who extend it.

    Attributes
    ----------
    specification : what sites and server agree on
    algorithm, addon, task, seed : those of the specification
    training : the settings of training, with a number of local steps if every client takes equally many
    trainer : what holds the network and takes its local steps
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
        """Return the server before the first round, without offers and without the algorithm's own tensors."""
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
        """Train until `rounds` (by default the training's) are done in all, or patience ends. Return this object.

        `after_round` is called with it after each round. `should_stop` is called between batches; if it returns True,
        Interrupted is raised. Raises UserError if a loss is not finite, and for rounds past the end of a schedule that
        falls to zero.
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
        """True if patience has ended."""
        patience = self.training.patience
        return bool(patience and self.selected and self.rounds.round - self.selected.round >= patience)

    @property
    def finishes(self) -> bool:
        """True if the last round is done, and the algorithm has phases that follow it at the clients."""
        return self.rounds.round == self.training.rounds and any(phase.finishes for phase in self.algorithm.phases())

    def _begin_round(self) -> ServerRound:
        """Begin the next round with the clients that are drawn for it."""
        drawn_now = drawn(self.algorithm, self.server, self.training, self.seed, self.server.round + 1)
        return ServerRound(self.algorithm, self.training, self.rounds, drawn_now)

    def _note_finish(self) -> None:
        for client in self.rounds.clients:
            client.first_round = client.first_round or self.rounds.round

    def best(self) -> Selected:
        """Return the selected round, or the last if none was selected."""
        return self.selected or self.rounds.snapshot([])

    def ledger(self) -> dict[str, int]:
        """Return how many floats and messages have moved so far; see `ledger.totals`."""
        return totals(self.history, self.algorithm.has_downloads, self.beforehand)


def opened_server(trainer: LocalTrainer, features: int, clients: int, classes: int) -> Server:
    """Return a server with the tensors that `trainer` holds, before the first round of a number of clients."""
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
    """Return the positions of the clients that take part in round `number`, ascending.

    Raises UserError if the algorithm names another number of clients than `participation` asks for, or one twice.
    """
    count = training.clients_in_round(server.clients)
    chosen = sorted(algorithm.sample(server, count, stream(seed, number, "participants")))
    if len(set(chosen)) != count or not set(chosen) <= set(range(server.clients)):
        problem = f"names the clients {chosen} in round {number}"
        raise UserError(f"{algorithm.name}.sample", problem, f"return {count} positions below {server.clients}")
    return chosen
