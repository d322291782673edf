"""Trends: which orderings hold, by hand arithmetic on invented results; and what is in doubt."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_study import EVIL
from papers_study import WORDS, compared, read

from fedshift.analysis.trends import TrendResult
from fedshift.core.errors import UserError

SIDES = {"claim": "Local BN is better outside", "better": {"bn": "local"}, "than": {"bn": "aggregated"}}


def steady(run, inference, site, role):  # type: ignore[no-untyped-def]
    """0.85, 0.9, 0.95 at home over seeds; outside 0.6 with aggregated BN and 0.7 with local BN, in every seed."""
    return 0.9 + 0.05 * (run.seed - 1) if role == "internal" else 0.6 + 0.1 * (run.bn == "local")


def row(root: Path, rows: str = "", trend: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    plan, paths = compared(root, rows, trends=[SIDES | {"at": "external"} | (trend or {})], **changes)
    (found,) = read(plan, paths, "trends").to_dict("records")
    return {str(k): v for k, v in found.items()}


def test_a_trend_that_holds(tmp_path: Path) -> None:
    """Local BN is 0.1 above at both external sites in every seed: no error at all."""
    found = row(tmp_path, share_right=steady)
    assert (found["held"], found["doubt"], found["reason"]) == ("yes", "", "")
    assert (found["mean_difference"], found["se"]) == (pytest.approx(0.1), pytest.approx(0, abs=1e-12))
    assert (found["sites_for"], found["sites"], found["seeds"]) == (2, 2, 3)
    assert found["by"] == 0 and math.isnan(found["within"])
    assert found["sentence"].startswith("bn local is above bn aggregated in accuracy at 2 of 2 external sites; on ")
    assert "the difference is +10.0 points (standard error 0.0)" in found["sentence"]


def test_the_ids_of_both_sides_are_listed(tmp_path: Path) -> None:
    """Each side has one condition under one inference, or under none where the record of the rounds is compared."""
    plan, paths = compared(tmp_path, trends=[SIDES | {"at": "external"}, SIDES | {"of": "step_loss"}])
    ids = {run.bn: run.condition for run in plan.runs.values()}
    scored, recorded = read(plan, paths, "trends").to_dict("records")
    assert (scored["better_ids"], scored["than_ids"]) == (f"{ids['local']}/source", f"{ids['aggregated']}/source")
    assert (recorded["better_ids"], recorded["than_ids"]) == (ids["local"], ids["aggregated"])


def test_a_trend_that_does_not(tmp_path: Path) -> None:
    found = row(tmp_path, trend={"better": {"bn": "aggregated"}, "than": {"bn": "local"}})
    assert (found["held"], found["sites_for"]) == ("no", 0)
    assert found["mean_difference"] == pytest.approx(-0.1)


def noisy(run, inference, site, role):  # type: ignore[no-untyped-def]
    """Local BN outside: +0.3, -0.2, +0.2 over seeds, against 0.6."""
    return 0.6 if role == "internal" or run.bn == "aggregated" else (0.9, 0.4, 0.8)[run.seed]


SURE, SURELY_NOT, UP, DOWN = [0.1] * 3, [-0.10, -0.11, -0.12], [0.02, -0.01, 0.02], [-0.02, 0.01, -0.02]
"""Differences of three seeds at a site. UP and DOWN are 0.01 from 0, at a standard error of 0.01: t is 4.3."""


@pytest.mark.parametrize(
    ("sites", "wanted", "noisy"),
    [
        ([SURE, SURE], 2, False),
        ([SURE, UP], 2, True),
        ([SURE, UP], 1, False),
        ([SURE, DOWN], 2, True),
        ([SURE, SURELY_NOT], 2, False),
        ([UP, SURELY_NOT], 1, True),
        ([UP, UP], None, True),
        ([SURE, DOWN], None, False),  # means of seeds 0.04, 0.055, 0.04
    ],
)
def test_a_number_of_sites_is_in_doubt_if_it_depends_on_noise(
    sites: list[list[float]], wanted: int | None, noisy: bool
) -> None:
    assert TrendResult(np.array(sites), (0, 1), by=0.0).noisy(wanted) is noisy


def test_a_number_of_sites_without_noise_at_its_limit_is_in_no_doubt() -> None:
    """0.9 - 0.8 is a little less than 0.1. Of two sides that are alike in all seeds, none is above the other."""
    for difference, by, held in [(0.9 - 0.8, 0.1, 2), (0.0, 0.0, 0)]:
        found = TrendResult(np.full((2, 3), difference), (0, 1), by)
        assert found.sites_for == held and not found.noisy(2)


def test_noise_is_told(tmp_path: Path) -> None:
    """Mean 0.1, std sqrt(0.07), standard error sqrt(0.07 / 3) = 0.1528: less than 4.303 times as far."""
    found = row(tmp_path, share_right=noisy)
    assert found["mean_difference"] == pytest.approx(0.1)
    assert found["se"] == pytest.approx(math.sqrt(0.07 / 3))
    assert (found["held"], found["doubt"]) == ("yes", "within the noise of seeds")


def guessing(run, inference, site, role):  # type: ignore[no-untyped-def]
    """Two classes at chance: 0.5 with aggregated BN; 0.8, 0.3, 0.7 over seeds with local BN."""
    return 0.5 if role == "internal" or run.bn == "aggregated" else (0.8, 0.3, 0.7)[run.seed]


@pytest.mark.parametrize("trend", [{}, {"by": -5}, {"within": 20}, {"of": "step_loss", "at": "internal", "within": 1}])
def test_no_claim_holds_where_neither_side_is_above_chance(tmp_path: Path, trend: dict[str, Any]) -> None:
    """Chance is 0.5: local BN is 0.1 above it with a standard error of sqrt(0.07 / 3) = 0.153, the other side 0."""
    found = row(tmp_path, share_right=guessing, trend=trend)
    assert found["held"] == "cannot tell"
    assert found["doubt"].endswith("neither side is above chance")


def test_a_claim_that_fails_at_chance_has_failed(tmp_path: Path) -> None:
    found = row(tmp_path, share_right=guessing, trend={"by": 40})
    assert (found["held"], "neither side is above chance" in found["doubt"]) == ("no", True)


def test_one_side_above_chance_is_enough(tmp_path: Path) -> None:
    """Aggregated BN guesses, local BN is right in 90 %: that one side has not learned is the claim."""
    found = row(tmp_path, share_right=lambda run, *_: 0.9 if run.bn == "local" else 0.5)
    assert (found["held"], found["doubt"]) == ("yes", "")


def test_one_seed(tmp_path: Path) -> None:
    found = row(tmp_path, seeds=[0])
    assert (found["held"], found["doubt"]) == ("yes", "one seed: its noise is not known")
    assert math.isnan(found["se"])


def test_a_gain_of_so_many_points(tmp_path: Path) -> None:
    assert row(tmp_path / "a", trend={"by": 10}, share_right=steady)["held"] == "yes"
    found = row(tmp_path / "b", trend={"by": 11}, share_right=steady)
    assert found["held"] == "no"
    assert "in accuracy by at least 11.0 points at 0 of 2" in found["sentence"]
    assert (
        row(tmp_path / "c", trend={"better": SIDES["than"], "than": SIDES["better"], "by": -10}, share_right=steady)[
            "held"
        ]
        == "yes"
    )


def uneven(run, inference, site, role):  # type: ignore[no-untyped-def]
    """Local BN is 0.4 above at centre1, and 0.1 below at the other external site."""
    return 0.6 + (run.bn == "local") * {"centre1": 0.4, EVIL: -0.1}.get(site, 0)


@pytest.mark.parametrize(
    ("trend", "held"),
    [
        ({}, "yes"),
        ({"at_least": 1}, "yes"),
        ({"at_least": 2}, "no"),
        ({"at_least": "all"}, "no"),
        ({"at": [EVIL]}, "no"),
        ({"at": ["centre1"]}, "yes"),
        ({"at": "internal"}, "no"),
        ({"at": "all"}, "yes"),
    ],
)
def test_where_it_must_hold(tmp_path: Path, trend: dict[str, Any], held: str) -> None:
    assert row(tmp_path, share_right=uneven, trend=trend)["held"] == held


def test_lower_is_better_for_a_loss(tmp_path: Path) -> None:
    """Brier scores are 0.04 for a right and 0.64 for a wrong answer: 0.1 more right answers are 0.06 less."""
    found = row(tmp_path / "a", trend={"of": "brier"})
    assert (found["held"], found["mean_difference"]) == ("yes", pytest.approx(0.06))
    assert "bn local is below bn aggregated in Brier score" in found["sentence"]
    recorded = row(tmp_path / "b", trend={"of": "step_loss", "at": "internal"})
    assert (recorded["held"], recorded["mean_difference"]) == ("no", 0.0)  # the invented losses are equal
    assert "below bn aggregated in step loss at 0 of 2 internal sites" in recorded["sentence"]


def test_traffic_is_what_was_sent(tmp_path: Path) -> None:
    """Every client sends and gets 1000 floats in each of 4 rounds, in the record of its training rows."""
    found = row(tmp_path, trend={"of": "traffic", "at": "internal", "by": -1})
    assert (found["held"], found["mean_difference"]) == ("yes", 0.0)


def test_conditions_are_paired_with_their_like(tmp_path: Path) -> None:
    """TsmoBN is 0.2 above training statistics: each BN policy with itself, at two sites."""
    trend = {"better": ["tsmobn"], "than": {"inference": "source"}}
    found = row(tmp_path, trend=trend)
    assert (found["sites_for"], found["sites"]) == (4, 4)
    assert found["mean_difference"] == pytest.approx(0.2)
    assert "at 4 of 4 pairs of a condition and an external site" in found["sentence"]


def test_the_best_of_several(tmp_path: Path) -> None:
    """FedProx is as FedAvg here; local BN is 0.1 above the better of the two."""
    runs = [{"algorithm": ["fedavg", "fedprox", "fedbn"]}]
    trend = {"better": ["FedBN"], "than": [["FedAvg"], ["FedProx"]]}
    found = row(tmp_path / "a", trend=trend, runs=runs)
    assert found["mean_difference"] == pytest.approx(0.1)
    assert "FedBN is above the best of FedAvg and FedProx in accuracy" in found["sentence"]
    runs[0]["algorithm"] = ["fedavg", "fedprox", "fedbn", "silobn"]
    assert row(tmp_path / "b", trend=trend | {"than": [["FedAvg"], ["FedBN"]]}, runs=runs)["held"] == "no"


def test_the_papers_own_numbers_stand_beside(tmp_path: Path) -> None:
    """Printed: 70 and 75 against 60 and 80, a mean of +2.5 and one site of two; ours of these are +10 and 0."""
    rows = "FedBN,,H4,70,1 FedBN,,centre0,75,1 FedAvg,,H4,60,1 FedAvg,,centre0,80,1 FedAvg,,centre3,1,1"
    found = row(tmp_path, rows, trend={"at": "all", "better": ["FedBN"], "than": ["FedAvg"]})
    assert (found["published_for"], found["published_difference"]) == (1, pytest.approx(0.025))
    assert found["sentence"].endswith("in the paper: 1 of 2, +2.5 (ours at the same: +5.0)")
    alike = row(tmp_path, rows, trend={"at": ["centre0", "centre1"], "better": ["FedBN"], "than": ["FedAvg"]})
    assert alike["sentence"].endswith("in the paper: 1 of 2, +2.5"), "the same sites: said once"
    one = row(tmp_path, rows, trend={"at": "external", "better": ["FedBN"], "than": ["FedAvg"]}, share_right=uneven)
    assert "difference is +15.0 points" in one["sentence"], "+40 and -10"
    assert one["sentence"].endswith("in the paper: 1 of 1, +10.0 (ours at the same: +40.0)")


def test_what_is_missing_is_not_run(tmp_path: Path) -> None:
    found = row(tmp_path / "a", without={"bn": "local"})
    assert found["held"] == "not run"
    assert "not run at centre1" in found["sentence"]
    assert row(tmp_path / "b", trend={"better": {"algorithm": "fedprox"}}, scale="mini")["held"] == "not run"


def test_a_missing_seed_is_told(tmp_path: Path) -> None:
    found = row(tmp_path, share_right=steady, without={"bn": "local", "seed": 2})
    assert (found["held"], found["doubt"]) == ("yes", "2 of 3 seeds")


def test_a_seed_that_is_missing_everywhere_is_told_too(tmp_path: Path) -> None:
    assert row(tmp_path, share_right=steady, without={"seed": 2})["doubt"] == "2 of 3 seeds"


@pytest.mark.parametrize(
    ("trend", "held", "sites"),
    [
        ({"within": 15}, "yes", 1),  # +40 and -10: a mean of +15
        ({"within": 14}, "no", 1),
        ({"within": 9, "at": [EVIL]}, "no", 0),  # -10: as far as it may be, the other way
        ({"within": 10, "at": [EVIL]}, "yes", 1),
        ({"within": 15, "at_least": "all"}, "no", 1),
        ({"within": 40, "at_least": "all"}, "yes", 2),
    ],
)
def test_as_good_as_is_held_against_both_directions(
    tmp_path: Path, trend: dict[str, Any], held: str, sites: int
) -> None:
    found = row(tmp_path, share_right=uneven, trend=trend)
    assert (found["held"], found["sites_for"]) == (held, sites)
    words = f"bn local is as good as bn aggregated in accuracy to {trend['within']}.0 points at {sites} of"
    assert found["sentence"].startswith(words)


def test_as_good_as_is_in_doubt_near_its_bound(tmp_path: Path) -> None:
    """A mean of 0.1 with a standard error of 0.1528: of three seeds, 4.303 of these are 0.657."""
    assert row(tmp_path / "a", share_right=noisy, trend={"within": 75})["doubt"] == "within the noise of seeds"
    assert row(tmp_path / "b", share_right=noisy, trend={"within": 77})["doubt"] == ""


def test_a_trend_has_one_bound(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one bound"):
        row(tmp_path, trend={"within": 1, "by": 2})


def test_made_up_data_do_not_count(tmp_path: Path) -> None:
    assert row(tmp_path, synthetic=True)["reason"] == "synthetic data"
    assert row(tmp_path, scale="mini")["reason"] == "mini scale"


@pytest.mark.parametrize(
    ("trend", "said"),
    [
        ({"better": ["FedBM"]}, "trends.0.better: unknown word 'FedBM'"),
        ({"better": {"algorithm": "fedprox"}}, "trends.0.better: matches nothing that the study runs"),
        ({"at": ["centre2"]}, "trends.0.at: unknown site 'centre2'; did you mean"),
        ({"of": "auc"}, "trends.0.of: the study does not score 'auc'"),
        ({"of": "step_loss", "better": ["tsmobn"]}, "trends.0.better: names an inference"),
        ({"of": "training_loss"}, "trends.0.of: training_loss is not evaluated in every run"),
    ],
)
def test_a_trend_that_is_not_understood(tmp_path: Path, trend: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        row(tmp_path, trend=trend)
    assert said in str(caught.value)


def test_several_conditions_on_a_side_must_be_told_apart(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedprox"}, {"algorithm": {"name": "fedprox", "mu": 0.5}}, {"algorithm": "fedbn"}]
    with pytest.raises(UserError, match=r"trends\.0\.than: matches several conditions at 'centre1'; .*algorithm\.mu"):
        row(tmp_path, trend={"better": ["FedBN"], "than": ["FedProx"]}, runs=runs, published=None)


def test_the_words_are_those_of_the_published_tables(tmp_path: Path) -> None:
    published = {"tables": "fake-table1", "words": WORDS | {"ours": {"bn": "local"}}}
    found = row(tmp_path, "FedBN,base,H4,70,2", trend={"better": ["FedAvg", "ours"]}, published=published)
    assert found["sentence"].startswith("FedAvg + ours is above bn aggregated")
