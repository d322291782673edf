"""Norms of every type, FixBN, standardised weights and parts of a network: sites that share bytes alone, two rounds.

Each is compared with the simulation, whose tensors at the server and at the sites must be the same bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_memory import InMemory, difference
from normed import normed

from fedshift import Federation
from fedshift.contract.fixtures import clients
from fedshift.engine.coordinator import Coordinator
from fedshift.engine.specification import Specification
from fedshift.nn.policies import POLICIES

SETTINGS = {"rounds": 2, "batch_size": 6, "lr": 0.02, "select": "last"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{algorithm}-{norm}-{bn}": (norm, {"algorithm": algorithm, "bn": bn, "norms": "all"})
        for algorithm in ("fedavg", "scaffold", "ditto")
        for norm in ("group", "layer", "instance", "mixture")
        for bn in POLICIES
    },
    **{f"gperxan-{bn}": ("mixture", {"algorithm": "gperxan", "bn": bn}) for bn in POLICIES},
    **{
        f"fixbn-{bn}": ("batch", {"algorithm": {"name": "fixbn", "freeze_after": 1}, "bn": bn})
        for bn in ("aggregated", "local")
    },
    "weight": ("weight", {"training": {"clip_adaptive": 0.1}}),
    "probe": ("batch", {"training": {"train": "head"}}),
    "tuned": ("batch", {"training": {"train": ["norm", "head"]}, "bn": "local"}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_difference_from_the_simulation_is_0(case: str, tmp_path: Path) -> None:
    norm, settings = CASES[case]
    settings = {**settings, "training": SETTINGS | settings.get("training", {}), "seed": 3}
    sites = InMemory(lambda: Specification.open(normed(norm), **settings), clients(), tmp_path, kept=True)
    coordinator = Coordinator.open(sites.opened(), sites).run()
    assert not coordinator.missing
    simulated = Federation(normed(norm), clients(), **settings).run()
    assert difference(simulated, sites, coordinator) == 0
