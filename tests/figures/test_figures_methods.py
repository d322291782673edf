"""Methods compared: the numbers of bars and cells, by hand."""

from __future__ import annotations

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
    assert "Nothing to draw" not in Methods().draw(given)
    table = Methods(bars=0).table(given)
    assert table and table.rows == [("A", "Source", "50.0", "40.0"), ("B", "Source", "60.0", "")]


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
    table = Methods().table(made(rows))
    assert table and table.header == ("Condition", "Tensors of", "a", "b", "union", "t")
    assert table.rows == [
        ("FedBN", "a", "80.0", "40.0", "70.0", "10.0"),
        ("FedBN", "b", "20.0", "60.0", "30.0", ""),
        ("FedTAN", "", "50.0", "50.0", "50.0", ""),
    ]
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
    text, table = Methods().draw(given), Methods().table(given)
    assert text.count(">50.0<") == (1 if sites * conditions <= 24 and bars else 0)
    assert ("as a table" in text) is (table is not None) is not bars
    if table:
        assert [row.count("50.0") for row in table.rows] == [1] + [0] * (conditions - 1)


def test_the_best_number_of_each_place_is_told_where_any_differ() -> None:
    rows = [row("A", "x", 0.5), row("B", "x", 0.9), row("C", "x", 0.9), row("A", "y", 0.5), row("C", "y", 0.5)]
    table = Methods(bars=0).table(made(rows))
    assert table and table.header == ("Condition", "Inference", "x", "y")
    assert (table.heads, table.best) == (2, {(1, 2), (2, 2)})


def test_the_best_is_the_lowest_where_lower_is_better() -> None:
    given = made([row("A", "x", 0.1, metric="brier"), row("B", "x", 0.3, metric="brier")], metric="brier")
    table = Methods(bars=0).table(given)
    assert table and [row[-1] for row in table.rows] == ["0.10", "0.30"]
    assert table.best == {(0, 2)}


def test_a_table_has_all_sites_and_the_spread_of_several_seeds() -> None:
    given = made([row(c, f"site{s}", 0.5 + k / 10, seed=k) for c in "AB" for s in range(50) for k in (0, 1)])
    table = Methods().table(given)
    assert table and len(table.header) == 2 + 50
    assert table.rows[0][2:] == ("55.0 ± 7.1",) * 50, "0.1 / sqrt(2)"


def test_partitions_that_complement_one_another_are_averaged() -> None:
    rows = [row("A", "x", v, held_out=h) for h, v in (("t", 0.4), ("u", 0.6))]
    rows += [row("A", h, 0.3, "external", held_out=h) for h in "tu"]
    found = methods.series(made(rows))
    assert found[_Line("A", "Source", None)]["internal", "x"][0] == pytest.approx(50)
    assert "mean over partitions and seeds" in Methods().caption(made(rows))
    rows += [row("A", "u", 0.9, "external", held_out="t")]
    assert [s.condition for s in methods.series(made(rows))] == ["A, held out t", "A, held out u"]
    assert "partitions" not in Methods().caption(made(rows))
