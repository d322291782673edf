"""The engine follows the golden loss curve, which plain NumPy drew."""

from __future__ import annotations

import json
from typing import Any

import golden
import pytest
import torch

from fedshift import Federation
from fedshift.models.mlp import MLP

STORED = json.loads(golden.FILE.read_text(encoding="utf-8"))
NAMES = {
    "w1": "1.weight",
    "b1": "1.bias",
    "gamma": "2.weight",
    "beta": "2.bias",
    "mean": "2.running_mean",
    "var": "2.running_var",
    "w2": "4.weight",
    "b2": "4.bias",
}


def points(curves: dict[str, dict[str, list[float]]]) -> dict[tuple[str, str, int], float]:
    return {
        (split, client, number): loss
        for split, of in curves.items()
        for client, losses in of.items()
        for number, loss in enumerate(losses, 1)
    }


@pytest.mark.parametrize("bn", golden.TRAVELS)
def test_the_engine_follows_the_golden_curve(bn: str) -> None:
    model = MLP(hidden=golden.HIDDEN).build(golden.SHAPE, golden.CLASSES).double()
    state = {NAMES[k]: torch.from_numpy(v) for k, v in golden.start().items()}
    model.load_state_dict({**model.state_dict(), **state})

    def given(split: str) -> dict[str, Any]:
        return {k: tuple(map(torch.from_numpy, golden.data(k, n, split))) for k, n in golden.SPLITS[split].items()}

    federation = Federation(
        model, given("train"), validation=given("val"), bn=bn, training=STORED["training"], seed=golden.SEED
    ).run()
    got = {(r["split"], r["site"], r["round"]): r["loss"] for r in federation.history}
    assert got == pytest.approx(points(STORED["curves"][bn]), rel=1e-6, abs=0)


@pytest.mark.parametrize("bn", golden.TRAVELS)
def test_the_stored_curve_is_what_plain_numpy_draws(bn: str) -> None:
    assert STORED["how"] == golden.HOW
    assert STORED["training"] == golden.TRAINING
    assert points(golden.curves(bn)) == pytest.approx(points(STORED["curves"][bn]), rel=1e-9, abs=0)


def test_the_curve_falls() -> None:
    """A curve that shows nothing guards nothing."""
    for bn in golden.TRAVELS:
        for losses in STORED["curves"][bn]["train"].values():
            assert losses[-1] < losses[0] * 0.9
    one, two = (points(STORED["curves"][bn]) for bn in golden.TRAVELS)
    assert all(one[k] != two[k] for k in one if k[2] > 1)
