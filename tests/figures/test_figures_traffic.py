"""Convergence by traffic: the values drawn, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from invented import made, moment

from fedshift.core import registry
from fedshift.figures import Results, convergence_by_traffic

FIGURE = registry.build("figure", "convergence_by_traffic")


def history(condition: str, values: list[float], floats: int, clients: str = "xy", **columns: Any) -> list[Any]:
    """Rounds in which each client receives and sends so many floats, and validates with this accuracy."""
    moved = {"floats_down": floats, "floats_up": floats, "condition": condition} | columns
    return [
        moment(number, site, split, 1.0, value, **moved | ({} if split == "train" else dict.fromkeys(FLOATS, 0)))
        for number, value in enumerate(values, 1)
        for site in clients
        for split in ("train", "val")
    ]


FLOATS = ("floats_down", "floats_up")


def test_a_method_with_twice_the_traffic_reaches_the_same_value_with_twice_the_bytes() -> None:
    """Two clients, 1000 floats of 4 bytes each way: 16,000 bytes a round; SCAFFOLD sends twice as many."""
    rounds = history("FedAvg", [0.5, 0.7], 1000) + history("SCAFFOLD", [0.5, 0.7], 2000)
    lines = convergence_by_traffic.curves(made(rounds=rounds))
    assert lines["FedAvg"]["bytes"].tolist() == [16_000, 32_000]
    assert lines["SCAFFOLD"]["bytes"].tolist() == [32_000, 64_000]
    assert all(line["value"].tolist() == pytest.approx([50, 70]) for line in lines.values())


def test_means_are_over_clients_and_runs_until_the_first_run_ends() -> None:
    rounds = history("FedAvg", [0.2, 0.4], 1000, "x") + history("FedAvg", [0.4, 0.6], 1000, "y")
    rounds += history("FedAvg", [0.9], 3000, seed=1)
    line = convergence_by_traffic.curves(made(rounds=rounds))["FedAvg"]
    assert list(line.index) == [1]
    assert line.loc[1].to_dict() == pytest.approx({"value": 60, "bytes": 32_000}), "(30 + 90) / 2; (16 + 48) / 2 kB"


def test_rounds_without_validation_are_left_out_and_their_traffic_counts() -> None:
    rounds = [row for row in history("FedAvg", [0.5, 0.6], 1000) if (row["round"], row["split"]) != (1, "val")]
    line = convergence_by_traffic.curves(made(rounds=rounds))["FedAvg"]
    assert list(line.index) == [2]
    assert line["bytes"].tolist() == [32_000]


def test_controls_that_send_nothing_are_on_the_left_alone() -> None:
    given = made(rounds=history("Local", [0.5, 0.6], 0) + history("FedAvg", [0.5, 0.7], 10))
    assert "conditions that exchange nothing are left out" in FIGURE.caption(given)
    assert "exchange nothing" not in FIGURE.caption(made(rounds=history("FedAvg", [0.5], 10)))
    assert "Nothing to draw" not in FIGURE.draw(given)


def selected(by: list[str | None]) -> Results:
    rounds = [row | {"score": 0.25 if row["split"] == "val" else np.nan} for row in history("FedAvg", [0.5], 10)]
    return made(rounds=rounds, settings={str(n): {"training.select_by": one} for n, one in enumerate(by)})


@pytest.mark.parametrize(
    ("by", "title", "value"),
    [
        (["balanced_accuracy"], "Validation balanced accuracy (%)", 25),
        (["auc", "auc"], "Validation AUC", 0.25),
        (["accuracy"], "Validation accuracy (%)", 50),
        (["auc", "accuracy"], "Validation accuracy (%)", 50),
        (["loss"], "Validation accuracy (%)", 50),
        ([None], "Validation accuracy (%)", 50),
    ],
)
def test_the_value_is_the_metric_that_all_runs_select_by(by: list[str | None], title: str, value: float) -> None:
    given = selected(by)
    assert convergence_by_traffic.validated_by(given).title == title
    assert convergence_by_traffic.curves(given)["FedAvg"]["value"].tolist() == pytest.approx([value])


def test_traffic_that_is_not_known_leaves_the_curve_by_round() -> None:
    given = made(rounds=history("FedAvg", [0.5, 0.6], 10))
    del given.rounds["floats_up"], given.rounds["floats_down"]
    line = convergence_by_traffic.curves(given)["FedAvg"]
    assert line["value"].tolist() == pytest.approx([50, 60])
    assert line["bytes"].isna().all()
    assert "Nothing to draw" not in FIGURE.draw(given)
