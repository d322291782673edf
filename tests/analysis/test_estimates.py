"""Estimates and their intervals against worked examples, whose numbers come from the formulas by hand.

Without a test, since there is no such function: the jackknife, bootstraps, and pseudovalues of several readers.
"""

import math

import intervals
import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from fedshift.analysis import estimates
from fedshift.analysis.estimates import (
    FEWEST,
    Estimate,
    Spread,
    bounds,
    crossed,
    minus,
    one_sided_p,
    single,
    wilson,
)
from fedshift.core.rng import stream
from fedshift.metrics import placements
from fedshift.metrics._classes import Accuracy
from fedshift.metrics.auc import AUC

HERE = ("data", "site")


def average(
    x: np.ndarray, people: np.ndarray, group: tuple[str, str] = HERE, seed: int | None = None, scale: str = ""
) -> Estimate:
    """The mean of samples (n,) of these patients."""
    return single(x.mean(), (x - x.mean()) / len(x), people, group, seed, scale)


# ---- the area under a ROC curve

Y = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0])
S = np.array([0.9, 0.8, 0.6, 0.4, 0.7, 0.5, 0.4, 0.3, 0.1])
S2 = np.array([0.8, 0.9, 0.3, 0.5, 0.6, 0.7, 0.2, 0.4, 0.1])
CLUSTERS = np.array([1, 1, 2, 3, 1, 2, 3, 3, 4])


def area(y: np.ndarray, s: np.ndarray, people: np.ndarray) -> Estimate:
    probability = np.stack([1 - s, s], 1)
    return estimates.of_metric(AUC(), y, probability, people, HERE)


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
    p = 2 * one_sided_p(paired.mean, Spread(paired.over_patients.variance, np.inf))
    assert p == pytest.approx(0.5752642393, abs=1e-6)


def on_logit_scale(value: float, variance: float, df: float) -> tuple[float, float]:
    """The interval by its formula."""
    at, half = math.log(value / (1 - value)), student.ppf(0.975, df) * math.sqrt(variance) / (value * (1 - value))
    low, high = (1 / (1 + math.exp(-at - step)) for step in (-half, half))
    return low, high


def test_the_logit_interval_stays_within_bounds() -> None:
    """Ten patients of each class; the plain interval of the mean of a site would end above 1."""
    y, rng = np.repeat([0, 1], 10), np.random.default_rng(3)
    one = area(y, y + rng.normal(size=20), np.arange(20))
    variance = one.over_patients.variance
    assert one.mean + 2 * math.sqrt(variance) > 1
    assert one.interval() == pytest.approx(on_logit_scale(one.mean, variance, 9))
    # the worked example: a normal quantile, 0.825 and its variance
    assert on_logit_scale(0.825, 0.0227083333, 1e9) == pytest.approx((0.3786847505, 0.9733078097), abs=1e-6)
    assert bounds(0.825, Spread(0.0227083333, np.inf)) == pytest.approx((0.5296474500, 1.1203525499), abs=1e-6)


@pytest.mark.parametrize("turned", [False, True])
def test_an_auc_at_its_end_counts_half_a_pair_in_the_wrong_order(turned: bool) -> None:
    """Six patients of each class are told apart: 36 pairs, of which half a one is wrong."""
    y = np.repeat([0, 1], 6)
    scores = np.linspace(0.1, 0.9, 12)
    one = area(y, scores[::-1] if turned else scores, np.arange(12))
    value = 1 - 0.5 / 36
    low, _ = on_logit_scale(value, value * (1 - value) / 36, 5)
    assert one.bounded((0, 1)).low == pytest.approx(0 if turned else low)
    assert one.bounded((0, 1)).high == pytest.approx(1 - low if turned else 1)


