"""Bootstrap intervals against closed forms."""

import math

import numpy as np
import pandas as pd
import pytest

from fedshift.analysis.statistics import DRAWS, FEWEST, bootstrap, by_cluster, interval
from fedshift.core.rng import stream


def resampled(
    values: np.ndarray, clusters: np.ndarray | None, rng: np.random.Generator, draws: int = DRAWS
) -> np.ndarray:
    """Resampled means of columns (n, k), as `effects` has them."""
    alone = np.arange(len(values)) if clusters is None else clusters
    sums, counts = by_cluster(pd.DataFrame(values), alone)
    return bootstrap(sums.to_numpy(), counts.to_numpy(), rng, draws)


def bounds(
    values: np.ndarray, clusters: np.ndarray | None, rng: np.random.Generator, draws: int = DRAWS
) -> tuple[float, float]:
    """The interval of the mean of (n,)."""
    return interval(resampled(values[:, None], clusters, rng, draws)[:, 0])


def test_independent_samples_follow_the_normal_approximation() -> None:
    x = stream("x").normal(size=2000)
    low, high = bounds(x, None, stream("draws"), draws=4000)
    half = 1.96 * x.std() / math.sqrt(x.size)
    assert low == pytest.approx(x.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(x.mean() + half, abs=0.1 * half)


def test_copies_of_a_patient_add_nothing() -> None:
    """Eight copies of each of 50 samples, known to be one patient, give the very interval of the 50."""
    x = stream("x").normal(size=50)
    copies, patient = np.repeat(x, 8), np.repeat(np.arange(50), 8)
    single = bounds(x, None, stream("draws"))
    assert bounds(copies, patient, stream("draws")) == pytest.approx(single)
    blind = np.diff(bounds(copies, None, stream("draws"), draws=8000))[0]
    assert np.diff(single)[0] / blind == pytest.approx(math.sqrt(8), rel=0.08)


def test_order_and_names_of_patients_do_not_matter_in_distribution() -> None:
    x, patient = stream("x").normal(size=90), np.arange(90) // 3
    shuffled = stream("order").permutation(90)
    names = np.array([f"patient {p}" for p in patient])[shuffled]
    one = bounds(x, patient, stream("a"), draws=20000)
    other = bounds(x[shuffled], names, stream("b"), draws=20000)
    assert other == pytest.approx(one, abs=0.02)


def test_samples_without_value_do_not_count() -> None:
    """Large patients weigh more: the estimate is a ratio of sums, whatever is drawn."""
    x = np.array([1.0, math.nan, *[1.0] * 8])
    assert bounds(x, np.arange(10) // 2, stream("d")) == (1.0, 1.0)


@pytest.mark.parametrize("patients", [1, 2, FEWEST - 1])
def test_nothing_is_said_of_a_handful_of_patients(patients: int) -> None:
    x, patient = stream("x").normal(size=40), np.arange(40) % patients
    assert all(map(math.isnan, bounds(x, patient, stream("d"))))
    low, high = bounds(x, np.arange(40) % FEWEST, stream("d"))
    assert low < x.mean() < high


def test_no_draws_no_interval() -> None:
    assert all(map(math.isnan, interval(np.array([]))))


def test_pairing_removes_what_both_share() -> None:
    noise = stream("x").normal(size=100)
    draws = resampled(np.stack([noise + 0.5, noise], 1), None, stream("d"))
    assert interval(draws[:, 0] - draws[:, 1]) == pytest.approx((0.5, 0.5))


def test_columns_share_their_resamples_whatever_the_pieces() -> None:
    x = stream("x").normal(size=(30, 1))
    draws = resampled(np.hstack([x, 2 * x]), None, stream("d"), draws=50)
    assert draws.shape == (50, 2)
    assert draws[:, 1] == pytest.approx(2 * draws[:, 0])
