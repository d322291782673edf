"""What conditions add to a control without a network: levels and paired intervals, worked out by hand."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from fedshift.analysis import auc, results, score
from fedshift.analysis.estimates import Estimate, of_means, over_sites, scaled
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table, write_table
from fedshift.metrics import placements
from fedshift.metrics.auc import AUC
from fedshift.report import control, page, summary
from fedshift.study.plan import Plan

ONE: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "figures": []}


# ---- estimates


def test_the_influence_of_a_ratio_gives_its_linearised_variance() -> None:
    """Correct [8, 3, 10, 1] of [10, 4, 10, 6] in four patients: 22 / 30, with standard error 0.1683030776."""
    right, of = [8, 3, 10, 1], [10, 4, 10, 6]
    each = np.concatenate([[1.0] * a + [0.0] * (b - a) for a, b in zip(right, of, strict=True)])
    one = of_means(each, np.repeat(np.arange(4), of))
    assert one.mean == pytest.approx(22 / 30)
    assert math.sqrt(one.spread.variance) == pytest.approx(0.1683030776, abs=1e-6)
    assert one.spread.df == 3


def test_the_influence_of_an_auc_gives_the_clustered_variance_up_to_the_factors_of_the_classes() -> None:
    """Either class is in all of the clusters, so that one factor k / (k - 1) applies to all terms."""
    y = np.array([1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 0, 1])
    s = np.array([0.9, 0.6, 0.7, 0.5, 0.8, 0.75, 0.2, 0.3, 0.55, 0.65, 0.1, 0.4])
    clusters = np.array([0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4])
    one = of_means(AUC().per_sample(y, np.stack([1 - s, s], 1)), clusters)
    area = placements(y == 1, s)
    assert one.mean == pytest.approx(area.area)
    assert one.spread.variance == pytest.approx(auc.variance(area, y == 1, clusters))


def test_a_difference_from_a_copy_of_itself_has_no_variance() -> None:
    each, clusters = np.array([1.0, 0, 1, 1, 0, 1]), np.array(list("aabbcc"))
    one = of_means(each, clusters)
    assert one.minus(one).spread.variance == 0
    assert one.minus(of_means(1 - each, clusters)).spread.variance == pytest.approx(4 * one.spread.variance)


def test_patients_who_are_at_two_sites_count_once() -> None:
    """The mean of a site and its copy has the variance of the site; that of two independent sites has half of it."""
    each, clusters = np.array([1.0, 0, 1, 1, 0, 1]), np.array(list("aabbcc"))
    one, other = of_means(each, clusters), of_means(each, np.array(list("ddeeff")))
    assert over_sites([one, one]).spread.variance == pytest.approx(one.spread.variance)
    assert over_sites([one, other]).spread.variance == pytest.approx(one.spread.variance / 2)


def test_the_interval_holds_patients_and_trainings() -> None:
    """Sum of both variances, with Satterthwaite's degrees of freedom: 0.02 with 8 and 0.03 / 3 with 2 of them."""
    influence = pd.Series(np.sqrt([0.02 / 9] * 9))
    one = Estimate(np.array([0.5, 0.5 - math.sqrt(0.03), 0.5 + math.sqrt(0.03)]), influence, 9)
    df = 0.03**2 / (0.02**2 / 8 + 0.01**2 / 2)
    half = student.ppf(0.975, df) * math.sqrt(0.03)
    assert one.interval() == pytest.approx((0.5 - half, 0.5 + half))
    assert np.isnan(one._replace(patients=4).interval()).all(), "too few patients"
    assert scaled(np.ones(2), np.array([0, 0])).isna().all(), "one patient alone"


# ---- controls.csv


def controlled(
    root: Path, right: fake_study.Right, level: dict[str, float], patients: int, **changes: Any
) -> tuple[Plan, Paths]:
    """A project whose control is right in a share of each patient's samples, by role."""
    fake_study.PATIENTS = patients
    plan, paths = fake_study.build(root, right, **ONE | changes)
    for key, run in plan.controls.items():
        assigned = read_table(paths.partition(key))
        table = read_table(paths.data(run.data.id) / "samples.parquet")
        test = assigned[assigned["split"] == "test"].merge(table[["sample", "label", "patient"]], on="sample")
        write_table(paths.control(key), fake_study.predict(test, run, "", lambda r, i, site, role: level[role]))
    score.score(plan, paths)
    return plan, paths


@pytest.fixture(autouse=True)
def _patients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_study, "PATIENTS", fake_study.PATIENTS)