@pytest.mark.parametrize(("scores", "wanted"), [(S, (0.08578125, 0.0513333333, -0.2466666667, 0.0070453125))])
def test_obuchowski_but_for_one_factor(scores: np.ndarray, wanted: tuple[float, ...]) -> None:
    """S10 / m + S01 / n + 2 S11 / (m n): 3 patients have positives, 4 have negatives, of 4.

    S11 has the factor 4 / 3; here it is the geometric mean of the factors of the classes, 3 / 2 and 4 / 3.
    """
    positive, negative, both, variance = wanted
    assert positive / 4 + negative / 5 + 2 * both / 20 == pytest.approx(variance, abs=1e-9)
    factor = math.sqrt(3 / 2 * 4 / 3) / (4 / 3)
    found = area(Y, scores, CLUSTERS)
    variance = (found.parts[HERE].influence ** 2).sum()
    assert variance == pytest.approx(positive / 4 + negative / 5 + factor * 2 * both / 20, abs=1e-9)
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
    """Of four trainings the component is below zero: MS 0.00333 is less than 0.005. The interval over patients is left.

    Their variance is 0.0196667 / 24. The degrees of freedom are those of patients and of the rest:
    0.0196667^2 / (0.0196667^2 / 5 + 0.005^2 / 15) = 4.894.
    """
    low, high = of_table(D).interval()
    half = student.ppf(0.975, 4.894) * math.sqrt(0.0196666667 / 24)
    assert (low, high) == pytest.approx((D.mean() - half, D.mean() + half), abs=1e-4)
    assert low < 0


def test_a_negative_component_counts_as_zero() -> None:
    spread = of_table(D).spread(True)
    assert spread.variance == pytest.approx(0.0008194444, abs=1e-9)
    assert spread.variance**0.5 == pytest.approx(0.0286259401, abs=1e-9)
    assert of_table(D.T).spread(True) == pytest.approx(spread)


def test_without_negative_components_nothing_is_truncated() -> None:
    """The variance is that of the two-way analysis of variance, trainings + patients - residual."""
    one = of_table(np.array([[0.0, 1.0, 2.1], [1.0, 2.1, 3.0]]))
    trainings, patients, residual = sources(one)
    total = trainings.variance + patients.variance - residual.variance
    squares = sum(source.variance**2 / source.df for source in (trainings, patients, residual))
    assert one.spread(True) == pytest.approx((total, total**2 / squares))


@pytest.mark.parametrize("patients", [3.0, 1.0, 0.2])
def test_the_interval_does_not_jump_where_a_component_vanishes(patients: float) -> None:
    """Trainings vary as much as the residual, but for 1e-12 of it: no bound moves by more than 1e-6."""
    ends = []
    for trainings in (1 - 1e-12, 1.0, 1 + 1e-12):
        spread = crossed(Spread(trainings, 2), Spread(patients, 39), Spread(1.0, 78))
        turned = crossed(Spread(patients, 39), Spread(trainings, 2), Spread(1.0, 78))
        assert turned == spread
        ends.append(bounds(0.0, spread)[1])
    assert ends == pytest.approx([ends[1]] * 3, abs=1e-6, rel=0)


def test_a_small_change_of_the_data_moves_no_bound() -> None:
    rng = np.random.default_rng(0)
    for scale in ("", "unit", "logit", "mean"):
        for _ in range(20):
            table = np.clip(rng.normal(0.8, 0.15, (3, 12)), 0.01, 0.99)
            moved = table + 1e-12 * rng.normal(size=table.shape)
            found, near = (
                estimates.over_trainings([average(row, np.arange(12), HERE, k, scale) for k, row in enumerate(rows)])
                for rows in (table, moved)
            )
            assert found.interval() == pytest.approx(near.interval(), abs=1e-6, rel=0)


def test_where_trainings_and_patients_all_agree_nothing_is_certain() -> None:
    """A number that is no score has no interval; a mean of numbers from 0 to 1 has that of 6 samples."""
    assert np.isnan(of_table(np.full((3, 6), 0.9)).interval()).all()
    alike = [average(np.full(6, 0.9), np.arange(6), seed=seed, scale="unit") for seed in range(3)]
    low, high = wilson(0.9, 0.09 / (0.5 / 36))
    stretched = student.ppf(0.975, 5) / 1.959964
    wanted = 0.9 - stretched * (0.9 - low), 0.9 + stretched * (high - 0.9)
    assert estimates.over_trainings(alike[:1]).interval() == pytest.approx(wanted, abs=1e-6)
    assert np.isnan(average(np.full(6, 0.9), np.arange(6), scale="mean").interval()).all()


def test_two_trainings_alone_have_one_degree_of_freedom() -> None:
    """Patients nearly agree: the mean of 1 and 3 is 2 +- 12.7 * 1."""
    found = of_table(np.repeat([[1.0], [3.0]], 20, axis=1) + 1e-6 * np.tile([-1, 1], 10)).interval()
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
    assert (found.patients, found.rarer, found.fewest) == (15, 15, 6)


