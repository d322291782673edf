"""Ways in which clients work together: in a federation, with data in one place, or alone; and what they exchange."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Collaboration:
    """Clients train one global model and keep their data: the strategy of every algorithm except the controls."""

    has_global_model = True
    """True if training gives a model that a site outside the federation can use."""
    apart = ""
    """Why such a model is missing, as a clause about each client."""
    moves = ""
    """A clause that names the tensors that travel where such a model is missing."""

    def clients(self, data: Mapping[str, T], pool: Callable[[Sequence[T]], T]) -> dict[str, T]:
        """Return the data of each client by name, given the data of each site; `pool` joins data of several sites."""
        return dict(data)

    def count(self, sites: int) -> int:
        """Return the number of clients for a number of sites; in a federation each site is one."""
        return sites

    def tested(self, internal: tuple[str, ...], external: tuple[str, ...]) -> tuple[str, ...]:
        """Return the sites on which trained models are tested, given those inside and outside the federation."""
        return (*internal, *external)

    def class_counts(self, counts: np.ndarray) -> np.ndarray:
        """Return the numbers of training images (clients, classes) that weigh the classes at each client.

        `counts` are the clients' own. In a federation each client has the sum of all, so that all have one objective.
        """
        return np.broadcast_to(counts.sum(0), counts.shape)

    def heard(self, client: str, offers: Mapping[str, T]) -> dict[str, T]:
        """Return those of the clients' offers that one of them gets: all."""
        return dict(offers)

    def values(self, scores: Mapping[str, float], clients: Sequence[str]) -> list[float]:
        """Return the validation values that select a round: here one, the mean of the clients' scores.

        Clients without a defined score (NaN) do not count. If no client has one, the mean is NaN.
        """
        defined = [score for score in scores.values() if not math.isnan(score)]
        return [float(np.mean(defined)) if defined else math.nan]


class PooledData(Collaboration):
    """One client holds the data of all sites: the upper control of the FedBN and FedTAN papers."""

    name = "pooled"
    """Name of the only client."""

    def clients(self, data: Mapping[str, T], pool: Callable[[Sequence[T]], T]) -> dict[str, T]:
        """Return one client with the data of all sites, or no client without data."""
        return {self.name: pool(list(data.values()))} if data else {}

    def count(self, sites: int) -> int:
        """Return 1."""
        return 1


class _Apart(Collaboration):
    """Each client has a model that no external site can use: the base of strategies without a global model."""

    has_global_model = False

    def tested(self, internal: tuple[str, ...], external: tuple[str, ...]) -> tuple[str, ...]:
        """Return the internal sites: external sites have no model."""
        return internal


class SharedHead(_Apart):
    """Clients train together and select one round, but only their last layer is common: the strategy of LG-FedAvg."""

    apart = "each client has its own body"
    moves = "only the last layer travels"


class SharedPrototypes(_Apart):
    """Clients train together and select one round, but share features of classes alone: the strategy of FedProto."""

    apart = "each client has its own network"
    moves = "only the mean features of classes travel"


class NoCollaboration(_Apart):
    """Each client trains its own model and selects its own round: the lower control of the FedBN and FedTAN papers."""

    apart = "each client trains alone"
    moves = "nothing travels"

    def class_counts(self, counts: np.ndarray) -> np.ndarray:
        """Return the clients' own counts: nobody else's labels play a part."""
        return counts

    def heard(self, client: str, offers: Mapping[str, T]) -> dict[str, T]:
        """Return what `client` hears of the tensors that clients send before the first round: its own alone."""
        return {client: offers[client]}

    def values(self, scores: Mapping[str, float], clients: Sequence[str]) -> list[float]:
        """Return each client's own score, in the order of `clients`; NaN for a client without a score."""
        return [scores.get(client, math.nan) for client in clients]


@dataclass(frozen=True)
class Traffic:
    """The floats of one exchange, such as the one before the first round, of all clients together.

    Attributes
    ----------
    down : floats that clients receive
    down_broadcast : floats that the server sends where one message reaches all clients
    up : floats that clients send
    """

    down: int = 0
    down_broadcast: int = 0
    up: int = 0

    @classmethod
    def passed_on(cls, sizes: Mapping[str, int], collaboration: Collaboration) -> Traffic:
        """Return the traffic of `sizes` floats that each client sends, and that every client gets from all others."""
        heard = [{k: n for k, n in collaboration.heard(client, sizes).items() if k != client} for client in sizes]
        sent = sum(n for client, n in sizes.items() if any(client in others for others in heard))
        return cls(sum(sum(others.values()) for others in heard), sent, sent)

    @classmethod
    def summed_up(cls, numbers: int, clients: Collection[str], collaboration: Collaboration) -> Traffic:
        """Return the traffic of vectors (numbers,) that each client sends, and whose sum all clients get."""
        if not cls.passed_on(dict.fromkeys(clients, numbers), collaboration).up:
            return cls()
        return cls(numbers * len(clients), numbers, numbers * len(clients))

    def __add__(self, other: Traffic) -> Traffic:
        """Return the sum of two exchanges that take place together."""
        return Traffic(self.down + other.down, self.down_broadcast + other.down_broadcast, self.up + other.up)

    @property
    def messages(self) -> int:
        """Messages in one direction: one if anything is sent, since all of it can be sent together."""
        return int(self.up > 0)

    def floats(self, broadcast: bool) -> int:
        """Return the floats in both directions; with `broadcast`, what the server sends counts once."""
        if broadcast:
            return self.up + self.down_broadcast
        return self.up + self.down
