"""Three sentences for a clinician: what was tested, what came out, what may be concluded; and how to read the rest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fake_study
import intervals
import pytest
from scored_study import results_of

from fedshift.analysis.findings import Findings
from fedshift.analysis.study_results import StudyResults
from fedshift.page.answer import answer, how_to_read, three_sentences
from fedshift.page.phrases import HOSPITALS

ONE: dict[str, Any] = {
    "runs": [{"algorithm": "fedavg"}],
    "figures": [],
    "partition": {"internal": fake_study.INTERNAL, "external": ("centre1", "centre2")},
}
JARGON = re.compile(
    r"FedAvg|TsmoBN|Source|\bBN\b|batch norm|aggregat|interval|95|margin|variance|seed|metric|± |standard dev|p value|"
    r"significan|inference|condition|internal|external",
    re.IGNORECASE,
)


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_study, "PATIENTS", 30)


def loaded(root: Path, inside: float, outside: float, **changes: Any) -> StudyResults:
    def right(run: object, inference: str, site: str, role: str) -> float:
        return inside if role == "internal" else {"source": outside}.get(inference, 0.9)

    return results_of(root, right, **ONE | changes)


def said(findings: Findings, faulty: bool = False, synthetic: bool = False) -> list[str]:
    told = answer(findings)
    return three_sentences(findings, told.condition, told.judged, HOSPITALS, faulty, synthetic)


def numbers(lines: list[str]) -> list[str]:
    """The numbers of the sentences, without those in names of hospitals."""
    return re.findall(r"\d[\d.,]*\d|\d", re.sub(r"centre\d", "", " ".join(lines)))


MOST = f"{100 * intervals.alike(6, 10, 0.9).minus(intervals.alike(30, 10, 0.8))[1]:.1f}"
"""The upper end of a loss from 90 to 80 %, of two sites each."""


@pytest.mark.parametrize(
    ("inside", "outside", "changes", "came_out", "concluded"),
    [
        (0.9, 0.6, {}, "was 30.0 points worse than at home, and at least ", "works less well in these hospitals"),
        (0.8, 1.0, {"margin": 0.1}, "was no worse than at home", "at least as well in these hospitals as at home"),
        (0.9, 0.8, {"margin": 0.2}, f"was 10.0 points worse than at home, and at most {MOST}", "nearly as well in"),
        (0.9, 0.1, {}, "At centre1 and centre2 its answers point the wrong way", "how the labels are coded there"),
        (
            0.5,
            0.6,
            {},
            "Even at the hospitals that trained it, its AUC was 0.500",
            "that it is of more use than guessing",
        ),
        (0.9, 0.6, {"partition": {"internal": ["centre0", "centre3"]}}, "There, its accuracy was 90.0", "took no part"),
        (
            0.9,
            0.6,
            {"runs": [{"algorithm": "local"}]},
            "There, its accuracy was 90.0",
            "any of these models would do in another hospital",
        ),
    ],
    ids=["loses", "no worse", "holds up", "worse than guessing", "not at home", "no hospital outside", "alone"],
)
def test_three_sentences_without_a_method_and_with_three_numbers(
    tmp_path: Path, inside: float, outside: float, changes: dict[str, Any], came_out: str, concluded: str
) -> None:
    lines = said(loaded(tmp_path, inside, outside, **changes).findings)
    assert len(lines) == 3
    assert all(line.endswith(".") and line.count(". ") == 0 for line in lines)
    assert came_out in lines[1]
    assert re.search(concluded, lines[2]) and lines[2].startswith("So ")
    assert len(numbers(lines)) <= 3, lines
    assert not JARGON.search(" ".join(lines)), lines


def test_they_say_who_was_tested_where(tmp_path: Path) -> None:
    """30 patients of each hospital: all of those outside are tested."""
    lines = said(loaded(tmp_path, 0.9, 0.6).findings)
    assert lines[0] == (
        "Two hospitals trained a model together; it was tested on 60 patients of two hospitals that took no part "
        "(centre1 and centre2)."
    )
    assert lines[2].endswith("but not how it would do in any other hospital.")


def test_a_wide_interval_concludes_nothing(tmp_path: Path) -> None:
    """Losses of -10, 20 and 50 points over trainings: their mean is 20, and chance alone may give it."""

    def right(run: Any, inference: str, site: str, role: str) -> float:
        return 0.7 if role == "internal" else {"source": 0.8 - 0.3 * run.seed}.get(inference, 0.9)

    lines = said(results_of(tmp_path, right, **ONE).findings)
    assert lines[1].startswith("Outside, its accuracy came out 20.0 points worse than at home, but with other patients")
    assert lines[1].endswith("points worse, or no worse at all.")
    assert "neither that it holds up in these hospitals nor that it fails there" in lines[2]
    assert len(numbers(lines)) == 3


def test_with_few_patients_only_the_loss_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_study, "PATIENTS", 4)
    _, came_out, concluded = said(loaded(tmp_path, 0.9, 0.8).findings)
    assert came_out.endswith("but too few patients were tested to say how sure the result is.")
    # What TsmoBN is worth there may be sure all the same.
    assert concluded == (
        "So you may not conclude whether it holds up in these hospitals: more patients must be tested first."
    )


def test_each_hospital_in_turn(tmp_path: Path) -> None:
    runs = {"partition": {"internal": ["centre0", "centre1", "centre3"], "leave_one_out": True}}
    found = loaded(tmp_path, 1.0, 0.7, **runs).findings
    assert found.averaged
    first = said(found)[0]
    assert first.startswith("Three hospitals were left out of the training in turn")
    assert first.endswith("on 90 patients.")


def test_faults_and_invented_images_come_before_any_conclusion(tmp_path: Path) -> None:
    found = loaded(tmp_path, 1.0, 0.7).findings
    assert said(found, faulty=True)[2].startswith("Conclude nothing before the faults of the data")
    assert said(found, synthetic=True)[2].startswith("The images are invented and show nothing about any hospital")


def test_without_scores_there_are_none(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}]
    assert said(results_of(tmp_path, without={"bn": "aggregated"}, **ONE | {"runs": runs}).findings) == []


def test_how_to_read_names_only_marks_that_are_there(tmp_path: Path) -> None:
    found = loaded(tmp_path, 1.0, 0.7, margin=0.1).findings
    both = dict(how_to_read(found, found.conditions[0], HOSPITALS, adapted=True, control=True))
    assert {"Rows", "Round marks and bars", "Diamonds", "Squares", "Dotted lines", "Grey band"} < set(both)
    assert "10.0 points" in both["Grey band"]
    neither = dict(how_to_read(found, found.conditions[0], HOSPITALS, adapted=False, control=False))
    assert set(both) - set(neither) == {"Diamonds", "Squares"}


def test_rows_of_hospitals_that_are_left_out_in_turn_have_no_line_between_them(tmp_path: Path) -> None:
    partition = {"internal": ["centre0", "centre1", "centre3"], "leave_one_out": True}
    found = loaded(tmp_path, 0.9, 0.8, partition=partition).findings
    rows = dict(how_to_read(found, found.conditions[0], HOSPITALS, adapted=False, control=False))["Rows"]
    assert "Each was tested by a model that the other hospitals trained" in rows
    assert "line" not in rows
