"""The page of a study in folds: one condition a method, and every patient counted once."""

from __future__ import annotations

from pathlib import Path

import fake_study
import pytest
from on_page import sections_of
from scored_study import summarised

from fedshift.analysis.study_results import load
from fedshift.page.cohort import cohorts
from fedshift.page.sections import concerns
from fedshift.page.study_report import StudyReport

STUDY = {
    "partition": {"internal": ["a", "b"], "external": ["x"], "split": {"folds": 5, "val": 0.2}},
    "runs": [{"algorithm": "fedavg"}],
    "figures": ["decision_curve"],
    "metrics": ["auc"],
    "headline": "auc",
}


def test_images_that_are_prepared_in_two_ways_are_told_apart(tmp_path: Path) -> None:
    prepared = {"algorithm": "fedavg", "transforms": ["macenko", "scale_intensity"]}
    plan, paths = summarised(tmp_path, **STUDY | {"runs": [{"algorithm": "fedavg"}, prepared]})
    titles = [cohort.title for cohort in cohorts(load(plan, paths))]
    assert titles == [
        f"x, fold {fold}, images of FedAvg [prepare={way}], aggregated BN"
        for way in ("none, transforms=none", "macenko, transforms=scale_intensity")
        for fold in range(1, 6)
    ]


def test_patients_of_all_folds_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 patients at each site, three or four of whom a fold tests: of the whole they are not few."""
    monkeypatch.setattr(fake_study, "PATIENTS", 16)
    plan, paths = summarised(tmp_path, **STUDY)
    loaded = load(plan, paths)
    report = StudyReport(loaded)
    shown = sections_of(loaded)
    people = cohorts(loaded)
    assert [cohort.title for cohort in people] == [f"x, fold {k}" for k in range(1, 6)]
    assert not any(cohort.few for cohort in people)
    assert not any("Few to test on" in concern.text for concern in concerns(loaded, people, report.runs))
    assert not report.findings.several
    (sites,) = shown["sites"].tables
    assert [row[0].text for row in sites.rows] == ["a", "b", "x"]
    assert [row[3].text for row in sites.rows] == ["16", "16", "16"]
    assert "missing" not in shown