def test_patients_who_are_at_two_sites_count_once() -> None:
    """The mean of a site and its copy has the variance of the site; that of two independent sites has half of it."""
    one = of_table(D[:1])
    assert estimates.mean([one, one]).spread(True).variance == pytest.approx(one.spread(True).variance)
    apart = estimates.mean([one, of_table(D[:1], ("data", "other"))])
    assert apart.spread(True).variance == pytest.approx(one.spread(True).variance / 2)
    assert apart.spread(True).df == pytest.approx(10)


def test_trainings_are_paired_by_their_seeds() -> None:
    one, two = of_table(D), of_table(D + 0.3)
    paired = minus(two.of_seeds([3, 1]), one)
    assert paired.seeds == (3, 1)
    assert paired.values == pytest.approx([0.3, 0.3])
    assert paired.spread(True).variance == pytest.approx(0, abs=1e-30)


def test_a_number_that_no_training_changes_is_taken_from_each() -> None:
    control = average(D[2], np.arange(6))
    paired = minus(of_table(D), control)
    assert paired.values == pytest.approx(D.mean(1) - D[2].mean())
    assert paired.over_patients.variance == pytest.approx((D - D[2]).mean(0).var(ddof=1) / 6)


def test_the_p_agrees_with_the_interval() -> None:
    """d = 1.2, .4, -.3, 2.1, .9: t = 2.146 with 4 degrees of freedom, p = .098."""
    d = np.array([1.2, 0.4, -0.3, 2.1, 0.9])
    spread = Spread(float(d.var(ddof=1) / 5), 4)
    assert 2 * one_sided_p(d.mean(), spread) == pytest.approx(0.0984246376, abs=1e-9)
    assert average(d, np.arange(5)).p == pytest.approx(ttest_1samp(d, 0).pvalue)
    assert average(-d, np.arange(5)).p == pytest.approx(ttest_1samp(d, 0).pvalue)
    assert average(d, np.arange(5)).p_above(1.0) == pytest.approx(ttest_1samp(d, 1, alternative="greater").pvalue)
    assert bounds(d.mean(), spread) == pytest.approx((-0.2526584, 1.9726584), abs=1e-6)
    assert one_sided_p(2.776445105197793, Spread(1.0, 4)) == pytest.approx(0.025)


def test_without_spread_a_difference_is_certain() -> None:
    assert [one_sided_p(x, Spread(0.0, np.inf)) for x in (0.1, 0.0, -0.1)] == [0.0, 0.5, 1.0]


# ---- means of samples


def test_the_influence_of_a_ratio_gives_its_linearised_variance() -> None:
    """Correct [8, 3, 10, 1] of [10, 4, 10, 6] in four patients: 22 / 30, with standard error 0.1683030776."""
    right, of = [8, 3, 10, 1], [10, 4, 10, 6]
    each = np.concatenate([[1.0] * a + [0.0] * (b - a) for a, b in zip(right, of, strict=True)])
    one = average(each, np.repeat(np.arange(4), of))
    assert one.mean == pytest.approx(22 / 30)
    assert math.sqrt(one.spread(True).variance) == pytest.approx(0.1683030776, abs=1e-6)
    assert one.spread(True).df == 3


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
    noise, gain, people = stream("x").normal(size=100), np.tile([0.4, 0.6], 50), np.arange(100)
    found = minus(average(noise + gain, people), average(noise, people)).interval()
    half = student.ppf(0.975, 99) * 0.1 / math.sqrt(99)
    assert found == pytest.approx((0.5 - half, 0.5 + half))


def shares(right: list[int], of: int, scale: str = "share") -> Estimate:
    """The share of right samples of one training: of `of` samples of each patient so many are right."""
    label = np.zeros(len(right) * of, dtype=int)
    correct = np.concatenate([[True] * a + [False] * (of - a) for a in right])
    probability = np.where(correct[:, None], [0.8, 0.2], [0.3, 0.7])
    return estimates.of_metric(Accuracy(), label, probability, np.repeat(np.arange(len(right)), of), HERE, 0)


def test_a_share_of_one_sample_a_patient_has_the_interval_of_wilson() -> None:
    """9 of 10 are right, and 10 of 10."""
    assert shares([1] * 9 + [0], 1).interval() == pytest.approx((0.5958499732, 0.9821237869), abs=1e-6)
    assert shares([1] * 10, 1).interval() == pytest.approx((1 - 0.2775327999, 1.0), abs=1e-6)
    assert shares([2] * 10, 2).interval() == pytest.approx((1 - 0.2775327999, 1.0), abs=1e-6)


