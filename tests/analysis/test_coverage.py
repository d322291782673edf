"""Intervals hold the truth, and verdicts are true, as often as they say: a few cells of `make coverage`.

Seeds are fixed. Bounds are binomial: what a share of 95 % (or of 2.5 % false words) leaves in 99.9 % of such draws.
"""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from fedshift.analysis import estimates

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import simulated
from simulated import Covered

sys.path.pop()
STUDIES = 120


def holds(found: Covered, least: float = 0.95) -> bool:
    """Whether as many intervals hold the truth as 999 in 1000 such draws do."""
    return found.known == found.of and found.held >= binom.ppf(0.001, found.known, least)


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "auc", "brier"])
def test_levels(metric: str) -> None:
    assert holds(simulated.levels(metric, 30, 3, STUDIES, seed=1))


@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize("patients", [5, 20])
def test_shares_near_their_end_and_losses_from_there(patients: int, images: int) -> None:
    """89 % outside, and the loss from 99 % at home, where five patients are often all right."""
    level, loss = simulated.near_the_end(patients, 3, images, STUDIES, seed=1)
    assert holds(level) and holds(loss)


@pytest.mark.parametrize(("images", "truth"), [(3, 0.5), (4, 0.6)])
def test_shares_of_five_patients_who_may_all_be_alike(images: int, truth: float) -> None:
    """Images are independent, so that the probability of every outcome is known, and how often intervals hold."""
    held = 0.0
    for right in itertools.combinations_with_replacement(range(images + 1), 5):
        counts = np.bincount(right, minlength=images + 1)
        orders = math.factorial(5) / math.prod(map(math.factorial, counts))
        x = np.concatenate([np.arange(images) < n for n in right]).astype(float)
        people = np.repeat(np.arange(5), images)
        one = estimates.single(x.mean(), (x - x.mean()) / len(x), people, ("invented", "a"), 0, "share")
        low, high = one.interval()
        if low <= truth <= high:
            held += orders * float(np.prod(binom.pmf(right, images, truth)))
    assert held >= 0.95


def test_differences() -> None:
    for found in simulated.differences("auc", 30, 3, 40, seed=1).values():
        assert holds(found)


@pytest.mark.parametrize("patients", [10, 30])
def test_a_mean_dice_whose_misses_a_sample_may_not_have(patients: int) -> None:
    assert holds(simulated.dice(patients, 3, 0.1, STUDIES, seed=1), 0.92)


def test_sensitivity_at_a_threshold_carried_from_home() -> None:
    assert holds(simulated.carried(30, 3, STUDIES, seed=1))


@pytest.mark.parametrize("metric", ["auc", "accuracy"])
def test_five_folds_by_patient(metric: str) -> None:
    assert holds(simulated.folds(metric, 40, 3, STUDIES, seed=1))


def test_words() -> None:
    """Ten points are lost of 99: it never holds up. Nothing is lost: it hardly ever loses."""
    most = binom.ppf(0.999, 30, 0.025)
    lost = simulated.trial(5, (0.99, 0.89), (3, 2), 3).said(30, seed=1)
    nothing = simulated.trial(20, (0.9, 0.9), (3, 2), 3, images=3).said(30, seed=1)
    assert 30 * lost["holds up"] <= most and 30 * nothing["loses"] <= most


def test_too_narrow_an_interval_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the floor, all five patients right are certain: the loss is covered far too seldom."""
    monkeypatch.setattr(simulated.estimates, "_sided", lambda part, *_: part)
    assert not holds(simulated.near_the_end(5, 3, 1, STUDIES, seed=1)[1])
