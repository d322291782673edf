"""What the page says of prediction sets: a promise at home, a measurement outside, and why there may be no number."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from fake_study import predictions_of
from sets_study import made

from fedshift.analysis.study_results import StudyResults
from fedshift.io.tables import read_table, write_table
from fedshift.page import page, threshold_and_probabilities
from fedshift.page.html import Section
from fedshift.page.phrases import Nouns


def section(results: StudyResults, known: bool = True) -> Section:
    found = threshold_and_probabilities.conformal_section(results, Nouns.of(results.plan, known))
    assert found is not None
    return found


def said(section: Section) -> str:
    return " ".join(section.lines).replace("\N{NO-BREAK SPACE}", " ")


def shown(section: Section) -> dict[str, dict[str, str]]:
    """The cells of the first table by site and column, each with the small line below it."""
    (table, *_) = section.tables
    rows = [[f"{cell.text} | {cell.below}".removesuffix(" | ") for cell in row] for row in table.rows]
    return {row[0]: dict(zip(table.header, row, strict=True)) for row in rows}


def test_home_is_promised_and_outside_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = made(tmp_path, monkeypatch)
    found = section(results)
    assert found.lines[0].replace("\N{NO-BREAK SPACE}", " ") == (
        "FedAvg, aggregated BN with Source: outside, the 90 % promised at home are broken at centre1 (75.0 %)."
    )
    assert found.lines[1].replace("\N{NO-BREAK SPACE}", " ") == (
        "At internal sites the set of a new patient, from the mean probabilities of its images, holds its class with a "
        "probability of 90 % or more, over validation and test patients together. The new patient is of the mixture of "
        "these sites: a single site, or a class, may have less. At external sites nothing is promised: what stands "
        "there is measured."
    )
    assert found.lines[2:] == [
        "The round that was kept was not chosen by the validation images that calibrate the sets."
    ]
    rows = shown(found)
    assert list(rows) == ["centre0", "centre3", "centre1"]
    assert rows["centre1"] == {
        "Site": "centre1",
        "Role": "external",
        "Inference": "Source",
        "Calibrated on": "24 | 82 to 98",  # Beta(23, 2): 24 x^23 - 23 x^24 is 0.05 at 0.817 and 0.95 at 0.985
        "Patients": "40",
        "Quantile": "0.400",
        "Coverage": "75.0 | 59.8 to 85.8",
        "Set size": "1.00",
        "One class": "100.0",
        "Several": "0.0",
        "No class fits": "0.0",
        "Coverage of each class (n)": "healthy 100.0 (20), tumour & <b>friends</b> 50.0 (20)",
        "Verdict": "broken",
    }
    content = page.write(results).read_text(encoding="utf-8")
    text = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", content))).replace("\N{NO-BREAK SPACE}", " ")
    assert "At external sites nothing is promised" in text
    assert 'id="conformal"' in content and "fake-conformal.csv" in content, "the section, and the file to download"


def test_outside_is_measured_for_the_condition_that_the_page_is_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = [{"algorithm": "fedavg"}, {"algorithm": "fedprox"}]
    first = section(made(tmp_path / "first", monkeypatch, runs=two))
    assert first.lines[0].startswith("FedAvg, aggregated BN with Source: outside,")
    primary = {"condition": {"algorithm": "fedprox"}, "against": {"algorithm": "fedavg"}}
    declared = section(made(tmp_path / "declared", monkeypatch, runs=two, primary=primary))
    assert declared.lines[0].startswith("FedProx, aggregated BN with Source: outside,")


@pytest.mark.parametrize(
    ("training", "warned"),
    [
        ({"select": "best_validation"}, True),
        ({"select": "last"}, False),
        ({"select": "best_validation", "select_at": ["centre2"]}, False),
    ],
)
def test_a_choice_by_the_same_patients_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: dict[str, Any], warned: bool
) -> None:
    text = said(section(made(tmp_path, monkeypatch, training={"rounds": 4} | training)))
    assert ("Warning: the validation images that calibrate the sets also chose the round" in text) == warned


def test_too_few_patients_are_named_with_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = section(made(tmp_path, monkeypatch, patients=10))
    row = shown(found)["centre1"]
    assert row["Verdict"] == "no promise possible with n = 6" and row["Quantile"] == "none possible"
    assert row["Coverage"] == "–" and row["Set size"] == "–" and row["Calibrated on"] == "6"
    assert not found.lines[0].startswith("FedAvg"), "nothing was measured"


def test_why_there_are_no_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = section(made(tmp_path / "mixed", monkeypatch, change=None))
    assert "No sets for Source: images of one patient are of several classes. With unit: one, one image " in said(mixed)
    results = made(tmp_path / "absent", monkeypatch)
    file = predictions_of(results.plan, results.paths, next(iter(results.plan.runs)))
    table = read_table(file)
    write_table(file, table[table["split"] == "test"])
    absent = section(results)
    assert "No sets for Source: a training has no predictions of validation images." in said(absent)
    assert {row["Verdict"] for row in shown(absent).values()} == {"not predicted"}


def test_short_streams_and_unknown_patients_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 validation images a site are one batch of 32, or six of 4; the network alone asks for no batch."""
    inferences: list[Any] = ["source", "tsmobn", {"name": "tsmobn", "batch_size": 4}]
    found = section(made(tmp_path, monkeypatch, inferences=inferences), known=False)
    assert "TsmoBN (batch_size 32): some site has fewer than 5 batches of validation images," in said(found)
    assert "No patient is known: each image counts as if it came from another patient" in said(found)


def test_a_study_without_sets_has_no_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = made(tmp_path, monkeypatch, conformal=None)
    assert threshold_and_probabilities.conformal_section(results, Nouns()) is None
    content = page.write(results).read_text(encoding="utf-8")
    assert 'id="conformal"' not in content and "conformal.csv" not in content
