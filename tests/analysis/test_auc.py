"""Variances of AUCs against worked examples, whose numbers come from the formulas by hand.

Without a test, since there is no such function: average precision, the jackknife, the exact cluster bootstrap, and
pseudovalues of several readers.
"""

import numpy as np
import pytest

from fedshift.analysis.auc import logit_interval, paired_p, variance
from fedshift.metrics import placements

Y = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0])
S = np.array([0.9, 0.8, 0.6, 0.4, 0.7, 0.5, 0.4, 0.3, 0.1])
S2 = np.array([0.8, 0.9, 0.3, 0.5, 0.6, 0.7, 0.2, 0.4, 0.1])
CLUSTERS = np.array([1, 1, 2, 3, 1, 2, 3, 3, 4])


def test_placements_are_shares_of_the_other_class() -> None:
    first = placements(Y, S)
    assert first.area == pytest.approx(0.825)
    assert first.placement[Y == 1] == pytest.approx([1, 1, 0.8, 0.5])
    assert first.placement[Y == 0] == pytest.approx([0.5, 0.75, 0.875, 1, 1])


def test_delong() -> None:
    first, second = placements(Y, S), placements(Y, S2)
    assert variance(first, Y) == pytest.approx(0.0227083333, abs=1e-9)
    assert second.area == pytest.approx(0.75)
    assert variance(second, Y) == pytest.approx(0.035)
    paired = variance(first.minus(second), Y)
    assert paired == pytest.approx(0.0179166667, abs=1e-9)
    assert (0.0227083333 + 0.035 - paired) / 2 == pytest.approx(0.0198958333, abs=1e-9)
    assert paired_p(0.075, paired) == pytest.approx(0.5752642393, abs=1e-6)


def test_the_logit_interval_stays_within_bounds() -> None:
    assert logit_interval(0.825, 0.0227083333) == pytest.approx((0.3786847505, 0.9733078097), abs=1e-6)


@pytest.mark.parametrize("area", [0.0, 1.0])
def test_an_auc_at_a_bound_has_no_interval(area: float) -> None:
    assert np.isnan(logit_interval(area, 0.0)).all()


def test_obuchowski() -> None:
    first, second = placements(Y, S), placements(Y, S2)
    assert variance(first, Y, CLUSTERS) == pytest.approx(0.0070453125, abs=1e-9)
    assert variance(second, Y, CLUSTERS) == pytest.approx(0.0403645833, abs=1e-9)
    assert variance(first.minus(second), Y, CLUSTERS) == pytest.approx(0.0268161458, abs=1e-9)
    assert variance(first, Y, np.arange(9)) == pytest.approx(variance(first, Y))


def test_obuchowski_where_patients_have_both_classes() -> None:
    y = np.array([1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 0, 1])
    patients = np.repeat(np.arange(6), 2)
    first = placements(y, np.array([0.9, 0.6, 0.7, 0.5, 0.8, 0.75, 0.2, 0.3, 0.55, 0.65, 0.1, 0.4]))
    second = placements(y, np.array([0.8, 0.7, 0.6, 0.5, 0.9, 0.5, 0.3, 0.2, 0.45, 0.6, 0.2, 0.5]))
    assert (first.area, second.area) == pytest.approx((0.8611111111, 0.7361111111))
    assert variance(first, y, patients) == pytest.approx(0.0129801097, abs=1e-9)
    assert variance(second, y, patients) == pytest.approx(0.0222232939, abs=1e-9)
    assert variance(first, y) == pytest.approx(0.0126543210, abs=1e-9)
    assert variance(second, y) == pytest.approx(0.0239969136, abs=1e-9)
    assert variance(first.minus(second), y, patients) == pytest.approx(0.0091338735, abs=1e-9)


def test_a_class_in_one_patient_has_no_variance() -> None:
    assert np.isnan(variance(placements(Y, S), Y, np.where(Y == 1, 0, np.arange(9))))