def test_a_share_of_several_samples_a_patient_counts_those_that_vary_as_much() -> None:
    """30 patients with 0 to 4 right of 4: the variance of their means, and the t quantile of 29 degrees of freedom."""
    right = [4] * 20 + [3] * 5 + [2] * 3 + [0] * 2
    x = np.array(right) / 4
    mean, variance = x.mean(), x.var(ddof=1) / 30
    assert variance > 0.5 / 30**2
    low, high = wilson(mean, mean * (1 - mean) / variance)
    stretched = student.ppf(0.975, 29) / 1.959963985
    wanted = (mean - stretched * (mean - low), mean + stretched * (high - mean))
    assert shares(right, 4).interval() == pytest.approx(wanted, abs=1e-6)


def test_a_loss_of_shares_is_as_wide_as_both_of_them() -> None:
    """All 20 right at home, and 9 of 12 outside: the square-and-add interval of Newcombe (Stat Med 1998;17:873)."""
    home = shares([1] * 20, 1)
    outside = single(0.75, (np.repeat([1.0, 0.0], [9, 3]) - 0.75) / 12, np.arange(12), ("data", "out"), 0, "share")
    loss = minus(home, outside).bounded((0, 1), difference=True)
    own, other = home.interval(), outside.interval()
    assert loss.low == pytest.approx(0.25 - math.hypot(1 - own[0], other[1] - 0.75), abs=1e-9)
    assert loss.high == pytest.approx(0.25 + math.hypot(own[1] - 1, 0.75 - other[0]), abs=1e-9)


def test_two_models_that_are_right_on_all_patients_may_differ() -> None:
    """One of the next 20 patients may be answered differently: a standard error of 1 / 20."""
    same = minus(shares([1] * 20, 1), shares([1] * 20, 1))
    assert same.interval() == pytest.approx((-1.959964 / 20, 1.959964 / 20), abs=1e-6)


def test_the_patients_tested_and_those_of_the_rarer_class_are_two_counts() -> None:
    y, rng = np.repeat([0, 1], [40, 7]), np.random.default_rng(0)
    one = area(y, rng.random(47), np.arange(47))
    assert (one.patients, one.rarer, one.fewest) == (47, 7, 7)
    assert one.parts[HERE].df == 6


# ---- patients who are all alike


def at(site: str, right: list[int], of: int = 5, seed: int = 0) -> Estimate:
    """The share of one training at a site: of `of` samples of each patient so many are right."""
    x = np.concatenate([[1.0] * n + [0.0] * (of - n) for n in right])
    return average(x, np.repeat(np.arange(len(right)), of), ("data", site), seed, "share")


def distances(x: list[list[float]]) -> Estimate:
    """The mean distance of the samples of these patients (patients, samples), which nothing bounds."""
    table = np.array(x)
    return average(table.ravel(), np.repeat(np.arange(len(table)), table.shape[1]), HERE, 0, "mean")


@pytest.mark.parametrize(("patients", "right", "of"), [(12, 4, 5), (30, 2, 3), (5, 1, 2)])
def test_a_share_of_patients_who_are_alike_is_that_of_their_samples(patients: int, right: int, of: int) -> None:
    """The variance is p (1 - p) / (n - 1), as if each sample were a patient."""
    share, samples = right / of, patients * of
    variance = share * (1 - share) / (samples - 1)
    found = at("home", [right] * patients, of)
    assert found.over_patients == pytest.approx((variance, patients - 1))
    assert found.interval() == pytest.approx(intervals.of_share(share, variance, patients - 1))
    apart = at("home", [1] * (patients * right) + [0] * (patients * (of - right)), 1)
    assert found.over_patients.variance == pytest.approx(apart.over_patients.variance)


@pytest.mark.parametrize("structures", [1, 2])
def test_a_mean_dice_of_patients_who_are_alike_is_that_of_their_images(structures: int) -> None:
    """Six patients have images with 0.6 and 0.8, also of two structures that go together: variance 0.1^2 / 11."""
    x = np.tile([0.6, 0.8], 6)
    influence = np.repeat((x - 0.7)[:, None] / 12 / structures, structures, axis=1)
    found = single(0.7, influence, np.repeat(np.arange(6), 2), HERE, 0, "unit")
    assert found.interval() == pytest.approx(intervals.of_share(0.7, 0.01 / 11, 5))


