"""Tests of several methods and of few pairs, against worked examples.

Without a test, since there is no such function: Wilcoxon's test, that of Nadeau and Bengio, and the false discovery
rate of Benjamini and Hochberg.
"""

import numpy as np
import pytest

from fedshift.analysis.comparisons import critical_difference, friedman, holm, sign_flip


def test_holm_keeps_the_order_of_its_tests() -> None:
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.9, 0.8])) == pytest.approx([1, 1])


def test_sign_flip() -> None:
    assert sign_flip(np.array([1.2, 0.4, -0.3, 2.1, 0.9])) == pytest.approx((0.125, 0.0625))


@pytest.mark.parametrize(("n", "smallest"), [(1, 1), (3, 0.25), (4, 0.125), (6, 0.03125), (8, 2 / 256), (17, 2**-16)])
def test_few_differences_cannot_reach_a_small_p(n: int, smallest: float) -> None:
    """All of one sign and of the same size: the test gives its smallest p."""
    assert sign_flip(np.full(n, 0.1)) == pytest.approx((smallest, smallest))


@pytest.mark.parametrize("n", [0, 21])
def test_no_or_too_many_differences_have_no_p(n: int) -> None:
    assert np.isnan(sign_flip(np.ones(n))).all()


def test_friedman() -> None:
    sites = [[0.80, 0.85, 0.83], [0.70, 0.78, 0.74], [0.90, 0.91, 0.92], [0.65, 0.70, 0.60], [0.75, 0.82, 0.80]]
    ranked = friedman(np.array([*sites, [0.88, 0.90, 0.86]]))
    assert ranked.ranks == pytest.approx([2.6666667, 1.1666667, 2.1666667])
    assert (ranked.f, ranked.f_p) == pytest.approx((7, 0.0125586741), abs=1e-6)


def test_sites_that_agree_on_all_ranks_have_an_infinite_f() -> None:
    ranked = friedman(np.array([[0.1, 0.2, 0.3]] * 4))
    assert (ranked.f, ranked.f_p) == (np.inf, 0.0)


@pytest.mark.parametrize(
    ("methods", "sites", "wanted"), [(3, 6, 1.3531361644), (5, 5, 2.7277743709), (4, 14, 1.2535591471)]
)
def test_critical_difference(methods: int, sites: int, wanted: float) -> None:
    assert critical_difference(methods, sites) == pytest.approx(wanted, abs=1e-6)
