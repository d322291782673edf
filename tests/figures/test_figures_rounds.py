"""Loss by site and test curves: the values drawn, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from invented import made, moment

from fedshift.figures import _series, convergence, loss_by_site, test_curves

LossBySite, TestCurves = loss_by_site.LossBySite, test_curves.TestCurves
TestCurves.__test__ = False  # type: ignore[attr-defined]


def values(found, panel: str, condition: str) -> list[list[float]]:  # type: ignore[no-untyped-def]
    return found[panel][condition].to_numpy().tolist()


def test_loss_of_each_client_and_their_mean() -> None:
    rounds = [
        moment(r, site, "train", loss / r, seed=seed)
        for r in (1, 2)
        for seed, losses in enumerate(({"x": 2.0, "y": 4.0}, {"x": 6.0, "y": 8.0}))
        for site, loss in losses.items()
    ]
    rounds += [moment(1, "x", "val", 100.0)]
    found = loss_by_site.losses(made(rounds=rounds), 24)
    assert list(found) == ["x", "y", loss_by_site.MEAN]
    assert values(found, "x", "FedAvg") == [[2, 6], [1, 3]], "a row a round, a column a seed"
    assert values(found, loss_by_site.MEAN, "FedAvg") == [[3, 7], [1.5, 3.5]]


def test_pooled_data_are_in_the_mean_alone() -> None:
    rounds = [moment(1, "x", "train", 2.0), moment(1, "pooled", "train", 5.0, condition="Centralised")]
    found = loss_by_site.losses(made(rounds=rounds), 24)
    assert list(found["x"]) == ["FedAvg"]
    assert values(found, loss_by_site.MEAN, "Centralised") == [[5]]


def test_one_client_needs_no_mean() -> None:
    assert list(loss_by_site.losses(made(rounds=[moment(1, "x", "train", 2.0)]), 24)) == ["x"]


def test_clients_beyond_the_most_are_told_and_count_in_the_mean() -> None:
    given = made(rounds=[moment(1, f"x{k}", "train", float(k)) for k in range(4)])
    found = loss_by_site.losses(given, 2)
    assert list(found) == ["x0", "x1", loss_by_site.MEAN]
    assert values(found, loss_by_site.MEAN, "FedAvg") == [[1.5]]
    assert "2 further clients have no panel" in LossBySite(most=2).caption(given)


@pytest.mark.parametrize(("least", "wide"), [(0.011, False), (0.009, True), (0.0, False)])
def test_a_logarithmic_scale_beyond_two_decades(least: float, wide: bool) -> None:
    given = made(rounds=[moment(1, "x", "train", 1.0), moment(2, "x", "train", least)])
    assert loss_by_site.is_wide(loss_by_site.losses(given, 24)) is wide
    assert ("logarithmic" in LossBySite().caption(given)) is wide


def test_a_band_is_told_where_there_are_several_seeds() -> None:
    one, two = ([moment(1, "x", "train", 1.0, seed=s) for s in range(n)] for n in (1, 2))
    assert "band" not in LossBySite().caption(made(rounds=one))
    assert "band" in LossBySite().caption(made(rounds=two))
    assert "band" not in LossBySite(bands=0).caption(made(rounds=two))


def test_partitions_have_lines_of_their_own() -> None:
    rounds = [moment(1, "x", "train", k, held_out=h) for k, h in ((1.0, "iid"), (2.0, "noniid"))]
    found = loss_by_site.losses(made(rounds=rounds), 24)
    assert {c: runs.to_numpy().tolist() for c, runs in found["x"].items()} == {
        "FedAvg, held out iid": [[1]],
        "FedAvg, held out noniid": [[2]],
    }


def test_curves_against_rounds_and_bytes() -> None:
    """Two clients, 1000 floats each way a round: 16,000 bytes a round."""
    rounds = [moment(r, site, "train", 1.0, seed=s) for r in (1, 2, 3, 4) for site in "xy" for s in (0, 1)]
    tests = {(2, "t", 0): 0.1, (2, "u", 0): 0.3, (4, "t", 0): 0.5, (4, "u", 0): 0.7, (2, "t", 1): 0.4, (2, "u", 1): 0.6}
    rounds += [moment(r, site, "test", 10 * a, a, seed=s) for (r, site, s), a in tests.items()]
    line = test_curves.curves(made(rounds=rounds))["", "FedAvg"]
    assert list(line.index) == [2], "the second run has not come to round 4"
    assert line.loc[2].to_dict() == pytest.approx({"accuracy": 35, "loss": 3.5, "bytes": 32_000})
    line = test_curves.curves(made(rounds=[r for r in rounds if r["seed"] == 0]))["", "FedAvg"]
    assert line["accuracy"].tolist() == pytest.approx([20, 60])
    assert line["bytes"].tolist() == [32_000, 64_000]


def test_what_moves_nothing_is_left_out_on_the_right_and_told() -> None:
    rounds = [moment(1, "pooled", "train", 1.0, floats_down=0, floats_up=0), moment(1, "t", "test", 1.0)]
    given = made(rounds=rounds)
    assert test_curves.curves(given)["", "FedAvg"]["bytes"].tolist() == [0]
    assert "exchange nothing" in TestCurves().caption(given)
    moving = made(rounds=[moment(1, "x", "train", 1.0), moment(1, "t", "test", 1.0)])
    assert "exchange nothing" not in TestCurves().caption(moving)


def test_traffic_that_is_not_known_leaves_the_curve_by_round() -> None:
    given = made(rounds=[moment(1, "x", "train", 1.0), moment(1, "t", "test", 1.0)])
    del given.rounds["floats_up"], given.rounds["floats_down"]
    line = test_curves.curves(given)["", "FedAvg"]
    assert line["accuracy"].tolist() == [50]
    assert np.isnan(line["bytes"]).all()


def test_partitions_have_panels_of_their_own() -> None:
    rounds = [moment(1, "x", "train", 1.0, held_out=h) for h in ("iid", "noniid")]
    rounds += [moment(1, "t", "test", 1.0, a, held_out=h) for h, a in (("iid", 0.9), ("noniid", 0.4))]
    found = test_curves.curves(made(rounds=rounds))
    assert {p: curve["accuracy"].tolist() for (p, _), curve in found.items()} == {"iid": [90], "noniid": [40]}
    assert "noniid" in TestCurves().draw(made(rounds=rounds))


@pytest.mark.parametrize(("most", "unit"), [(0, "kB"), (999e3, "kB"), (1e6, "MB"), (5e9, "GB"), (2e12, "TB")])
def test_units(most: float, unit: str) -> None:
    assert _series.unit_of(most) == ({"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit], unit)


@pytest.mark.parametrize(
    ("by", "title"),
    [("balanced_accuracy", "Validation balanced accuracy (%)"), ("accuracy", "Validation accuracy (%)")],
)
def test_convergence_shows_the_metric_that_chose_the_round(by: str, title: str) -> None:
    rounds = [moment(n, "x", "val", 1.0) | {"score": 0.25} for n in (1, 2)]
    drawn = convergence.Convergence().draw(made(rounds=rounds, settings={"run": {"training.select_by": by}}))
    assert f">{title}<" in drawn


@pytest.mark.parametrize(("second", "lines"), [("x", 2), ("y", 1)])
def test_convergence_takes_no_mean_over_partitions_of_the_same_clients(second: str, lines: int) -> None:
    """Leaving out one site after the other is one condition; iid and non-iid data are two."""
    rounds = [
        moment(n, site, "train", loss, held_out=held)
        for n in (1, 2)
        for site, loss, held in (("x", 1.0, "iid"), (second, 2.0, "noniid"))
    ]
    drawn = convergence.Convergence().draw(made(rounds=rounds))
    assert drawn.count(">FedAvg") == lines
    assert (">FedAvg, held out iid<" in drawn) is (lines == 2)
