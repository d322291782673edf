"""The state of a federation between two rounds, as plain data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithms import LOGGED, Server
from .client import ClientTensors, Member


class SiteRecord(NamedTuple):
    """Measurements at one site in one round: a row of the history.

    `floats_down`, `floats_up` and `messages` are those of training. `score` is the value of the metric that selects
    rounds, if one is computed in addition to loss and accuracy. `logged` are numbers of the plug-ins, by name.
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
"""Columns of the history that every row has, beside round, site and split."""


@dataclass
class Selected:
    """The round kept by model selection.

    Attributes
    ----------
    round : number of the round; if each client trains alone, the last round in which any client improved
    values : the mean validation value over clients; if each client trains alone, each client's value
    shared : the shared tensors, flat
    clients : what each client keeps, in the order of clients; without state unless this belongs to personal networks
    received : the shared tensors that each client receives, if these differ between clients; otherwise empty
    """

    round: int
    values: list[float]
    shared: Tensor
    clients: list[ClientTensors]
    received: list[Tensor] = field(default_factory=list)

    def received_by(self, position: int) -> Tensor:
        """Return the shared tensors that the client at a position received."""
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
    download : gives the shared tensors that a client receives, by its position; None if all receive the server's
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
        """Return the shared tensors that the client at a position receives after the current round."""
        if self.download is None:
            return self.server.shared
        return self.download(self.server, position)

    def log(self, split: str, parts: Iterable[Iterable[SiteRecord]], logged: Mapping[str, float] = {}) -> None:
        """Add the records of all processes for the current round to the history, in the order of sites.

        `logged` are numbers of the server, which each of the rows gets. Losses of the split `train` are the server's.
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
        """Set the server's last training loss of each client that has any in these rows of the history."""
        losses = {row["site"]: row["loss"] for row in rows if row["split"] == "train"}
        before = zip(self.clients, self.server.losses, strict=True)
        self.server.losses = [losses.get(client.name, loss) for client, loss in before]

    def snapshot(self, values: list[float], better: Sequence[bool] = ()) -> Selected:
        """Return the current round as the selected one.

        `better` says for each client whether its validation value improved. A client whose value did not improve
        keeps its earlier selection. Empty means that all clients improved.
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
        """Return the plain mean of tensors that stay at clients, over the clients that had trained by round `number`.

        If no client had trained, the mean is over all of them.
        """
        return torch.stack([clients[k].own for k in self.trained(number)]).mean(0)

    def trained(self, number: int) -> list[int]:
        """Return the positions of the clients that had trained by round `number`; all, if none had."""
        trained = [k for k, client in enumerate(self.clients) if client.has_trained(number)]
        return trained or list(range(len(self.clients)))
