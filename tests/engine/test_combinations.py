"""The matrix of algorithms, BN policies and add-ons: sites that share bytes alone, against the simulation.

`make test` tries a tenth of the combinations each day. `test_coordinator` tries algorithms and policies without
add-ons longer, with validation and other settings.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from combinations import ADDONS, ALGORITHMS, Combination, all_combinations, reason
from rotation import of_day

from fedshift.core.errors import UserError
from fedshift.engine.coordinator import Coordinator
from fedshift.nn.policies import POLICIES

POSSIBLE = [c for c in all_combinations() if not reason(c)]
IMPOSSIBLE = [c for c in all_combinations() if reason(c)]


@pytest.mark.parametrize("combination", of_day(POSSIBLE, 10), ids=str)
def test_the_difference_from_the_simulation_is_0(combination: Combination, tmp_path: Path) -> None:
    sites = combination.in_memory(tmp_path)
    assert combination.difference(Coordinator.open(combination.opened(), sites).run(), sites) == 0


@pytest.mark.parametrize("combination", IMPOSSIBLE, ids=str)
def test_what_cannot_run_says_the_reason(combination: Combination, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason(combination)):
        Coordinator.open(combination.opened(), combination.in_memory(tmp_path))


def test_the_matrix_is_whole() -> None:
    assert len(POSSIBLE) + len(IMPOSSIBLE) == len(ALGORITHMS) * len(POLICIES) * len(ADDONS)
    assert len({*POSSIBLE, *IMPOSSIBLE}) == len(POSSIBLE) + len(IMPOSSIBLE)
