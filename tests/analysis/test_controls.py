"""What conditions add to a control without a network: levels and paired intervals, worked out by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import fake_study
import intervals
import pytest
from on_page import sections_of

from fedshift.analysis import score, study_results
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table, write_table
from fedshift.page import answer, page, summary
from fedshift.page.study_report import StudyReport
from fedshift.study.plan import Plan

CONTROL = "Control: colour and texture only, no network"
ONE: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "figures": []}


# ---- controls.csv


def controlled(
    root: Path, right: fake_study.ShareRight, level: dict[str, float], patients: int, **changes: Any
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
    """60 and 80 % outside are 10 points from the 70 %.

    The control is right in 7 of 10 samples of each patient outside, and in 8 inside. Patients are alike, and count as
    their samples: 60 of six patients at each site inside, and 300 of 30 outside.
    """
    plan, paths = controlled(tmp_path, fake_study.helps, {"internal": 0.8, "external": 0.7}, 30)
    summary.summarise(study_results.load(plan, paths))
    found = study_results.load(plan, paths)
    (condition,), (partition,) = found.findings.conditions, plan.controls
    values = {role: found.controls.level(partition, role) for role in ("internal", "external")}
    assert {role: value.mean for role, value in values.items()} == pytest.approx({"internal": 0.8, "external": 0.7})
    inside, outside = intervals.alike(6, 10, 0.8), intervals.alike(30, 10, 0.7)
    for role, sites in (("internal", inside), ("external", outside)):
        assert (values[role].low, values[role].high) == pytest.approx(sites.level())
    source, tsmobn = (found.controls.difference(condition.id, key) for key in ("source", "tsmobn"))
    for difference, mean, share in ((source, -0.1, 0.6), (tsmobn, 0.1, 0.8)):
        wanted = intervals.alike(30, 10, share).gain_over(outside)
        assert (difference.mean, difference.low, difference.high) == pytest.approx((mean, *wanted))
    assert found.controls.difference(condition.id, "source", "internal").mean == pytest.approx(0.1)
    assert answer.beside_control(found.controls) == "", "TsmoBN is surely better"
    sections = sections_of(found)
    overview = sections["comparison"].tables[0]
    row = overview.rows[-1]
    shown = dict(zip(overview.header, (cell.text for cell in row), strict=True))
    assert shown["Condition"] == "Control: colour and texture only, no network"
    assert (shown["Internal mean"], shown["External mean"], shown["Gap"]) == ("80.0", "70.0", "+10.0")
    assert (shown["Inference"], shown["External loss recovered"]) == ("–", "–")
    (sites,) = sections["sites"].tables
    assert sites.header[-1] == "Control, no network"
    assert [(r[0].text, r[-1].text) for r in sites.rows] == [
        *((site, "80.0") for site in fake_study.INTERNAL),
        *((site, "70.0") for site in fake_study.EXTERNAL),
    ]
    gap = found.controls.gap(partition)
    assert (gap.mean, gap.low, gap.high) == pytest.approx((0.1, *inside.minus(outside)))
    (written,) = [row for row in written_rows(plan, paths, "overview") if row["Condition"] == CONTROL]
    columns = [f"95% interval ({name})" for name in ("Internal mean", "External mean", "Gap")]
    assert [written[name] for name in columns] == [
        intervals.percent(*found) for found in (inside.level(), outside.level(), inside.minus(outside))
    ]
    assert [row[f"95% interval ({summary.CONTROL_COLUMN})"] for row in written_rows(plan, paths, "sites")] == (
        [intervals.percent(*intervals.alike(6, 10, 0.8, sites=1).level())] * len(fake_study.INTERNAL)
        + [intervals.percent(*intervals.alike(30, 10, 0.7, sites=1).level())] * len(fake_study.EXTERNAL)
    )
    for name in ("overview", "sites"):
        assert "no network" in paths.study_files(plan.name).table(name, "csv").read_text(encoding="utf-8")


def test_controls_of_the_same_sites_are_told_apart(tmp_path: Path) -> None:
    """With fewer training images the control is another one, of the same sites: each row names a condition."""
    runs = [{"algorithm": "fedavg"}, {"algorithm": "fedavg", "partition": {"limit": {"train": 2}}}]
    plan, paths = controlled(tmp_path, fake_study.helps, {"internal": 0.8, "external": 0.7}, 10, runs=runs)
    summary.summarise(study_results.load(plan, paths))
    found = study_results.load(plan, paths)
    assert len(plan.controls) == 2
    rows = summary.overview(found.findings, controls=found.controls).rows[-2:]
    titles = [condition.title for condition in found.findings.conditions]
    assert len({*titles}) == 2
    assert [row[0] for row in rows] == [f"{CONTROL}, on the images of {title}" for title in titles]


def written_rows(plan: Plan, paths: Paths, name: str) -> list[dict[str, str]]:
    with paths.study_files(plan.name).table(name, "csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_answer_says_that_no_condition_is_surely_better(tmp_path: Path) -> None:
    plan, paths = controlled(tmp_path, fake_study.helps, {"internal": 0.5, "external": 0.8}, 30)
    summary.summarise(study_results.load(plan, paths))
    said = StudyReport(study_results.load(plan, paths)).control
    of_level = intervals.percent(*intervals.alike(30, 10, 0.8).level())
    assert said == (
        "No condition is surely better at external sites than a control that sees colour and texture only, without a "
        f"network. Its accuracy there is 80.0\N{NO-BREAK SPACE}% (95% interval {of_level} over patients); the best "
        "condition, FedAvg, aggregated BN with TsmoBN, has 80.0\N{NO-BREAK SPACE}%."
    )
    assert said in page.write(study_results.load(plan, paths)).read_text(encoding="utf-8")


def test_with_few_patients_nobody_can_tell(tmp_path: Path) -> None:
    plan, paths = controlled(tmp_path, fake_study.helps, {"internal": 0.8, "external": 0.5}, 4)
    summary.summarise(study_results.load(plan, paths))
    said = StudyReport(study_results.load(plan, paths)).control
    assert said.startswith("Nobody can tell whether any condition is better at external sites than a control")


def test_without_its_predictions_a_control_is_nowhere(tmp_path: Path) -> None:
    """And scores.csv is the same with it and without it."""
    plan, paths = controlled(tmp_path / "with", fake_study.helps, {"internal": 0.8, "external": 0.8}, 6)
    without, there = fake_study.build(tmp_path / "without", **ONE)
    score.score(without, there)
    summary.summarise(study_results.load(plan, paths))
    summary.summarise(study_results.load(without, there))
    assert there.study_files("fake").scores.read_bytes() == paths.study_files("fake").scores.read_bytes()
    both = [root.study_files("fake").result("effects").read_bytes() for root in (there, paths)]
    assert both[0] == both[1]
    found = study_results.load(without, there)
    assert found.table("controls").empty and not found.controls
    sections = sections_of(found)
    assert StudyReport(found).control == ""
    assert "network" not in str(sections["comparison"].tables[0]) + str(sections["sites"].tables)


def test_means_over_partitions_that_leave_out_other_sites(tmp_path: Path) -> None:
    """Each hospital is left out once. A patient who is tested in both partitions counts once in the mean."""
    two = [
        {"internal": ["A", "B"], "external": ["C"], "held_out": "C"},
        {"internal": ["A", "C"], "external": ["B"], "held_out": "B"},
    ]
    levels = {"internal": 0.8, "external": 0.8}
    plan, paths = controlled(tmp_path, fake_study.helps, levels, 30, partition=two)
    summary.summarise(study_results.load(plan, paths))
    found = study_results.load(plan, paths)
    family = found.findings.conditions[0].family
    assert found.controls.level("*", "external").mean == pytest.approx(0.8)
    assert found.controls.difference(family, "tsmobn").mean == pytest.approx(0)
    assert found.controls.difference(family, "source").mean == pytest.approx(-0.2)
    told = answer.beside_control(found.controls)
    assert "the best condition, FedAvg, aggregated BN with TsmoBN, has 80.0" in told
    rows = [row for row in sections_of(found)["comparison"].tables[0].rows if row[0].text == CONTROL]
    assert [row[1].text for row in rows] == ["C", "B"]
