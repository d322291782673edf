"""Which conditions a critical-difference diagram connects."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

import pytest
from invented import made, row

from fedshift.core import registry
from fedshift.figures import Ranking
from fedshift.figures.critical_difference import cliques

NAMES = ("FedAvg", "<b>Moon</b>", "FedProx", "Scaffold")
RANKED = Ranking(NAMES, "external", 6, (2.0, 1.0, 3.2, 3.8), critical=1.3, p=0.01)


@pytest.mark.parametrize(
    ("ranks", "critical", "p", "expected"),
    [
        ((2.0, 1.0, 3.2, 3.8), 1.3, 0.01, [(0, 1), (1, 2), (2, 3)]),
        ((2.0, 1.0, 3.2, 3.8), 1.9, 0.01, [(0, 1), (1, 3)]),
        ((2.0, 1.0, 3.2, 3.8), 0.5, 0.01, []),
        ((1.0, 2.0, 3.0), 1.0, 0.01, []),
        ((2.0, 1.0, 3.2, 3.8), 0.5, 0.05, [(0, 3)]),
    ],
)
def test_what_is_connected(
    ranks: tuple[float, ...], critical: float, p: float, expected: list[tuple[int, int]]
) -> None:
    """Runs of mean ranks within less than the critical difference; none inside another; all if ranks may be alike."""
    assert cliques(Ranking(NAMES[: len(ranks)], "external", 6, ranks, critical, p)) == expected


def drawn(ranking: Ranking) -> str:
    results = dataclasses.replace(made([row("FedAvg", "east", 0.8)]), ranking=ranking)
    text: str = registry.build("figure", "critical_difference").draw(results)
    ElementTree.fromstring(text)
    return text


def test_names_stand_with_their_ranks() -> None:
    text = drawn(RANKED)
    assert "FedAvg (2.00)" in text and "&lt;b&gt;Moon&lt;/b&gt; (1.00)" in text
    assert "critical difference 1.30" in text
    assert "do not differ by more than chance" not in text
    assert "These are not quite" not in text


def test_doubts_stand_in_the_caption() -> None:
    text = drawn(RANKED._replace(p=0.3, related=True))
    assert (
        "do not differ by more than chance (Iman and Davenport, p = 0.30), so no two conditions are told apart" in text
    )
    assert "each was held out from another training, and the trainings share sites" in text
