"""What the page says about a hospital that was not tested, for one tested hospital and for more."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from compared import METHODS, compared, predict
from outline import Outline
from scipy.stats import t as student

from fedshift.analysis.comparisons import predicted
from fedshift.page import behind_means, page

AUC = np.array([0.92, 0.85, 0.78, 0.88, 0.90])
SE = np.array([0.02, 0.03, 0.04, 0.025, 0.03])


def test_the_worked_example_on_the_logit_scale() -> None:
    assert predicted(AUC, SE, logit=True) == pytest.approx((0.6296503562, 0.9636232996), abs=1e-6)


def test_on_the_plain_scale_it_may_leave_the_bounds() -> None:
    low, high = predicted(np.array([0.95, 0.99, 0.6]), np.full(3, 0.02), logit=False)
    assert low < 0 and high > 1


@pytest.mark.parametrize("estimates", [[0.9, 0.8], [0.9, 0.8, 1.0], [0.9, 0.8, np.nan]])
def test_some_sites_predict_nothing(estimates: list[float]) -> None:
    assert np.isnan(predicted(np.array(estimates), np.full(len(estimates), 0.02), logit=True)).all()


def test_sites_without_spread_within_vary_between_only() -> None:
    """All weights are alike: the mean of the logits ± t(k - 2) sqrt(s^2 (1 + 1 / k))."""
    values = np.array([0.6, 0.7, 0.8, 0.9])
    logits = np.log(values / (1 - values))
    half = student.ppf(0.975, 2) * logits.std(ddof=1) * math.sqrt(1 + 1 / 4)
    wanted = 1 / (1 + np.exp(-(logits.mean() + np.array([-half, half]))))
    assert predicted(values, np.zeros(4), logit=True) == pytest.approx(tuple(wanted), abs=1e-6)


def text(root: Path, monkeypatch: pytest.MonkeyPatch, right: list[int], **changes: object) -> str:
    """The page of one condition that has so many of 20 right at each external site, in all of eight patients."""
    sites = [f"h{n}" for n in range(len(right))]
    predict(monkeypatch, lambda run, site, _: dict(zip(sites, right, strict=True)).get(site, 18), 8, 20)
    found = compared(root, METHODS[:1], sites, **changes)
    return Outline(page.write(found).read_text()).text


def test_one_hospital_speaks_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = text(tmp_path, monkeypatch, [12])
    assert "One external site was tested (60.0 at h0). It says nothing about any other hospital." in shown
    assert "prediction interval" not in shown.lower()


def test_two_hospitals_are_two_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = text(tmp_path, monkeypatch, [12, 16])
    assert "Two external sites were tested: 60.0 at h0 and 80.0 at h1." in shown
    assert "prediction interval" not in shown.lower()


@pytest.mark.parametrize(("right", "odds"), [([12, 14, 16], "1 in 4 (25 %)"), ([12, 14, 16, 18], "1 in 5 (20 %)")])
def test_of_three_or_four_hospitals_the_interval_is_in_the_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: list[int], odds: str
) -> None:
    shown = text(tmp_path, monkeypatch, right)
    assert f"its accuracy is below the lowest of them with a probability of {odds}." in shown
    assert f"Too few: {len(right)} sites hardly say how much hospitals differ" in shown
    assert shown.index("Prediction interval: too few sites") < shown.index("95% prediction interval")


@pytest.mark.parametrize(("count", "caveat"), [(5, True), (10, False)])
def test_from_five_hospitals_on_there_is_an_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, caveat: bool
) -> None:
    """All patients of a site score alike, and count as 160 samples: DerSimonian and Laird, on the logit scale."""
    right = [12 + n % 5 for n in range(count)]
    shown = text(tmp_path, monkeypatch, right)
    share = np.array(right) / 20
    logits, weight = np.log(share / (1 - share)), 159 * share * (1 - share)
    q = (weight * (logits - (weight * logits).sum() / weight.sum()) ** 2).sum()
    between = max((q - count + 1) / (weight.sum() - (weight**2).sum() / weight.sum()), 0)
    both = 1 / (1 / weight + between)
    half = student.ppf(0.975, count - 2) * math.sqrt(between + 1 / both.sum())
    low, high = 100 / (1 + np.exp(-((both * logits).sum() / both.sum() + np.array([-half, half]))))
    assert f"{low:.1f} to {high:.1f}" in shown
    assert ("a prediction interval is itself uncertain" in shown) == caveat
    assert "too few sites" not in shown


def test_lower_is_better_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = text(tmp_path, monkeypatch, [12, 14, 16], headline="brier", metrics=["brier"])
    assert "its Brier score is above the highest" in shown


def test_without_external_sites_there_is_no_other_hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict(monkeypatch, lambda *_: 18, 8, 20)
    found = compared(tmp_path, METHODS[:1], partition={"internal": ["a", "b"]})
    assert behind_means.new_hospital_section(found.findings) is None
