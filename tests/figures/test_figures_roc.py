"""ROC curves against corners counted by hand in NumPy, and the figure that shows them on every page of two classes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import fake_study
import numpy as np
import pytest
from invented import made
from scored_study import summarised

from fedshift import study
from fedshift.analysis import net_benefit, study_results
from fedshift.core import registry
from fedshift.io.paths import STUDIES

POSITIVE = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0]) == 1
SCORE = np.array([0.9, 0.8, 0.4, 0.3, 0.8, 0.5, 0.3, 0.2, 0.1])


def counted(positive: np.ndarray, score: np.ndarray) -> np.ndarray:
    """The corners (k, 2) by definition: of every threshold, the shares of negatives and positives that reach it."""
    thresholds = [np.inf, *np.unique(score)[::-1]]
    return np.array([[(score[~positive] >= t).mean(), (score[positive] >= t).mean()] for t in thresholds])


def test_corners_are_the_shares_that_reach_a_threshold() -> None:
    """Of 5 negatives, one ties with a positive at 0.8 and one at 0.3: both steps are diagonal."""
    corners = np.stack(net_benefit.curve(POSITIVE, SCORE), 1)
    assert corners == pytest.approx(counted(POSITIVE, SCORE))
    assert corners.tolist() == [
        pytest.approx(corner)
        for corner in [[0, 0], [0, 0.25], [0.2, 0.5], [0.4, 0.5], [0.4, 0.75], [0.6, 1.0], [0.8, 1.0], [1.0, 1.0]]
    ]


def test_the_mean_curve_is_read_at_equal_shares_of_negatives() -> None:
    """At 0.1 the first is half way from 1/4 to 1/2; where it rises upright, at 0.4, the upper end counts: 3/4.

    The second curve is that of a guess, whose sensitivity is the share itself.
    """
    guess = (np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    first = net_benefit.mean_curve([net_benefit.curve(POSITIVE, SCORE)])
    both = net_benefit.mean_curve([net_benefit.curve(POSITIVE, SCORE), guess])
    at = {share: round(100 * share) for share in (0.0, 0.1, 0.4, 0.5, 1.0)}
    assert [first[at[share]] for share in at] == pytest.approx([0.25, 0.375, 0.75, 0.875, 1.0])
    assert both == pytest.approx((first + net_benefit.GRID) / 2)


def test_the_area_is_the_auc_of_pairs() -> None:
    """Of 20 pairs 15 are in order, and two are tied."""
    corners = net_benefit.curve(POSITIVE, SCORE)
    pairs = SCORE[POSITIVE][:, None] - SCORE[~POSITIVE][None]
    assert np.trapezoid(corners[1], corners[0]) == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2)


def test_a_study_has_a_curve_for_each_external_site(tmp_path: Path) -> None:
    """60 % of either class are right with Source: sensitivity is 0.6 where 40 % of the negatives are flagged."""
    plan, paths = summarised(tmp_path, runs=[{"algorithm": "fedavg"}], seeds=[0, 1])
    loaded = study_results.load(plan, paths)
    table = loaded.for_figures.curves()
    assert set(table["site"]) == set(fake_study.EXTERNAL) and set(table["shown"]) == {"Source", "TsmoBN"}
    source = table[(table["site"] == "centre1") & (table["shown"] == "Source")].set_index("false_positives")
    assert source["sensitivity"].iloc[[0, 20, 40, 70, 100]].tolist() == pytest.approx([0, 0.3, 0.6, 0.8, 1.0])
    text = study_results.draw(study_results.load(plan, paths), "roc").read_text(encoding="utf-8")
    assert "The dotted line is a guess" in (ElementTree.fromstring(text)[0].text or "")
    assert "<script" not in text and "centre1" in text
    assert study_results.draw(study_results.load(plan, paths), "roc").read_text(encoding="utf-8") == text


def test_curves_that_are_left_out_are_counted(tmp_path: Path) -> None:
    """Three conditions with two inferences each have six curves."""
    plan, paths = summarised(tmp_path, seeds=[0], runs=[{"algorithm": name} for name in ("fedavg", "fedprox", "moon")])
    loaded = study_results.load(plan, paths).for_figures
    captions = [registry.build("figure", {"name": "roc", "most": most}).caption(loaded) for most in (4, 6)]
    assert ["Further curves left out here: 2." in caption for caption in captions] == [True, False]


def test_curves_of_each_partition_count(tmp_path: Path) -> None:
    """One condition with two inferences has four curves in two partitions."""
    split = {"train": 0.4, "val": 0.1, "test": 0.5}
    parts = [{"internal": ["a", own], "external": [out], "split": split} for own, out in ("yx", "xy")]
    plan, paths = summarised(tmp_path, seeds=[0], runs=[{"algorithm": "fedavg"}], partition=parts)
    loaded = study_results.load(plan, paths).for_figures
    assert "left out here: 1." in registry.build("figure", {"name": "roc", "most": 3}).caption(loaded)


def test_the_condition_with_which_the_page_leads_has_the_first_curves(tmp_path: Path) -> None:
    primary = {"condition": {"algorithm": "moon"}, "against": {"algorithm": "fedavg"}}
    runs = [{"algorithm": name} for name in ("fedavg", "fedprox", "moon")]
    plan, paths = summarised(tmp_path, seeds=[0], runs=runs, primary=primary)
    loaded = study_results.load(plan, paths).for_figures
    titles = ["MOON, aggregated BN", "FedAvg, aggregated BN", "FedProx, aggregated BN"]
    for table in (loaded.curves(), loaded.tables["calibration"]):
        assert list(table["condition"].unique()) == titles
    assert list(loaded.curves()["false_positives"][:3]) == [0.0, 0.01, 0.02]


def test_without_external_sites_the_internal_ones_have_curves(tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path, partition={"internal": fake_study.INTERNAL}, seeds=[0])
    assert set(study_results.load(plan, paths).for_figures.curves()["site"]) == set(fake_study.INTERNAL)


def test_more_than_two_classes_have_nothing_to_draw(tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path, dataset=fake_study.Fake(classes=("a", "b", "c")), metrics=["accuracy"])
    assert study_results.load(plan, paths).for_figures.curves().empty
    assert "Nothing to draw" in registry.build("figure", "roc").draw(made())


@pytest.mark.parametrize(
    ("figures", "classes", "wanted"),
    [
        (["sites"], ("a", "b"), ("sites", "calibration", "roc")),
        (["roc", "sites"], ("a", "b"), ("roc", "sites", "calibration")),
        ([], ("a", "b"), ()),
        (["sites"], ("a", "b", "c"), ("sites",)),
    ],
)
def test_pages_of_two_classes_show_calibration_and_roc(
    tmp_path: Path, figures: list[str], classes: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    plan = fake_study.plan(tmp_path, figures=figures, dataset=fake_study.Fake(classes=classes))
    assert plan.figures == wanted
    assert plan.runs.keys() == fake_study.plan(tmp_path, dataset=fake_study.Fake(classes=classes)).runs.keys()


def test_masks_of_two_classes_have_neither() -> None:
    assert study.load(study.find("discs", STUDIES), "mini").figures == ("convergence", "outlines")
