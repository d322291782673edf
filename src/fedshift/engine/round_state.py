"""The state of a federation between two rounds, as plain data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithms import Server
from .client import Client


class SiteRecord(NamedTuple):
    """Measurements at one site in one round: a row of the history.

    `floats_down`, `floats_up` and `messages` are those of training. `score` is the value of the metric that selects
    rounds, if one is computed in addition to loss and accuracy.
    """

    site: str
    loss: float
    accuracy: float
    seconds: float
    floats_down: int = 0
    floats_up: int = 0
    messages: int = 0
    score: float | None = None


COLUMNS = ("loss", "accuracy", "floats_down", "floats_up", "messages", "seconds")
"""Columns of the history that every row has, beside round, site and split."""


@dataclass
class Selected:
    """The round kept by model selection.

    Attributes
    ----------
    round : number of the round; if each client trains alone, the last round in which any client improved
    values : the mean validation value over clients; if each client trains alone, each client's value
    shared : the shared tensors, flat
    own, counters : the tensors that stay at each client, in the order of clients
    received : the shared tensors that each client receives, if these differ between clients; otherwise empty
    state : the algorithm's tensors of each client, if clients are scored with networks of their own; otherwise empty
    """

    round: int
    values: list[float]
    shared: Tensor
    own: list[Tensor]
    counters: list[Tensor]
    received: list[Tensor] = field(default_factory=list)
    state: list[dict[str, Tensor]] = field(default_factory=list)


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
    personal : True if clients are scored with networks of their own
    download : gives the shared tensors that a client receives, by its position; None if all receive the server's
    """

    server: Server
    clients: list[Client]
    selected: Selected | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    gathered: int = 0
    personal: bool = False
    download: Callable[[Server, int], Tensor] | None = None

    @property
    def round(self) -> int:
        """Number of rounds done."""
        return self.server.round

    @property
    def here(self) -> list[Client]:
        """The clients whose local training this process does."""
        return [client for client in self.clients if client.here]

    def received(self, client: Client) -> Tensor:
        """Return the shared tensors that a client receives after the current round."""
        return self.download(self.server, self.clients.index(client)) if self.download else self.server.shared

    def log(self, split: str, parts: Iterable[Iterable[SiteRecord]]) -> None:
        """Add the records of all processes for the current round to the history, in the order of sites."""
        for record in sorted(itertools.chain(*parts)):
            row = {"round": self.round, "site": record.site, "split": split}
            row |= {column: getattr(record, column) for column in COLUMNS}
            self.history.append(row if record.score is None else row | {"score": record.score})

    def snapshot(self, values: list[float], better: Sequence[bool] = ()) -> Selected:
        """Return the current round as the selected one.

        `better` says for each client whether its validation value improved. A client whose value did not improve
        keeps its earlier selection. Empty means that all clients improved.
        """
        new = Selected(
            round=self.round,
            values=values,
            shared=self.server.shared.clone(),
            own=[c.own.clone() for c in self.clients],
            counters=[c.counters.clone() for c in self.clients],
            received=[self.received(c).clone() for c in self.clients] if self.download else [],
            state=[{k: v.clone() for k, v in c.state.items()} for c in self.clients] if self.personal else [],
        )
        for k, improved in enumerate(better):
            if self.selected and not improved:
                new.own[k], new.counters[k] = self.selected.own[k], self.selected.counters[k]
                new.received[k : k + 1] = self.selected.received[k : k + 1]
                new.state[k : k + 1] = self.selected.state[k : k + 1]
        return new

    def mean_own(self, own: Sequence[Tensor], number: int) -> Tensor:
        """Return the plain mean of tensors that stay at clients, over the clients that had trained by round `number`.

        If no client had trained, the mean is over all of them.
        """
        return torch.stack([own[k] for k in self.trained(number)]).mean(0)

    def trained(self, number: int) -> list[int]:
        """Return the positions of the clients that had trained by round `number`; all, if none had."""
        trained = [k for k, client in enumerate(self.clients) if client.has_trained(number)]
        return trained or list(range(len(self.clients)))
