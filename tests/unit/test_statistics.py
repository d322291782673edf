"""Bootstrap intervals against closed forms."""

import math

import numpy as np
import pytest

from fedshift.report.statistics import FEWEST, bootstrap, clustered_interval, interval, mean_std, paired_interval
from fedshift.rng import stream


def test_mean_and_std_over_seeds() -> None:
    assert mean_std([1.0, 2.0, 6.0]) == pytest.approx((3.0, math.sqrt(7.0)))
    assert mean_std([2.0])[0] == 2.0
    assert math.isnan(mean_std([2.0])[1])
    assert all(map(math.isnan, mean_std([1.0, math.nan])))


def test_independent_samples_follow_the_normal_approximation() -> None:
    x = stream("x").normal(size=(1, 2000))
    low, high = clustered_interval(x, None, stream("draws"), draws=4000)
    half = 1.96 * x.std() / math.sqrt(x.size)
    assert low == pytest.approx(x.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(x.mean() + half, abs=0.1 * half)


def test_copies_of_a_patient_add_nothing() -> None:
    """Eight copies of each of 50 samples, known to be one patient, give the very interval of the 50."""
    x = stream("x").normal(size=(1, 50))
    copies, patient = np.repeat(x, 8, axis=1), np.repeat(np.arange(50), 8)
    single = clustered_interval(x, None, stream("draws"))
    assert clustered_interval(copies, patient, stream("draws")) == pytest.approx(single)
    blind = np.diff(clustered_interval(copies, None, stream("draws"), draws=8000))[0]
    assert np.diff(single)[0] / blind == pytest.approx(math.sqrt(8), rel=0.08)


def test_order_and_names_of_patients_do_not_matter_in_distribution() -> None:
    x, patient = stream("x").normal(size=(1, 90)), np.arange(90) // 3
    shuffled = stream("order").permutation(90)
    names = np.array([f"patient {p}" for p in patient])[shuffled]
    one = clustered_interval(x, patient, stream("a"), draws=20000)
    other = clustered_interval(x[:, shuffled], names, stream("b"), draws=20000)
    assert other == pytest.approx(one, abs=0.02)


def test_seeds_are_averaged_before_patients_are_drawn() -> None:
    x = stream("x").normal(size=(3, 40))
    assert clustered_interval(x, None, stream("d")) == clustered_interval(x.mean(0)[None], None, stream("d"))


def test_samples_without_value_do_not_count() -> None:
    """Large patients weigh more: the estimate is a ratio of sums, whatever is drawn."""
    x = np.array([[1.0, math.nan, *[1.0] * 8]])
    assert clustered_interval(x, np.arange(10) // 2, stream("d")) == (1.0, 1.0)


@pytest.mark.parametrize("patients", [1, 2, FEWEST - 1])
def test_nothing_is_said_of_a_handful_of_patients(patients: int) -> None:
    x, patient = stream("x").normal(size=(1, 40)), np.arange(40) % patients
    assert all(map(math.isnan, clustered_interval(x, patient, stream("d"))))
    low, high = clustered_interval(x, np.arange(40) % FEWEST, stream("d"))
    assert low < x.mean() < high


def test_no_draws_no_interval() -> None:
    assert all(map(math.isnan, interval(np.array([]))))


def test_pairing_removes_what_both_share() -> None:
    noise = stream("x").normal(size=(1, 100))
    low, high = paired_interval(noise + 0.5, noise, None, stream("d"))
    assert (low, high) == pytest.approx((0.5, 0.5))


def test_columns_share_their_resamples_whatever_the_pieces() -> None:
    x = stream("x").normal(size=(30, 1))
    draws = bootstrap(np.hstack([x, 2 * x]), None, stream("d"), draws=50)
    assert draws.shape == (50, 2)
    assert draws[:, 1] == pytest.approx(2 * draws[:, 0])