def test_an_auc_of_patients_who_are_alike_is_that_of_their_samples() -> None:
    """Six patients with positives at 0.9 and 0.4, and negatives at 0.6 and 0.1.

    Of 12 samples of a class half have a placement of 1 and half of 0.5: the variance of DeLong is 2 * 0.25^2 / 11.
    """
    y, s = np.tile([1, 1, 0, 0], 6), np.tile([0.9, 0.4, 0.6, 0.1], 6)
    found = area(y, s, np.repeat(np.arange(6), 4))
    assert found.mean == pytest.approx(0.75)
    assert found.interval() == pytest.approx(on_logit_scale(0.75, 2 * 0.0625 / 11, 5))


def test_a_loss_of_patients_who_are_alike_at_home_or_outside() -> None:
    """Four of five are right in 12 patients at home, and three of five outside, in each of 10 or in the mean."""
    home, out = 0.16 / 59, 0.24 / 49
    found = minus(at("home", [4] * 12), at("out", [3] * 10)).interval()
    (home_down, home_up), (out_down, out_up) = intervals.sides(0.8, home), intervals.sides(0.6, out)
    down = intervals.half(*intervals.welch((home_down, 11), (out_up, 9)))
    up = intervals.half(*intervals.welch((home_up, 11), (out_down, 9)))
    assert found == pytest.approx((0.2 - down, 0.2 + up))
    mixed = minus(at("home", [4] * 12), at("out", [1, 5] * 5))
    assert mixed.over_patients.variance == pytest.approx(home + 0.4**2 / 9)


def test_a_difference_of_conditions_whose_patients_are_alike() -> None:
    """Four and three of five are right in 12 patients: the variances add up, since nothing says how samples pair.

    Where patients of one condition differ, so do their differences, of 2 or 0 of five: a variance of 0.04 / 11.
    """
    found = minus(at("x", [4] * 12), at("x", [3] * 12))
    variance = (0.16 + 0.24) / 59
    half = intervals.half(variance, 11)
    assert found.interval() == pytest.approx((0.2 - half, 0.2 + half))
    assert found.p == pytest.approx(2 * student.sf(0.2 / math.sqrt(variance), 11))
    assert minus(at("x", [4] * 12), at("x", [2, 4] * 6)).over_patients.variance == pytest.approx(0.04 / 11)


def test_trainings_that_all_see_patients_who_are_alike() -> None:
    """One of three trainings is right in all samples: its standard error of zero counts in the mean of three."""
    found = estimates.over_trainings([at("x", [n] * 12, seed=seed) for seed, n in enumerate((4, 5, 3))])
    roots = math.sqrt(0.16 / 59) + math.sqrt(0.24 / 59)
    assert found.over_patients == pytest.approx(((roots / 3) ** 2, 11))
    differing = estimates.over_trainings([at("x", right, seed=k) for k, right in enumerate(([4] * 12, [3, 5] * 6))])
    assert differing.over_patients.variance == pytest.approx((0.2 / 2) ** 2 / 11)


@pytest.mark.parametrize("right", [[4] * 12, [5] * 12, [3, 5] * 6])
def test_equal_predictions_are_never_surely_different(right: list[int]) -> None:
    same = minus(at("x", right), at("x", right))
    low, high = same.interval()
    assert (same.mean, same.p, same.p_above(0.0)) == (0.0, 1.0, 0.5)
    assert low < 0 < high


def test_distances_of_patients_who_are_alike() -> None:
    """Samples of 1 and 3 give those of 12 samples. Equal distances have no interval, and nor has their difference.

    A difference of zero in every sample is zero in these patients, and no other p than 1 and 0.5.
    """
    half = student.ppf(0.975, 5) / math.sqrt(11)
    assert distances([[1, 3]] * 6).interval() == pytest.approx((2 - half, 2 + half))
    near, far = distances([[1]] * 6), distances([[2]] * 6)
    for one in (
        near,
        minus(far, near),
        minus(distances([[n + 1] for n in range(6)]), distances([[n] for n in range(6)])),
    ):
        assert np.isnan([one.p, one.p_above(0.0), *one.interval(), *one.interval_over_patients()]).all()
    same = minus(far, far)
    assert (same.interval(), same.p, same.p_above(0.0)) == ((0.0, 0.0), 1.0, 0.5)
