"""Estimates and their intervals against worked examples, whose numbers come from the formulas by hand.

Without a test, since there is no such function: the jackknife, bootstraps, and pseudovalues of several readers.
"""

import math

import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from fedshift.analysis import estimates
from fedshift.analysis.estimates import FEWEST, Estimate, Spread, bounds, components, minus, single, two_sided_p
from fedshift.core.rng import stream
from fedshift.metrics import placements
from fedshift.metrics.accuracy import Accuracy
from fedshift.metrics.auc import AUC

HERE = ("data", "site")


def average(x: np.ndarray, people: np.ndarray, group: tuple[str, str] = HERE, seed: int | None = None) -> Estimate:
    """The mean of samples (n,) of these patients."""
    return single(x.mean(), (x - x.mean()) / len(x), people, group, seed)


# ---- the area under a ROC curve

Y = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0])
S = np.array([0.9, 0.8, 0.6, 0.4, 0.7, 0.5, 0.4, 0.3, 0.1])
S2 = np.array([0.8, 0.9, 0.3, 0.5, 0.6, 0.7, 0.2, 0.4, 0.1])
CLUSTERS = np.array([1, 1, 2, 3, 1, 2, 3, 3, 4])


def area(y: np.ndarray, s: np.ndarray, people: np.ndarray) -> Estimate:
    probability = np.stack([1 - s, s], 1)
    return single(AUC().value(y, probability), AUC().influence(y, probability), people, HERE)


def test_placements_are_shares_of_the_other_class() -> None:
    first = placements(Y, S)
    assert first.area == pytest.approx(0.825)
    assert first.placement[Y == 1] == pytest.approx([1, 1, 0.8, 0.5])
    assert first.placement[Y == 0] == pytest.approx([0.5, 0.75, 0.875, 1, 1])


def test_delong() -> None:
    first, second = area(Y, S, np.arange(9)), area(Y, S2, np.arange(9))
    assert (first.mean, second.mean) == pytest.approx((0.825, 0.75))
    assert first.over_patients.variance == pytest.approx(0.0227083333, abs=1e-9)
    assert second.over_patients.variance == pytest.approx(0.035)
    paired = minus(first, second)
    assert paired.over_patients.variance == pytest.approx(0.0179166667, abs=1e-9)
    assert (0.0227083333 + 0.035 - paired.over_patients.variance) / 2 == pytest.approx(0.0198958333, abs=1e-9)
    p = two_sided_p(paired.mean, Spread(paired.over_patients.variance, np.inf))
    assert p == pytest.approx(0.5752642393, abs=1e-6)