def test_levels_and_differences_from_the_control(tmp_path: Path) -> None:
    """All patients are alike, so that intervals have no width: 60 and 80 % outside are 10 points from the 70 %.

    The control is right in 7 of 10 samples of each patient outside, and in 8 inside.
    """
    plan, paths = controlled(tmp_path, fake_study.helps, {"internal": 0.8, "external": 0.7}, 30)
    summary.summarise(plan, paths)
    found = results.load(plan, paths)
    (condition,), (partition,) = found.findings.conditions, plan.controls
    values = {role: found.controls.level(partition, role) for role in ("internal", "external")}
    assert {role: value.mean for role, value in values.items()} == pytest.approx({"internal": 0.8, "external": 0.7})
    assert (values["external"].low, values["external"].high) == pytest.approx((0.7, 0.7))
    source, tsmobn = (found.controls.difference(condition.id, key) for key in ("source", "tsmobn"))
    assert (source.mean, source.low, source.high) == pytest.approx((-0.1, -0.1, -0.1))
    assert (tsmobn.mean, tsmobn.low, tsmobn.high) == pytest.approx((0.1, 0.1, 0.1))
    assert found.controls.difference(condition.id, "source", "internal").mean == pytest.approx(0.1)
    assert control.sentence(found.controls) == "", "TsmoBN is surely better"
    context = page.context(found)
    row = context["overview"].rows[-1]
    shown = dict(zip(context["overview"].header, (cell.text for cell in row), strict=True))
    assert shown["Condition"] == "Control: colour and texture only, no network"
    assert (shown["Internal mean"], shown["External mean"], shown["Gap"]) == ("80.0", "70.0", "+10.0")
    assert (shown["Inference"], shown["External loss recovered"]) == ("–", "–")
    (sites,) = context["sites"]
    assert sites.header[-1] == "Control, no network"
    assert [(r[0].text, r[-1].text) for r in sites.rows] == [
        *((site, "80.0") for site in fake_study.INTERNAL),
        *((site, "70.0") for site in fake_study.EXTERNAL),
    ]
    gap = found.controls.gap(partition)
    assert (gap.mean, gap.low, gap.high) == pytest.approx((0.1, 0.1, 0.1))
    (written,) = [row for row in written_rows(plan, paths, "overview") if row["Condition"] == control.NAME]
    columns = [f"95% interval ({name})" for name in ("Internal mean", "External mean", "Gap")]
    assert [written[name] for name in columns] == ["80.0 to 80.0", "70.0 to 70.0", "10.0 to 10.0"]
    assert [row[f"95% interval ({control.SHORT})"] for row in written_rows(plan, paths, "sites")] == (
        ["80.0 to 80.0"] * len(fake_study.INTERNAL) + ["70.0 to 70.0"] * len(fake_study.EXTERNAL)
    )
    for name in ("overview", "sites"):
        assert "no network" in paths.study_files(plan.name).table(name, "csv").read_text(encoding="utf-8")


def written_rows(plan: Plan, paths: Paths, name: str) -> list[dict[str, str]]:
    with paths.study_files(plan.name).table(name, "csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_answer_says_that_no_condition_is_surely_better(tmp_path: Path) -> None:
    plan, paths = controlled(tmp_path, fake_study.helps, {"internal": 0.8, "external": 0.8}, 30)
    summary.summarise(plan, paths)
    said = page.context(results.load(plan, paths))["control"]
    assert said == (
        "No condition is surely better at external sites than a control that sees colour and texture only, without a "
        "network. Its accuracy there is 80.0\N{NO-BREAK SPACE}% (95% interval 80.0 to 80.0 over patients); the best "
        "condition, FedAvg, aggregated BN with TsmoBN, has 80.0\N{NO-BREAK SPACE}%."
    )
    assert said in page.write(plan, paths).read_text(encoding="utf-8")


def test_with_few_patients_nobody_can_tell(tmp_path: Path) -> None:
    plan, paths = controlled(tmp_path, fake_study.helps, {"internal": 0.8, "external": 0.5}, 4)
    summary.summarise(plan, paths)
    said = page.context(results.load(plan, paths))["control"]
    assert said.startswith("Nobody can tell whether any condition is better at external sites than a control")


def test_without_its_predictions_a_control_is_nowhere(tmp_path: Path) -> None:
    """And scores.csv is the same with it and without it."""
    plan, paths = controlled(tmp_path / "with", fake_study.helps, {"internal": 0.8, "external": 0.8}, 6)
    without, there = fake_study.build(tmp_path / "without", **ONE)
    score.score(without, there)
    summary.summarise(plan, paths)
    summary.summarise(without, there)
    assert there.study_files("fake").scores.read_bytes() == paths.study_files("fake").scores.read_bytes()
    assert there.study_files("fake").effects.read_bytes() == paths.study_files("fake").effects.read_bytes()
    found = results.load(without, there)
    assert found._table("controls").empty and not found.controls
    context = page.context(found)
    assert context["control"] == "" and "network" not in str(context["overview"]) + str(context["sites"])


def test_means_over_partitions_that_leave_out_other_sites(tmp_path: Path) -> None:
    """Each hospital is left out once. A patient who is tested in both partitions counts once in the mean."""
    two = [
        {"internal": ["A", "B"], "external": ["C"], "held_out": "C"},
        {"internal": ["A", "C"], "external": ["B"], "held_out": "B"},
    ]
    levels = {"internal": 0.8, "external": 0.8}
    plan, paths = controlled(tmp_path, fake_study.helps, levels, 30, partition=two)
    summary.summarise(plan, paths)
    found = results.load(plan, paths)
    family = found.findings.conditions[0].family
    assert found.controls.level("*", "external").mean == pytest.approx(0.8)
    assert found.controls.difference(family, "tsmobn").mean == pytest.approx(0)
    assert found.controls.difference(family, "source").mean == pytest.approx(-0.2)
    assert "the best condition, FedAvg, aggregated BN with TsmoBN, has 80.0" in control.sentence(found.controls)
    rows = [row for row in page.context(found)["overview"].rows if row[0].text == control.NAME]
    assert [row[1].text for row in rows] == ["C", "B"]
