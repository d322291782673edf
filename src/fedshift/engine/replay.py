"""The simulation of rounds in which some answers of sites were missing, as a `Coordinator` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .client import SamplesBySite
from .federation import Federation
from .local_round import LocalRound
from .selection import Selection
from .server_round import ServerRound, assignment
from .specification import Specification


class Replay(Federation):
    """A federation in one process that leaves out sites where a run by messages had no answer of them.

    Parameters
    ----------
    missing : as `Coordinator.missing` lists them; all other parameters are those of `Federation`
    """

    def __init__(
        self,
        specification: Specification,
        clients: SamplesBySite,
        *,
        missing: Iterable[Mapping[str, Any]],
        **settings: Any,
    ) -> None:
        self._missing = {(entry["kind"], entry["round"], entry["site"]) for entry in missing}
        super().__init__(specification, clients, **settings)
        self.selection = _AnsweredSelection(self)

    def answered(self, kind: str, number: int, positions: Iterable[int]) -> list[int]:
        """Return the positions of those clients whose answer to a kind of message in a round was not missing."""
        return [k for k in positions if (kind, number, self.clients[k].name) not in self._missing]

    def _train(self, should_stop: Callable[[], bool]) -> None:
        server_round = self._begin_round()
        self._go_on("first_step", server_round)
        local = LocalRound(self.trainer, server_round, self.clients, self.ranks)
        local.first_steps()
        # The coordinator notices after the joint step who does not train: the means of the step have all sites.
        self._go_on("train", server_round)
        still = [n for n, k in enumerate(local.positions) if k in server_round.participants]
        local.positions = [local.positions[n] for n in still]
        local.clients = [local.clients[n] for n in still]
        local.batches = [local.batches[n] for n in still]
        local.first = [local.first[n] for n in still]
        records = local.run(should_stop)
        server_round.close(self.trainer.variances, server_round.mean)
        self.rounds.log("train", [records], self.server.logged)

    def _go_on(self, kind: str, server_round: ServerRound) -> None:
        server_round.go_on_with(self.answered(kind, server_round.number, server_round.participants))

    def _finish(self, should_stop: Callable[[], bool]) -> None:
        broadcast = self.algorithm.broadcast(self.server)
        for k in self.answered("finish", self.server.round + 1, range(len(self.clients))):
            self.trainer.finish(self.clients[k], assignment(self.rounds, k, broadcast), should_stop)


class _AnsweredSelection(Selection):
    """Validation at the sites whose answers were not missing."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(replay.rounds, replay.clients, replay.trainer, replay.ranks, {}, {})
        self.replay = replay

    @property
    def _here(self) -> Sequence[int]:  # type: ignore[override]
        return self.replay.answered("evaluate", self.rounds.round, range(len(self.clients)))
