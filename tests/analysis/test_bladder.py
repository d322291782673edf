"""The published table of the bladder study: as printed, and each value beside one of our conditions."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from fedshift import study
from fedshift.analysis import published_words
from fedshift.analysis.published_words import Words

STUDIES = Path(__file__).parents[2] / "config" / "studies"
TABLE = STUDIES / "bladder-table4.csv"
CENTRES = [f"Test Center{k}" for k in range(1, 5)]
HALF = 0.0005
"""Half of the last digit: each of the four centres and their average is rounded."""


def test_the_printed_averages_are_the_means_of_the_four_centres() -> None:
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for row in published_words.rows(TABLE):
        values[row.method][row.site] = row.value
    assert len(values) == 9
    for sites in values.values():
        assert list(sites) == [*CENTRES, "Test Average"]
        mean = sum(sites[centre] for centre in CENTRES) / len(CENTRES)
        assert sites["Test Average"] == pytest.approx(mean, abs=2 * HALF)


def test_each_value_of_a_centre_has_one_of_our_conditions() -> None:
    plan = study.load(STUDIES / "bladder-table4.yaml", "paper")
    targets = Words(plan).of(plan.published[0])
    cells = [target.cell for target in targets if target.cell]
    assert len(cells) == 9 * 4
    assert len({cell.key("dice") for cell in cells}) == 9 * 4
    assert {cell.site for cell in cells} == {"center1", "center2", "center3", "center4"}
