"""Seeds by patients: four trainings that score the same six patients.

Without a test, since there is no such function: the bootstraps of seeds and of patients.
"""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from fedshift.analysis.crossed import Spread, crossed, interval, of_table, parts, summed, truncated, two_sided_p

D = np.array(
    [
        [0.10, 0.00, 0.20, -0.10, 0.05, 0.15],
        [0.00, 0.05, 0.10, -0.05, 0.00, 0.20],
        [0.20, 0.10, 0.15, 0.00, 0.10, 0.05],
        [0.05, -0.10, 0.05, 0.00, 0.10, 0.20],
    ]
)


def test_mean_squares() -> None:
    squares = [part.variance * D.size for part in of_table(D)]
    assert squares == pytest.approx([1 / 300, 0.0196666667, 0.005], abs=1e-9)
    assert [part.df for part in of_table(D)] == pytest.approx([3, 5, 15])


def test_the_crossed_interval_holds_zero_where_the_interval_over_patients_does_not() -> None:
    spread = crossed(of_table(D))
    assert spread == pytest.approx((0.00075, 3.9165473), abs=1e-6)
    assert interval(D.mean(), spread) == pytest.approx((-0.0100126533, 0.1433464866), abs=1e-6)


def test_a_negative_component_counts_as_zero() -> None:
    spread = truncated(of_table(D))
    assert spread == pytest.approx((0.0008194444, 5), abs=1e-9)
    assert spread.variance**0.5 == pytest.approx(0.0286259401, abs=1e-9)
    assert truncated(of_table(D.T)) == pytest.approx(spread)


def test_without_negative_components_nothing_is_truncated() -> None:
    table = np.array([[0.0, 1.0, 2.1], [1.0, 2.1, 3.0]])
    assert truncated(of_table(table)) == crossed(of_table(table))


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


def test_patients_of_two_sites_are_drawn_apart() -> None:
    """The mean over two sites with the same trainings: variances over patients add up, each by a quarter."""
    one, two = D, np.random.default_rng(0).normal(0.1, 0.05, (4, 9))
    both = [(table - table.mean(1, keepdims=True)) / table.shape[1] / 2 for table in (one, two)]
    values = (one.mean(1) + two.mean(1)) / 2
    found = parts(values, both)
    first, second = of_table(one), of_table(two)
    assert found.patients.variance == pytest.approx((first.patients.variance + second.patients.variance) / 4)
    assert found.residual.variance == pytest.approx((first.residual.variance + second.residual.variance) / 4)
    assert found.seeds == pytest.approx((values.var(ddof=1) / 4, 3))


def test_the_p_agrees_with_the_interval() -> None:
    """d = 1.2, .4, -.3, 2.1, .9: t = 2.146 with 4 degrees of freedom, p = .098."""
    d = np.array([1.2, 0.4, -0.3, 2.1, 0.9])
    spread = Spread(float(d.var(ddof=1) / 5), 4)
    assert two_sided_p(d.mean(), spread) == pytest.approx(0.0984246376, abs=1e-9)
    assert two_sided_p(d.mean(), spread) == pytest.approx(ttest_1samp(d, 0).pvalue)
    assert interval(d.mean(), spread) == pytest.approx((-0.2526584, 1.9726584), abs=1e-6)
    assert two_sided_p(2.776445105197793, Spread(1.0, 4)) == pytest.approx(0.05)


def test_without_spread_a_difference_is_certain() -> None:
    assert (two_sided_p(0.1, Spread(0.0, np.inf)), two_sided_p(0.0, Spread(0.0, np.inf))) == (0.0, 1.0)
