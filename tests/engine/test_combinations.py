"""The matrix of algorithms, BN policies and add-ons: sites that share bytes alone, against the simulation.

Each day every algorithm meets every add-on, with one of its policies, which changes from pair to pair and from day to
day; STUDIES=all (make test-all) tries all combinations. `test_coordinator` tries algorithms and policies without
add-ons longer, with validation and other settings.
"""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest
from combinations import ADDONS, ALGORITHMS, Combination, all_combinations, reason

from fedshift.core.errors import UserError
from fedshift.engine.coordinator import Coordinator
from fedshift.nn.bn_policy import POLICIES

POSSIBLE = [c for c in all_combinations() if not reason(c)]
IMPOSSIBLE = [c for c in all_combinations() if reason(c)]


def of_day(day: int) -> list[Combination]:
    """One possible combination of each algorithm with each add-on."""
    chosen = []
    for row, algorithm in enumerate(sorted({c.algorithm for c in POSSIBLE})):
        policies = [c.bn for c in POSSIBLE if (c.algorithm, c.addon) == (algorithm, None)]
        chosen += [Combination(algorithm, policies[(day + row + k) % len(policies)], a) for k, a in enumerate(ADDONS)]
    return chosen


CHOSEN = POSSIBLE if os.environ.get("STUDIES") == "all" else of_day(date.today().toordinal())


@pytest.mark.parametrize("combination", CHOSEN, ids=str)
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


def test_each_combination_has_its_day_and_each_day_all_pairs() -> None:
    days = [of_day(day) for day in range(len(POLICIES))]
    assert {c for day in days for c in day} == {*POSSIBLE}
    for day in days:
        assert {(c.algorithm, c.addon) for c in day} == {(c.algorithm, c.addon) for c in POSSIBLE}
        assert {(c.bn, c.addon) for c in day} == {(c.bn, c.addon) for c in POSSIBLE}
