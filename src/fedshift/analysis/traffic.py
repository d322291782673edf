"""Forecasts of traffic, measured in rounds of one client with two random images: no formula is written twice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..algorithms import Server
from ..core.units import FLOAT_BYTES
from ..engine.federation import Federation
from ..engine.ledger import Traffic
from ..engine.server_side import drawn
from ..engine.specification import Specification
from ..models import initialise

if TYPE_CHECKING:
    from ..study.run import Run


MANY = 10**6
"""Number of training images of a client where it is not known: more than a plug-in takes."""


@dataclass(frozen=True)
class EqualRounds:
    """Rounds with the same traffic.

    Attributes
    ----------
    rounds : number of these rounds
    clients : number of clients that take part in one of them
    parameters, statistics : floats of the model that travel; all other floats are the algorithm's own
    down, up : floats that one client receives and sends in a round, the model's included
    messages : messages of a round in one direction
    unicast : True if the server sends each client other tensors, so that no broadcast can serve them all
    """

    rounds: int
    clients: int
    parameters: int
    statistics: int
    down: int
    up: int
    messages: int
    unicast: bool = False

    @property
    def extra(self) -> int:
        """Floats that one client receives and sends in a round in addition to the model."""
        return self.down + self.up - 2 * (self.parameters + self.statistics)

    def floats(self, *, broadcast: bool, statistics: bool = True) -> int:
        """Return the floats of a round, all clients together. With `broadcast`, what the server sends counts once."""
        left_out = 0 if statistics else self.statistics
        return self._of_all(left_out, broadcast)

    def extra_floats(self, *, broadcast: bool) -> int:
        """Return the floats of a round in addition to the model, all clients together."""
        return self._of_all(self.parameters + self.statistics, broadcast)

    def _of_all(self, left_out: int, broadcast: bool) -> int:
        """Return the floats of all clients, without `left_out` of them for each client and direction."""
        return (self.down - left_out) * (1 if broadcast and not self.unicast else self.clients) + (
            self.up - left_out
        ) * self.clients


@dataclass(frozen=True)
class Forecast:
    """The traffic of all rounds of a run.

    Attributes
    ----------
    phases : rounds with equal traffic
    once : floats that clients send in the first round they take part in, and in no later one, all clients together
    beforehand : what clients exchange before the first round
    """

    phases: tuple[EqualRounds, ...]
    once: int = 0
    beforehand: Traffic = field(default_factory=Traffic)

    @property
    def rounds(self) -> int:
        """The number of all rounds."""
        return sum(p.rounds for p in self.phases)

    @property
    def messages(self) -> int:
        """The number of messages in one direction, in all rounds."""
        return sum(p.rounds * p.messages for p in self.phases) + self.beforehand.messages

    def bytes(self, *, broadcast: bool, statistics: bool = True) -> int:
        """Return the bytes of all rounds, all clients together; `broadcast` as in `EqualRounds.floats`."""
        floats = sum(p.rounds * p.floats(broadcast=broadcast, statistics=statistics) for p in self.phases)
        return FLOAT_BYTES * (floats + self.once + self.beforehand.floats(broadcast))

    def extra_bytes(self, *, broadcast: bool) -> int:
        """Return the bytes of all rounds in addition to the model; `broadcast` as in `EqualRounds.floats`."""
        floats = sum(p.rounds * p.extra_floats(broadcast=broadcast) for p in self.phases)
        return FLOAT_BYTES * (floats + self.once + self.beforehand.floats(broadcast))


def forecast(run: Run, shape: tuple[int, ...], classes: int, images: Mapping[str, int] | None = None) -> Forecast:
    """Return the traffic of a run on images of `shape` (channels, height, width), if no patience ends it early.

    The first round is measured, and a later one of each kind: with a joint first step, with frozen statistics, with
    both or neither. What a client sends more in the first round is counted once for each client that is ever drawn.
    Where it sends less there, or the server more or less, the first round is its own phase.
    `images` are the numbers of training images of the internal sites; where they are not known, each has as many as an
    add-on may want.
    """
    training = run.training
    algorithm = run.algorithm
    count = len(run.partition.internal)
    kinds: dict[tuple[bool, bool], list[int]] = {}
    for number in range(1, training.rounds + 1):
        kind = algorithm.joint(number) is not None, algorithm.freezes_statistics(number, training.rounds)
        kinds.setdefault(kind, []).append(number)
    short = training.model_copy(update={"local_epochs": 1, "local_steps": 1, "select": "last", "patience": None})
    model = initialise(run.model, shape, classes, run.seed)
    specification = Specification.open(
        model, algorithm=algorithm, bn=run.bn, addon=run.addon, training=short, norms=run.norms
    )
    data = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)), torch.arange(2) % classes
    federation = Federation(specification, {"client": data})
    first = _measured(federation, 1)
    phases = []
    once = 0
    for numbers in kinds.values():
        later = [number for number in numbers if number > 1]
        row = _measured(federation, later[0]) if later else first
        equal = EqualRounds(
            rounds=len(numbers),
            clients=training.clients_in_round(algorithm.collaboration.count(count)),
            parameters=federation.server.params.numel(),
            statistics=federation.server.statistics.stop - federation.server.statistics.start,
            down=row["floats_down"],
            up=row["floats_up"],
            messages=row["messages"],
            unicast=algorithm.has_downloads,
        )
        if 1 in numbers:
            once = max(first["floats_up"] - equal.up, 0) * _clients_ever_drawn(run, count)
            least = {"down": first["floats_down"], "up": min(first["floats_up"], equal.up)}
            opening = replace(equal, rounds=1, messages=first["messages"], **least)
            if opening != replace(equal, rounds=1):
                phases.append(opening)
                equal = replace(equal, rounds=equal.rounds - 1)
        phases.append(equal)
    return Forecast(tuple(phases), once, _beforehand(run, federation.server, shape, classes, images or {}))


def _measured(federation: Federation, number: int) -> Mapping[str, Any]:
    """Train the round with that number, and return what the history says of it."""
    federation.server.round = number - 1
    federation.round()
    return federation.history[-1]


def _beforehand(run: Run, server: Server, shape: tuple[int, ...], classes: int, images: Mapping[str, int]) -> Traffic:
    """Return what clients send before the first round: offers of plug-ins, class counts, site statistics."""
    together = run.algorithm.collaboration
    black = torch.zeros(1, *shape)
    sites = together.clients({site: images.get(site, MANY) for site in run.partition.internal}, sum)
    statistics = sum(transform.fit([black]).numel() for transform in run.transforms if transform.per_site)
    total = Traffic.passed_on(dict.fromkeys(sites, statistics), together)
    if run.addon:
        offers = {site: run.addon.offer(_Black(n, shape)) for site, n in sites.items()}
        total += Traffic.passed_on(
            {site: sum(map(torch.numel, offer.values())) for site, offer in offers.items()}, together
        )
    to_server = [
        run.algorithm.offer(server, _Black(n, shape), torch.zeros(n, dtype=torch.long)) for n in sites.values()
    ]
    total += Traffic(up=sum(table.numel() for offer in to_server for table in offer.values()))
    if run.training.class_weights == "balanced":
        total += Traffic.summed_up(classes, sites, together)
    return total


class _Black:
    """So many black images of class 0, which exist only by the batch: an offer has the size of a real one."""

    def __init__(self, n: int, shape: tuple[int, ...]) -> None:
        self.n = n
        self.shape = shape

    def __len__(self) -> int:
        return self.n

    def batch(self, index: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return as many images as there are in `index`."""
        return torch.zeros(len(index), *self.shape), torch.zeros(len(index), dtype=torch.long)


def _clients_ever_drawn(run: Run, sites: int) -> int:
    """Return how many clients take part in one round at least, if those that are drawn do not depend on losses."""
    clients = run.algorithm.collaboration.count(sites)
    server = Server(torch.empty(0), slice(0), slice(0), clients=clients, rounds=run.training.rounds)
    server.shares, server.losses = [1 / clients] * clients, [math.nan] * clients
    ever: set[int] = set()
    for number in range(1, run.training.rounds + 1):
        server.round = number - 1
        ever.update(drawn(run.algorithm, server, run.training, run.seed, number))
    return len(ever)
