"""Five hospitals, and what they say about a sixth.

Without a test, since there is no such function: REML, Hartung and Knapp's interval, the Q profile, the chance to exceed
a value, and the interval from a simple mean.
"""

import numpy as np
import pytest

from fedshift.analysis.comparisons import below_the_worst, pool, prediction_interval

AUC = np.array([0.92, 0.85, 0.78, 0.88, 0.90])
SE = np.array([0.02, 0.03, 0.04, 0.025, 0.03])
LOGIT, LOGIT_SE = np.log(AUC / (1 - AUC)), SE / (AUC * (1 - AUC))


def back(bounds: tuple[float, float]) -> np.ndarray:
    """From the logit scale to that of the AUC."""
    return 1 / (1 + np.exp(-np.array(bounds)))


def test_dersimonian_and_laird() -> None:
    pooled = pool(LOGIT, LOGIT_SE)
    wanted = (1.9037445564, 0.2058708095, 0.1437557284, 5)
    assert pooled == pytest.approx(wanted, abs=1e-6)
    half = 1.959963984540054 * pooled.se
    assert back((pooled.mean - half, pooled.mean + half)) == pytest.approx([0.8176110417, 0.9094752037], abs=1e-6)


def test_a_new_site_varies_more_than_the_mean() -> None:
    assert back(prediction_interval(pool(LOGIT, LOGIT_SE))) == pytest.approx([0.6296503562, 0.9636232996], abs=1e-6)


def test_two_sites_predict_nothing() -> None:
    assert np.isnan(prediction_interval(pool(LOGIT[:2], LOGIT_SE[:2]))).all()


def test_sites_that_agree_do_not_vary() -> None:
    """The mean of two equal estimates: their variance is half of one."""
    assert pool(np.array([0.5, 0.5]), np.array([0.2, 0.2])) == pytest.approx((0.5, 0.02**0.5, 0, 2))


@pytest.mark.parametrize(("sites", "probability"), [(3, 0.25), (4, 0.2), (19, 0.05)])
def test_a_new_site_may_be_below_the_worst(sites: int, probability: float) -> None:
    assert below_the_worst(sites) == pytest.approx(probability)
