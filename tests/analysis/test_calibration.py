"""Calibration: published formulas against numbers that other programs gave (statsmodels for the regressions)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit

from fedshift.analysis import calibration as c
from fedshift.analysis.estimates import wilson

Y = np.array([0, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1, 1], dtype=float)
P = np.array([0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
HERE = ("data", "site")
ALONE, PAIRS = c.People(np.arange(12), HERE), c.People(np.arange(12) // 2, HERE)
close = pytest.approx


def test_observed_over_expected() -> None:
    """6 / 5.65, and its standard error on the log scale with each sample a cluster: by hand."""
    one = c.observed_expected(Y, P, ALONE)
    assert math.exp(one.mean) == close(1.0619469027, abs=1e-6)
    share = Y / 6 - P / 5.65
    assert one.over_patients.variance == close(12 / 11 * (share**2).sum())


def test_calibration_in_the_large() -> None:
    fit = c.logistic(Y, np.ones((12, 1)), c.log_odds(P))
    assert fit is not None
    assert fit.coefficients[0] == close(0.1862353177, abs=1e-6)
    assert math.sqrt(fit.covariance[0, 0]) == close(0.7284137, abs=1e-6)
    assert c.intercept(Y, P, PAIRS).mean == close(0.1862353177, abs=1e-6)


def test_the_slope_and_its_clustered_standard_error() -> None:
    x = np.stack([np.ones(12), c.log_odds(P)], 1)
    fit = c.logistic(Y, x)
    assert fit is not None
    assert fit.coefficients == close([0.1500806835, 0.8416891767], abs=1e-6)
    assert np.sqrt(np.diag(fit.covariance)) == close([0.70251816, 0.50801934], abs=1e-6)
    z = (fit.coefficients[1] - 1) / math.sqrt(fit.covariance[1, 1])
    assert math.erfc(abs(z) / math.sqrt(2)) == close(0.7553265869, abs=1e-6)
    errors = [math.sqrt(c._coefficient(fit, k, PAIRS).over_patients.variance) for k in (0, 1)]
    assert errors == close([0.4347397968, 0.3665602293], abs=1e-6)
    assert math.sqrt(c.slope(Y, P, PAIRS).over_patients.variance) == close(0.3665602293, abs=1e-6)


@pytest.mark.parametrize("p", [P, np.sort(P)[::-1], np.full(12, 0.3)])
def test_what_is_not_estimable(p: np.ndarray) -> None:
    apart = (np.arange(12) > 5).astype(float)
    assert np.isnan(c.slope(apart, p, ALONE).mean), "separated, in either order, or no spread of p"
    assert not np.isnan(c.intercept(apart, p, ALONE).mean)
    for y in (np.zeros(12), np.ones(12)):
        assert np.isnan(c.intercept(y, p, ALONE).mean) and np.isnan(c.slope(y, p, ALONE).mean)
    assert np.isnan(c.observed_expected(np.zeros(12), p, ALONE).mean)
    assert np.isnan(c.slope(apart, p, ALONE).interval()).all()


def test_a_class_that_touches_the_other_is_separated_too() -> None:
    y, p = np.array([0.0, 0, 1, 1]), np.array([0.1, 0.4, 0.4, 0.9])
    assert np.isnan(c.slope(y, p, c.People(np.arange(4), HERE)).mean), "the likelihood has no maximum"


def test_extreme_probabilities_are_clipped() -> None:
    assert c.log_odds(np.array([0.0, 1.0])) == close([-math.log(1e6 - 1), math.log(1e6 - 1)])
    y = np.array([0.0, 1, 0, 1, 1, 0])
    assert np.isfinite(c.slope(y, np.array([0, 1, 1, 0, 1, 0.0]), c.People(np.arange(6), HERE)).mean)


def test_brier_score_and_log_loss_of_the_same_data() -> None:
    """These are the study's metrics, and the loss that the fits minimise."""
    from fedshift.metrics._classes import Brier

    brier = Brier().value(Y.astype(int), np.stack([1 - P, P], 1))
    assert brier == close(0.1814583333, abs=1e-6)
    assert 1 - brier / (Y.mean() * (1 - Y.mean())) == close(0.2741666667, abs=1e-6)
    assert -np.log(np.where(Y == 1, P, 1 - P)).mean() == close(0.5281354993, abs=1e-6)


def test_recalibration_by_temperature_and_in_the_large() -> None:
    fit = c.logistic(Y, c.log_odds(P)[:, None])
    assert fit is not None
    assert 1 / fit.coefficients[0] == close(1.2078737059, abs=1e-6)
    warm = expit(c.log_odds(P) * fit.coefficients[0])
    assert -np.log(np.where(Y == 1, warm, 1 - warm)).mean() == close(0.5235972165, abs=1e-6)
    shifted = expit(c.log_odds(np.array([0.3])) + c.intercept(Y, P, ALONE).mean)
    assert shifted == close([0.3405009666], abs=1e-6)


