"""All algorithms with each BN policy and each add-on, on a small network and up to three small sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from in_memory import InMemory, difference
from toy import SIZES, clients, network

from fedshift import Federation
from fedshift.core import registry
from fedshift.engine.coordinator import Coordinator
from fedshift.engine.specification import Specification
from fedshift.nn.policies import POLICIES

ALGORITHMS = registry.discover("algorithm")
ADDONS = (None, *sorted(registry.discover("addon")))
JOINT = ("fedavg_alg2", "fedtan", "fedtan2")
"""Algorithms whose clients take the first step of a round together."""
IN_TURN = ("amplitude", "fedfa", "harmofl", "jigen", "mixstyle", "mixup")
"""Add-ons that draw numbers for each image, or write into the network: in the simulation's joint step, a client does so
after the clients before it, and at real sites each for itself."""
TRAINING: dict[str, Any] = {"rounds": 2, "batch_size": 6, "lr": 0.05, "select": "last"}


class Combination(NamedTuple):
    """An algorithm, a BN policy and an add-on, or none.

    A joint step is tried without dropout, whose masks are drawn in turn too.
    """

    algorithm: str
    bn: str
    addon: str | None = None

    def __str__(self) -> str:
        return "-".join(filter(None, self))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the simulation and of both sides of a federation."""
        algorithm: Any = self.algorithm
        if algorithm == "fedtan2":
            algorithm = {"name": algorithm, "exchange_rounds": 1}
        return {"algorithm": algorithm, "bn": self.bn, "addon": self.addon, "training": TRAINING, "seed": 3}

    @property
    def in_turn(self) -> bool:
        """Whether clients of the simulation depend on the clients before them, which no real site can."""
        return self.algorithm in JOINT and self.addon in IN_TURN

    def clients(self) -> dict[str, Any]:
        """The sites: three, or one where a second would depend on the first."""
        return clients({"a": SIZES["a"]} if self.in_turn else SIZES)

    def network(self) -> Any:
        """The network before the first round."""
        return network(dropout=0.0 if self.algorithm in JOINT else 0.2)

    def opened(self) -> Specification:
        """What both sides of a federation agree on."""
        return Specification.open(self.network(), **self.settings)

    def simulated(self) -> Federation:
        """The simulation after its last round."""
        return Federation(self.network(), self.clients(), **self.settings).run()

    def in_memory(self, folder: Path) -> InMemory:
        """A transport to sites in this process; it also reads what sites elsewhere have left in folder/SITE."""
        return InMemory(self.opened, self.clients(), folder, kept=True)

    def difference(self, coordinator: Coordinator, sites: InMemory) -> float:
        """The largest difference of any tensor, at the server or at a site, from the simulation."""
        assert not coordinator.missing
        return difference(self.simulated(), sites, coordinator)


def all_combinations() -> list[Combination]:
    """Every combination that can be written into a study."""
    return [Combination(name, bn, addon) for name in sorted(ALGORITHMS) for bn in POLICIES for addon in ADDONS]


def reason(combination: Combination) -> str:
    """Why real sites cannot train a combination, as the beginning of the error; empty if they can."""
    algorithm = ALGORITHMS[combination.algorithm]
    if combination.bn not in algorithm.policies:
        return f"{combination.bn!r} has no meaning with {combination.algorithm}"
    if combination.algorithm == "pooled":
        return "pooled needs the images of all sites in one place"
    return ""
