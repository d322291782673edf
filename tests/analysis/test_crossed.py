"""Seeds by patients: four trainings that score the same six patients.

Without a test, since there is no such function: the bootstraps of seeds and of patients.
"""

import numpy as np
import pytest

from fedshift.analysis.crossed import Spread, crossed, interval, mean_squares, summed, truncated

D = np.array(
    [
        [0.10, 0.00, 0.20, -0.10, 0.05, 0.15],
        [0.00, 0.05, 0.10, -0.05, 0.00, 0.20],
        [0.20, 0.10, 0.15, 0.00, 0.10, 0.05],
        [0.05, -0.10, 0.05, 0.00, 0.10, 0.20],
    ]
)


def test_mean_squares() -> None:
    assert mean_squares(D) == pytest.approx((1 / 300, 0.0196666667, 0.005), abs=1e-9)


def test_the_crossed_interval_holds_zero_where_the_interval_over_patients_does_not() -> None:
    spread = crossed(D)
    assert spread == pytest.approx((0.00075, 3.9165473), abs=1e-6)
    assert interval(D.mean(), spread) == pytest.approx((-0.0100126533, 0.1433464866), abs=1e-6)


def test_a_negative_component_counts_as_zero() -> None:
    assert truncated(D) == pytest.approx(0.0008194444, abs=1e-9)
    assert truncated(D.T) == pytest.approx(truncated(D))


def test_without_negative_components_nothing_is_truncated() -> None:
    table = np.array([[0.0, 1.0, 2.1], [1.0, 2.1, 3.0]])
    assert truncated(table) == pytest.approx(crossed(table).variance)


def test_the_safe_rule_adds_both_variances() -> None:
    """In numbers of the table it is (MS_patients + MS_seeds) / (S P)."""
    patients, seeds = D.mean(0).var(ddof=1) / 6, D.mean(1).var(ddof=1)
    assert patients**0.5 == pytest.approx(0.0286259402, abs=1e-9)
    assert (seeds / 4) ** 0.5 == pytest.approx(0.0117851130, abs=1e-9)
    spread = summed(patients, 6, seeds, 4)
    assert spread.variance == pytest.approx(0.0009583333, abs=1e-9)
    assert spread.variance**0.5 == pytest.approx(0.0309569594, abs=1e-9)
    a, b = patients, seeds / 4
    assert spread.df == pytest.approx((a + b) ** 2 / (a**2 / 5 + b**2 / 3))


def test_trainings_and_patients_that_all_agree_leave_no_width() -> None:
    assert interval(0.9, summed(0.0, 6, 0.0, 3)) == (0.9, 0.9)


def test_two_trainings_alone_have_one_degree_of_freedom() -> None:
    low, high = interval(0.0, summed(0.0, 20, 2.0, 2))
    assert (low, high) == pytest.approx((-12.7062047362, 12.7062047362))
    assert interval(0.0, Spread(1.0, np.inf)) == pytest.approx((-1.959963985, 1.959963985))