def test_the_logit_interval_stays_within_bounds() -> None:
    found = bounds(0.825, Spread(0.0227083333, np.inf), "logit")
    assert found == pytest.approx((0.3786847505, 0.9733078097), abs=1e-6)
    assert bounds(0.825, Spread(0.0227083333, np.inf)) == pytest.approx((0.5296474500, 1.1203525499), abs=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_auc_at_a_bound_has_no_interval(value: float) -> None:
    assert np.isnan(bounds(value, Spread(0.0, np.inf), "logit")).all()


@pytest.mark.parametrize(("scores", "wanted"), [(S, (0.08578125, 0.0513333333, -0.2466666667, 0.0070453125))])
def test_obuchowski_but_for_one_factor(scores: np.ndarray, wanted: tuple[float, ...]) -> None:
    """S10 / m + S01 / n + 2 S11 / (m n): 3 patients have positives, 4 have negatives, of 4.

    S11 has the factor 4 / 3; here it is the geometric mean of the factors of the classes, 3 / 2 and 4 / 3.
    """
    positive, negative, both, variance = wanted
    assert positive / 4 + negative / 5 + 2 * both / 20 == pytest.approx(variance, abs=1e-9)
    factor = math.sqrt(3 / 2 * 4 / 3) / (4 / 3)
    found = area(Y, scores, CLUSTERS)
    assert found.over_patients.variance == pytest.approx(positive / 4 + negative / 5 + factor * 2 * both / 20, abs=1e-9)
    assert found.fewest == 3


def test_obuchowski_where_patients_have_both_classes() -> None:
    y = np.array([1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 0, 1])
    scores = (
        np.array([0.9, 0.6, 0.7, 0.5, 0.8, 0.75, 0.2, 0.3, 0.55, 0.65, 0.1, 0.4]),
        np.array([0.8, 0.7, 0.6, 0.5, 0.9, 0.5, 0.3, 0.2, 0.45, 0.6, 0.2, 0.5]),
    )
    alone = [area(y, s, np.arange(12)) for s in scores]
    assert [one.mean for one in alone] == pytest.approx([0.8611111111, 0.7361111111])
    assert [one.over_patients.variance for one in alone] == pytest.approx([0.0126543210, 0.0239969136], abs=1e-9)


def test_obuchowski_where_every_patient_has_both_classes() -> None:
    """With k patients the covariance of their sums over positives and negatives: k / (k - 1) sum (p / m + q / n)^2."""
    rng = np.random.default_rng(0)
    y, people = np.tile([0, 0, 1], 12), np.repeat(np.arange(12), 3)
    s = np.clip(0.3 * y + rng.normal(0.3, 0.2, 36), 0, 1)
    first = placements(y == 1, s)
    deviation = first.placement - first.area
    p, q = (np.bincount(people, deviation * (y == label)) for label in (1, 0))
    wanted = 12 / 11 * ((p / 12 + q / 24) ** 2).sum()
    assert area(y, s, people).over_patients.variance == pytest.approx(wanted)


# ---- trainings by patients

D = np.array(
    [
        [0.10, 0.00, 0.20, -0.10, 0.05, 0.15],
        [0.00, 0.05, 0.10, -0.05, 0.00, 0.20],
        [0.20, 0.10, 0.15, 0.00, 0.10, 0.05],
        [0.05, -0.10, 0.05, 0.00, 0.10, 0.20],
    ]
)
"""Four trainings that score the same six patients."""


def of_table(table: np.ndarray, group: tuple[str, str] = HERE) -> Estimate:
    people = np.arange(table.shape[1])
    return estimates.over_trainings([average(row, people, group, seed) for seed, row in enumerate(table)])


def sources(one: Estimate) -> tuple[Spread, Spread, Spread]:
    return one.over_trainings, one.over_patients, one.residual


def test_mean_squares() -> None:
    parts = sources(of_table(D))
    assert [part.variance * D.size for part in parts] == pytest.approx([1 / 300, 0.0196666667, 0.005], abs=1e-9)
    assert [part.df for part in parts] == pytest.approx([3, 5, 15])


def test_the_crossed_interval_holds_zero_where_the_interval_over_patients_does_not() -> None:
    spread = components(*sources(of_table(D)))
    assert spread == pytest.approx((0.00075, 3.9165473), abs=1e-6)
    assert bounds(D.mean(), spread) == pytest.approx((-0.0100126533, 0.1433464866), abs=1e-6)


def test_a_negative_component_counts_as_zero() -> None:
    spread = of_table(D).spread
    assert spread == pytest.approx((0.0008194444, 5), abs=1e-9)
    assert spread.variance**0.5 == pytest.approx(0.0286259401, abs=1e-9)
    assert of_table(D.T).spread == pytest.approx(spread)


def test_without_negative_components_nothing_is_truncated() -> None:
    one = of_table(np.array([[0.0, 1.0, 2.1], [1.0, 2.1, 3.0]]))
    assert one.spread == components(*sources(one))


def test_trainings_and_patients_that_all_agree_leave_no_width() -> None:
    assert of_table(np.full((3, 6), 0.9)).interval() == pytest.approx((0.9, 0.9), abs=1e-12)


def test_two_trainings_alone_have_one_degree_of_freedom() -> None:
    """Patients all agree: the mean of 1 and 3 is 2 +- 12.7 * 1."""
    found = of_table(np.repeat([[1.0], [3.0]], 20, axis=1)).interval()
    assert found == pytest.approx((2 - 12.7062047362, 2 + 12.7062047362))


def test_one_training_has_an_interval_over_patients() -> None:
    """The mean of the first row is 0.0667; six patients have five degrees of freedom."""
    half = student.ppf(0.975, 5) * D[0].std(ddof=1) / math.sqrt(6)
    assert of_table(D[:1]).interval() == pytest.approx((D[0].mean() - half, D[0].mean() + half))


def test_patients_of_two_sites_are_drawn_apart() -> None:
    """The mean over two sites with the same trainings: variances over patients add up, each by a quarter."""
    one, two = D, np.random.default_rng(0).normal(0.1, 0.05, (4, 9))
    first, second = of_table(one, ("data", "a")), of_table(two, ("data", "b"))
    found = estimates.mean([first, second])
    assert found.values == pytest.approx((one.mean(1) + two.mean(1)) / 2)
    for mine, a, b in zip(sources(found)[1:], sources(first)[1:], sources(second)[1:], strict=True):
        assert mine.variance == pytest.approx((a.variance + b.variance) / 4)
    assert found.over_trainings == pytest.approx((found.values.var(ddof=1) / 4, 3))
    assert (sum(found.patients.values()), found.fewest) == (15, 6)


def test_patients_who_are_at_two_sites_count_once() -> None:
    """The mean of a site and its copy has the variance of the site; that of two independent sites has half of it."""
    one = of_table(D[:1])
    assert estimates.mean([one, one]).spread.variance == pytest.approx(one.spread.variance)
    apart = estimates.mean([one, of_table(D[:1], ("data", "other"))])
    assert apart.spread.variance == pytest.approx(one.spread.variance / 2)
    assert apart.spread.df == pytest.approx(10)


def test_trainings_are_paired_by_their_seeds() -> None:
    one, two = of_table(D), of_table(D + 0.3)
    paired = minus(two.of_seeds([3, 1]), one)
    assert paired.seeds == (3, 1)
    assert paired.values == pytest.approx([0.3, 0.3])
    assert paired.spread.variance == pytest.approx(0, abs=1e-30)


def test_a_number_that_no_training_changes_is_taken_from_each() -> None:
    control = average(D[2], np.arange(6))
    paired = minus(of_table(D), control)
    assert paired.values == pytest.approx(D.mean(1) - D[2].mean())
    assert paired.over_patients.variance == pytest.approx((D - D[2]).mean(0).var(ddof=1) / 6)


def test_the_p_agrees_with_the_interval() -> None:
    """d = 1.2, .4, -.3, 2.1, .9: t = 2.146 with 4 degrees of freedom, p = .098."""
    d = np.array([1.2, 0.4, -0.3, 2.1, 0.9])
    spread = Spread(float(d.var(ddof=1) / 5), 4)
    assert two_sided_p(d.mean(), spread) == pytest.approx(0.0984246376, abs=1e-9)
    assert two_sided_p(d.mean(), spread) == pytest.approx(ttest_1samp(d, 0).pvalue)
    assert bounds(d.mean(), spread) == pytest.approx((-0.2526584, 1.9726584), abs=1e-6)
    assert two_sided_p(2.776445105197793, Spread(1.0, 4)) == pytest.approx(0.05)


def test_without_spread_a_difference_is_certain() -> None:
    assert (two_sided_p(0.1, Spread(0.0, np.inf)), two_sided_p(0.0, Spread(0.0, np.inf))) == (0.0, 1.0)


# ---- means of samples


def test_the_influence_of_a_ratio_gives_its_linearised_variance() -> None:
    """Correct [8, 3, 10, 1] of [10, 4, 10, 6] in four patients: 22 / 30, with standard error 0.1683030776."""
    right, of = [8, 3, 10, 1], [10, 4, 10, 6]
    each = np.concatenate([[1.0] * a + [0.0] * (b - a) for a, b in zip(right, of, strict=True)])
    one = average(each, np.repeat(np.arange(4), of))
    assert one.mean == pytest.approx(22 / 30)
    assert math.sqrt(one.spread.variance) == pytest.approx(0.1683030776, abs=1e-6)
    assert one.spread.df == 3


def test_independent_samples_have_the_t_interval() -> None:
    x = stream("x").normal(size=2000)
    wanted = ttest_1samp(x, 0).confidence_interval()
    assert average(x, np.arange(2000)).interval() == pytest.approx((wanted.low, wanted.high))


def test_copies_of_a_patient_add_nothing() -> None:
    """Eight copies of each of 50 samples, known to be one patient, give the very interval of the 50."""
    x = stream("x").normal(size=50)
    copies = average(np.repeat(x, 8), np.repeat(np.arange(50), 8))
    assert copies.interval() == pytest.approx(average(x, np.arange(50)).interval())


@pytest.mark.parametrize("patients", [1, 2, FEWEST - 1])
def test_nothing_is_said_of_a_handful_of_patients(patients: int) -> None:
    x = stream("x").normal(size=40)
    assert np.isnan(average(x, np.arange(40) % patients).interval()).all()
    low, high = average(x, np.arange(40) % FEWEST).interval()
    assert low < x.mean() < high


def test_pairing_removes_what_both_share() -> None:
    noise, people = stream("x").normal(size=100), np.arange(100)
    assert minus(average(noise + 0.5, people), average(noise, people)).interval() == pytest.approx((0.5, 0.5))


def test_a_share_of_one_sample_a_patient_has_the_interval_of_wilson() -> None:
    """9 of 10 are right."""
    label, probability = np.zeros(10, dtype=int), np.repeat([[0.8, 0.2], [0.3, 0.7]], [9, 1], axis=0)
    each = Accuracy().influence(label, probability)
    one = single(0.9, each, np.arange(10), HERE)
    assert one.interval("share") == pytest.approx((0.5958499732, 0.9821237869), abs=1e-6)
    assert np.isfinite(single(0.9, each, np.arange(10) // 2, HERE).interval("share")).all()


def test_a_share_that_no_patient_changes_is_not_certain() -> None:
    """None of 50 samples of 10 patients: Wilson's interval of 0 of 10."""
    one = single(0.0, np.zeros(50), np.arange(50) // 5, HERE)
    assert one.interval("share") == pytest.approx((0.0, 0.2775327999), abs=1e-6)


def test_shares_stay_between_zero_and_one() -> None:
    low, high = bounds(0.95, Spread(0.01, 4), "share")
    assert (high, low) == (1.0, pytest.approx(0.95 - 2.776445 * 0.1))
