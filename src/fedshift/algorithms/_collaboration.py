"""Strategies of collaboration: federated, on pooled data, or each client alone; and the amounts that are exchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Collaboration:
    """Clients train one global model and keep their data: the strategy of every algorithm except the controls.

    Subclasses change who trains on which data, who is tested, and how rounds are selected.
    """

    has_global_model = True
    """True if training yields a model that can predict sites outside of the federation."""
    apart = ""
    """Reason why there is no global model, as a clause about each client; empty if there is one."""
    moves = ""
    """A clause that names the tensors that clients and server exchange if there is no global model."""

    def clients(self, data: Mapping[str, T], pool: Callable[[Sequence[T]], T]) -> dict[str, T]:
        """Return each client's data by name, given each site's data; in a federation, each site is a client.

        `pool` joins the data of several sites.
        """
        return dict(data)

    def count(self, sites: int) -> int:
        """Return the number of clients that `sites` internal sites form; in a federation, each site is a client."""
        return sites

    def tested(self, internal: tuple[str, ...], external: tuple[str, ...]) -> tuple[str, ...]:
        """Return the sites on which trained models are tested: here all, internal and external."""
        return (*internal, *external)

    def class_counts(self, counts: np.ndarray) -> np.ndarray:
        """Return the counts (clients, classes) of training images from which class weights are computed at each client.

        `counts` (clients, classes) are each client's own counts. In a federation, every client gets their sum over
        clients, so that all clients have the same objective.
        """
        return np.broadcast_to(counts.sum(0), counts.shape)

    def heard(self, client: str, offers: Mapping[str, T]) -> dict[str, T]:
        """Return the tensors that `client` gets before the first round, by their sender: here all `offers`."""
        return dict(offers)

    def values(self, scores: Mapping[str, float], clients: Sequence[str]) -> list[float]:
        """Return the validation values by which a round is selected: here one, the mean over clients.

        `scores` maps clients to their validation scores. Clients without a defined score (NaN) do not count. If no
        client has one, the mean is NaN.
        """
        defined = [score for score in scores.values() if not math.isnan(score)]
        return [float(np.mean(defined)) if defined else math.nan]


class PooledData(Collaboration):
    """A single client holds the data of all sites: the upper control of the FedBN and FedTAN papers."""

    name = "pooled"
    """Name of the single client."""

    def clients(self, data: Mapping[str, T], pool: Callable[[Sequence[T]], T]) -> dict[str, T]:
        """Return the single client with the joined data of all sites, or an empty dict if there are no data."""
        return {self.name: pool(list(data.values()))} if data else {}

    def count(self, sites: int) -> int:
        """Return 1: the single client."""
        return 1


class _Apart(Collaboration):
    """Base class of strategies without a global model: no client's model can be used at external sites."""

    has_global_model = False

    def tested(self, internal: tuple[str, ...], external: tuple[str, ...]) -> tuple[str, ...]:
        """Return the internal sites: there is no model for external ones."""
        return internal


class SharedHead(_Apart):
    """The strategy of LG-FedAvg: clients select a round together, but share only the last layer of their networks."""

    apart = "each client has its own body"
    moves = "only the last layer travels"


class SharedPrototypes(_Apart):
    """The strategy of FedProto: clients select a round together, but share only the mean features of each class."""

    apart = "each client has its own network"
    moves = "only the mean features of classes travel"


class NoCollaboration(_Apart):
    """Each client trains its own model and selects its own round: the lower control of the FedBN and FedTAN papers."""

    apart = "each client trains alone"
    moves = "nothing travels"

    def class_counts(self, counts: np.ndarray) -> np.ndarray:
        """Return each client's own counts (clients, classes), since clients do not tell each other their labels."""
        return counts

    def heard(self, client: str, offers: Mapping[str, T]) -> dict[str, T]:
        """Return only what the client itself sent: without collaboration a client learns nothing from others."""
        return {client: offers[client]}

    def values(self, scores: Mapping[str, float], clients: Sequence[str]) -> list[float]:
        """Return each client's own validation score, in the order of `clients`; NaN for a client without one."""
        return [scores.get(client, math.nan) for client in clients]


@dataclass(frozen=True)
class Traffic:
    """The number of floats in one exchange between server and clients, summed over all clients.

    Attributes
    ----------
    down : floats that clients receive
    down_broadcast : floats that the server sends if a message to all clients is sent once
    up : floats that clients send
    """

    down: int = 0
    down_broadcast: int = 0
    up: int = 0

    @classmethod
    def passed_on(cls, sizes: Mapping[str, int], collaboration: Collaboration) -> Traffic:
        """Return the traffic of an exchange in which the server forwards what each client sends to the other clients.

        `sizes` maps clients to the number of floats that they send. `collaboration` decides who receives whose floats;
        a client whose floats nobody receives sends none.
        """
        heard = [{k: n for k, n in collaboration.heard(client, sizes).items() if k != client} for client in sizes]
        sent = sum(n for client, n in sizes.items() if any(client in others for others in heard))
        return cls(sum(sum(others.values()) for others in heard), sent, sent)

    @classmethod
    def summed_up(cls, numbers: int, clients: Collection[str], collaboration: Collaboration) -> Traffic:
        """Return the traffic of an exchange in which each client sends `numbers` floats, and all receive their sum.

        It is zero if clients do not collaborate, or if there is only one.
        """
        if not cls.passed_on(dict.fromkeys(clients, numbers), collaboration).up:
            return cls()
        return cls(numbers * len(clients), numbers, numbers * len(clients))

    def __add__(self, other: Traffic) -> Traffic:
        """Return the traffic of two exchanges that take place together."""
        return Traffic(self.down + other.down, self.down_broadcast + other.down_broadcast, self.up + other.up)

    @property
    def messages(self) -> int:
        """Number of messages in one direction: 1 if clients send anything, since all of it fits into one; else 0."""
        return int(self.up > 0)

    def floats(self, broadcast: bool) -> int:
        """Return the floats in both directions; if `broadcast`, a message to all clients counts once."""
        if broadcast:
            return self.up + self.down_broadcast
        return self.up + self.down
