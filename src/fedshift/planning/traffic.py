"""What a run will send, measured in rounds of one client with two random images: no formula stands twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.federation import Federation
from ..engine.ledger import BYTES
from ..models import initialise

if TYPE_CHECKING:
    from ..study.run import Run


@dataclass(frozen=True)
class Phase:
    """Rounds that are alike: how many, and what one of them moves.

    `down` and `up` are floats of one client, of which `parameters` and `statistics` are the model's and the rest is the
    algorithm's. `messages` counts those in one direction. `clients` take part.
    """

    rounds: int
    clients: int
    parameters: int
    statistics: int
    down: int
    up: int
    messages: int

    @property
    def extra(self) -> int:
        """Floats a client beyond the model, both ways."""
        return self.down + self.up - 2 * (self.parameters + self.statistics)

    def floats(self, *, broadcast: bool, statistics: bool = True) -> int:
        """Of a round, all clients together; the way down counts once if it is `broadcast`."""
        left_out = 0 if statistics else self.statistics
        return self._of_all(left_out, broadcast)

    def extra_floats(self, *, broadcast: bool) -> int:
        """Of a round, all clients together, beyond the model."""
        return self._of_all(self.parameters + self.statistics, broadcast)

    def _of_all(self, left_out: int, broadcast: bool) -> int:
        """All clients' floats, without so many of each client and way."""
        return (self.down - left_out) * (1 if broadcast else self.clients) + (self.up - left_out) * self.clients


@dataclass(frozen=True)
class Forecast:
    """What all rounds of a run move."""

    phases: tuple[Phase, ...]

    @property
    def rounds(self) -> int:
        return sum(p.rounds for p in self.phases)

    @property
    def messages(self) -> int:
        return sum(p.rounds * p.messages for p in self.phases)

    def bytes(self, *, broadcast: bool, statistics: bool = True) -> int:
        """In all rounds."""
        return sum(BYTES * p.rounds * p.floats(broadcast=broadcast, statistics=statistics) for p in self.phases)

    def extra_bytes(self, *, broadcast: bool) -> int:
        """In all rounds, beyond the model."""
        return sum(BYTES * p.rounds * p.extra_floats(broadcast=broadcast) for p in self.phases)


def forecast(run: Run, shape: tuple[int, ...], classes: int) -> Forecast:
    """What a run on images of `shape` (channels, height, width) moves, if no patience ends it early.

    Rounds that an algorithm treats alike are measured once: those with a joint first step, with frozen statistics, or
    neither.
    """
    import torch

    training, algorithm, count = run.training, run.algorithm, len(run.partition.internal)
    kinds: dict[tuple[bool, bool], list[int]] = {}
    for number in range(1, training.rounds + 1):
        kind = algorithm.joint(number) is not None, algorithm.freezes_statistics(number)
        kinds.setdefault(kind, []).append(number)
    federation = Federation(
        initialise(run.model, shape, classes, run.seed),
        {"client": (torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)), torch.arange(2) % classes)},
        algorithm=algorithm,
        bn=run.bn,
        addon=run.addon,
        training=training.model_copy(update={"local_epochs": 1, "local_steps": 1, "select": "last", "patience": None}),
    )
    statistics = federation.server.statistics
    phases = []
    for numbers in kinds.values():
        federation.server.round = numbers[0] - 1
        federation.round()
        row = federation.history[-1]
        phases.append(
            Phase(
                rounds=len(numbers),
                clients=training.clients_in_round(algorithm.collaboration.count(count)),
                parameters=federation.server.params.numel(),
                statistics=statistics.stop - statistics.start,
                down=row["floats_down"],
                up=row["floats_up"],
                messages=row["messages"],
            )
        )
    return Forecast(tuple(phases))
