"""The engine follows the golden loss curves, which plain NumPy drew."""

from __future__ import annotations

import json

import golden
import numpy as np
import pytest

from fedshift.jobs.accept import GOLDEN, points, replayed, stored

STORED = json.loads(golden.FILE.read_text(encoding="utf-8"))


def test_the_library_replays_what_this_project_draws() -> None:
    assert GOLDEN.samefile(golden.FILE)


@pytest.mark.parametrize("bn", golden.TRAVELS)
def test_the_engine_follows_the_golden_curve(bn: str) -> None:
    assert replayed(bn) == pytest.approx(points(STORED["curves"][bn]), rel=1e-6, abs=0)


@pytest.mark.parametrize("bn", golden.TRAVELS)
def test_the_stored_curve_is_what_plain_numpy_draws(bn: str) -> None:
    assert STORED["how"] == golden.HOW
    assert STORED["training"] == golden.TRAINING
    assert STORED["seed"] == golden.SEED
    assert points(golden.curves(bn)) == pytest.approx(stored(bn), rel=1e-9, abs=0)


def test_the_stored_start_is_what_plain_numpy_draws() -> None:
    drawn = golden.content()
    for name, value in drawn["start"].items():
        assert np.array_equal(value, STORED["start"][name])
    for split, clients in drawn["data"].items():
        for client, (images, labels) in clients.items():
            assert np.array_equal(images, STORED["data"][split][client][0])
            assert labels == STORED["data"][split][client][1]


def test_the_curve_falls() -> None:
    """A curve that shows nothing guards nothing."""
    for bn in golden.TRAVELS:
        for losses in STORED["curves"][bn]["train"].values():
            assert losses[-1] < losses[0] * 0.9
    one, two = (points(STORED["curves"][bn]) for bn in golden.TRAVELS)
    assert all(one[k] != two[k] for k in one if k[2] > 1)
