"""Methods compared: the numbers of bars and cells, by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest
from invented import made, row, tsmobn

from fedshift.figures import methods
from fedshift.figures.methods import UNION, Methods, _Line


def of_client(client: str) -> dict[str, Any]:
    return {"inference": f"source(client={client})", "shown": f"Source (client {client})"}


def test_means_and_spreads() -> None:
    rows = [row("A", "x", v, seed=s) for s, v in enumerate((0.5, 0.7))] + [row("A", "t", 0.9, "external")]
    found = methods.series(made(rows))
    assert list(found) == [_Line("A", "Source", None)]
    spots = found[_Line("A", "Source", None)]
    assert spots["internal", "x"] == pytest.approx((60, 10 * 2**0.5))
    assert spots["external", "t"][0] == 90
    assert spots["external", "t"][1] != spots["external", "t"][1], "one seed has no spread"
    assert "whiskers" in Methods().caption(made(rows))
    assert "whiskers" not in Methods().caption(made(rows[2:]))


def test_a_metric_that_is_no_percentage_keeps_its_scale() -> None:
    given = made([row("A", "x", 0.25, metric="brier"), row("A", "x", 0.5)], metric="brier")
    assert methods.series(given) == {
        _Line("A", "Source", None): {("internal", "x"): (0.25, pytest.approx(float("nan"), nan_ok=True))}
    }
    assert "Lower is better" in Methods().caption(given)


def test_sites_that_a_condition_lacks_are_left_out() -> None:
    given = made([row("A", "x", 0.5), row("A", "t", 0.4, "external"), row("B", "x", 0.6)])
    found = methods.series(given)
    assert list(found[_Line("B", "Source", None)]) == [("internal", "x")]
    Methods().draw(given)
    Methods(bars=0).draw(given)


def test_one_setting_of_a_sweep_is_shown_and_the_rest_told() -> None:
    rows = [row("A", "x", 0.5), *(row("A", "x", 0.6, **tsmobn(batch_size=b)) for b in (2, 32, 64))]
    assert [s.inference for s in methods.series(made(rows))] == ["Source", "TsmoBN [0.9, 32, 0]"]
    assert "2 further variants of inferences are left out" in Methods().caption(made(rows))


def test_union_weighs_sites_by_their_test_samples() -> None:
    """(0.8 x 30 + 0.4 x 10) / 40 = 0.7 with a's tensors, (0.2 x 30 + 0.6 x 10) / 40 = 0.3 with b's."""
    rows = [
        row("FedBN", site, value, n=n, **of_client(client))
        for client, values in {"a": (0.8, 0.4), "b": (0.2, 0.6)}.items()
        for site, value, n in zip("ab", values, (30, 10), strict=True)
    ]
    rows += [row("FedTAN", s, 0.5, shown="Source (client None)") for s in "ab"]
    rows += [row("FedBN", "t", 0.1, "external", n=1000, **of_client("a"))]
    found = methods.series(made(rows))
    assert found[_Line("FedBN", "Source", "a")][UNION][0] == pytest.approx(70)
    assert found[_Line("FedBN", "Source", "b")][UNION][0] == pytest.approx(30)
    assert [s.inference for s in found if s.condition == "FedTAN"] == ["Source"]
    assert found[_Line("FedTAN", "Source", None)][UNION][0] == pytest.approx(50)
    rows_drawn = methods._rows(found)
    assert [label.strip() for label, _ in rows_drawn] == ["FedBN", "client a", "client b", "FedTAN"]
    assert "Union" in Methods().caption(made(rows))
    assert "External sites come last, from t on." in Methods().caption(made(rows))


def test_no_union_of_a_site_that_is_lost_or_without_clients_or_of_another_metric() -> None:
    both = [row("A", s, 0.5, **of_client("a")) for s in "ab"]
    lost = [*both, row("A", "a", 0.5, seed=1, **of_client("a"))]
    spots = methods.series(made(lost))[_Line("A", "Source", "a")]
    assert spots[UNION][1] != spots[UNION][1], "the second seed has not been tested at b"
    plain = methods.series(made([row("A", s, 0.5) for s in "ab"]))
    assert UNION not in plain[_Line("A", "Source", None)]
    auc = made([r | {"metric": "auc"} for r in both], metric="auc")
    assert UNION not in methods.series(auc)[_Line("A", "Source", "a")]


@pytest.mark.parametrize(("conditions", "sites", "bars"), [(2, 3, True), (6, 8, True), (6, 9, False), (7, 2, False)])
def test_bars_as_long_as_they_can_be_read(conditions: int, sites: int, bars: bool) -> None:
    given = made([row(f"C{c}", f"x{s}", 0.5 + c / 100 + s / 1000) for c in range(conditions) for s in range(sites)])
    assert ("in bold" not in Methods().caption(given)) is bars
    text = Methods().draw(given)
    assert text.count(">50.0<") == (1 if sites * conditions <= 24 or not bars else 0)


def test_cells_are_shaded_from_worst_to_best() -> None:
    given = made([row("A", "x", 0.5), row("B", "x", 0.9), row("C", "x", 0.6), row("A", "y", 0.5)])
    found = methods.series(given)
    shades = {
        one.condition: [c and c.shade for c in methods.cells(one, found, [("internal", "x"), ("internal", "y")], given)]
        for one in found
    }
    assert shades == {"A": [0, None], "B": [1, None], "C": [pytest.approx(0.25), None]}
    assert methods.cells(_Line("B", "Source", None), found, [("internal", "y")], given) == [None]


def test_lower_is_better_turns_the_shades() -> None:
    given = made([row("A", "x", 0.1, metric="brier"), row("B", "x", 0.3, metric="brier")], metric="brier")
    found = methods.series(given)
    cells = [methods.cells(one, found, [("internal", "x")], given)[0] for one in found]
    assert [(c.text, c.shade) for c in cells if c] == [("0.10", 1), ("0.30", 0)]


def test_many_sites_go_below_one_another() -> None:
    given = made([row(c, f"site{s}", 0.5) for c in "AB" for s in range(50)])
    text = Methods().draw(given)
    assert len(re.findall(r">site\d+<", text)) == 50
    assert len(re.findall(r">A<", text)) == 4, "50 sites, 16 a block"


def test_partitions_that_complement_one_another_are_averaged() -> None:
    rows = [row("A", "x", v, held_out=h) for h, v in (("t", 0.4), ("u", 0.6))]
    rows += [row("A", h, 0.3, "external", held_out=h) for h in "tu"]
    found = methods.series(made(rows))
    assert found[_Line("A", "Source", None)]["internal", "x"][0] == pytest.approx(50)
    assert "mean over partitions and seeds" in Methods().caption(made(rows))
    rows += [row("A", "u", 0.9, "external", held_out="t")]
    assert [s.condition for s in methods.series(made(rows))] == ["A, held out t", "A, held out u"]
    assert "partitions" not in Methods().caption(made(rows))