def test_another_prevalence_moves_the_intercept_alone() -> None:
    """From 0.5 to 0.1: .3 becomes .0454545, .5 becomes .1 and .9 becomes .5; the slope stays 1."""
    moved = expit(c.log_odds(np.array([0.3, 0.5, 0.9])) + math.log(0.1 / 0.9))
    assert moved == close([0.0454545, 0.1, 0.5], abs=1e-6)


# ---- bins


def test_expected_calibration_errors() -> None:
    wide = c.equal_width(P, 4)
    assert np.bincount(wide).tolist() == [4, 3, 2, 3]
    assert c.calibration_error(Y, P, wide) == close(0.1125, abs=1e-6)
    alike = c.equal_count(P, 4)
    assert np.bincount(alike).tolist() == [3, 3, 3, 3]
    assert c.calibration_error(Y, P, alike) == close(0.1625, abs=1e-6)
    p = np.where(P == 0.5, 0.5 + 1e-9, P)  # the tie goes to class 1
    right, top = c.target(Y.astype(int), np.stack([1 - p, p, np.zeros(12)], 1))
    assert c.calibration_error(right, top, c.equal_width(top, 5)) == close(0.1041666667, abs=1e-6)


def test_the_points_of_the_curve() -> None:
    points = c.curve(Y, P, ALONE, c.equal_count(P, 4))
    assert [point.p for point in points.values()] == close([0.1, 0.3, 0.6, 0.8833333], abs=1e-6)
    assert [point.share.mean for point in points.values()] == close([1 / 3, 1 / 3, 1 / 3, 1])
    assert points[0].interval == close((0.0614919, 0.7923403), abs=1e-6)


def test_wilson_intervals() -> None:
    bounds = [wilson(k / 3, 3) for k in range(4)]
    expected = [(0, 0.5614970), (0.0614919, 0.7923403), (0.2076597, 0.9385081), (0.4385030, 1)]
    np.testing.assert_allclose(bounds, expected, atol=1e-6)


def test_ties_stay_in_one_bin() -> None:
    p = np.array([0.1] * 7 + [0.2, 0.3, 0.4])
    bins = c.equal_count(p, 5)
    assert len(set(bins[:7])) == 1 and bins[7] > bins[6]
    assert len(set(c.equal_count(np.full(9, 0.5), 10))) == 1


def test_a_patient_of_ten_samples_is_worth_one() -> None:
    """Twelve patients, each with ten equal samples: the interval is that of twelve samples, but for k / (k - 1)."""
    y, ten = np.repeat(Y, 10), c.People(np.repeat(np.arange(12), 10), HERE)
    (point,) = c.curve(y, np.full(120, 0.5), ten, np.zeros(120, dtype=int)).values()
    assert (point.n, point.patients) == (120, 12)
    assert point.interval == close(wilson(0.5, 11))
    (alone,) = c.curve(y, np.full(120, 0.5), c.People(np.arange(120), HERE), np.zeros(120, dtype=int)).values()
    assert alone.interval == close(wilson(0.5, 120))
    (none,) = c.curve(y * 0, np.full(120, 0.5), ten, np.zeros(120, dtype=int)).values()
    assert none.interval == close(wilson(0, 12)), "a share of 0 has no variance: patients count"


@pytest.mark.parametrize(("n", "simulated"), [(100, 0.1254), (1000, 0.0399), (10_000, 0.0127)])
def test_the_error_of_a_perfect_model(n: int, simulated: float) -> None:
    """Fifteen bins of equal width, probabilities from Beta(2, 2), and outcomes drawn with these probabilities."""
    rng = np.random.default_rng(1)
    draws = 400 if n < 10_000 else 100
    expected, errors, squares = [], [], []
    for _ in range(draws):
        p = rng.beta(2, 2, n)
        y = (rng.random(n) < p).astype(float)
        bins = c.equal_width(p, 15)
        expected.append(c.error_perfect(p, bins))
        errors.append(c.calibration_error(y, p, bins))
        squares.append(c.squared_error_debiased(y, p, bins))
    assert np.mean(expected) == close(simulated, abs=0.002)
    assert np.mean(errors) == close(simulated, abs=0.002)
    assert np.mean(squares) == close(0, abs=4 * np.std(squares) / math.sqrt(draws))


def test_the_debiased_squared_error_by_hand() -> None:
    """Two bins of two: ((0.5 - 0.2)^2 - 0.25 / 1) / 2 + ((1 - 0.6)^2 - 0) / 2."""
    y, p, bins = np.array([0.0, 1, 1, 1]), np.array([0.1, 0.3, 0.5, 0.7]), np.array([0, 0, 1, 1])
    assert c.squared_error_debiased(y, p, bins) == close((0.09 - 0.25 + 0.16) / 2)
