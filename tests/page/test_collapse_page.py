"""What the page says of test-time adaptation: a collapse, what methods kept, and settings that switch them off."""

from __future__ import annotations

import functools
import html
import math
import re
from pathlib import Path
from typing import Any

import fake_study
import pytest
from fake_study import predictions_of

from fedshift.analysis import score, study_results
from fedshift.inferences import COUNT
from fedshift.inferences.eta import ETA
from fedshift.inferences.sar import SAR
from fedshift.inferences.tent import Tent
from fedshift.io.tables import read_table, write_table
from fedshift.page import page, summary

OFF = {"name": "eta", "similarity": 0.05}
HEADER = ["Site", "Role", "Inference", "Spread", "Spread of Source", "Largest class", "Entropy", "As Source"]


def made(
    root: Path, inferences: list[Any], counts: dict[str, dict[str, int]], **changes: Any
) -> study_results.StudyResults:
    """A study in which inferences with counts predict one class in their first run, and have these counts."""
    settings = {"runs": [{"algorithm": "fedavg"}], "figures": [], "inferences": inferences, "control": False}
    settings |= {"partition": {"internal": ["centre0"], "external": ["centre1"]}, "metrics": ["accuracy"]}
    plan, paths = fake_study.build(root, lambda *_: 0.8, **settings | changes)
    for number, run in enumerate(plan.runs):
        path = predictions_of(plan, paths, run)
        table = read_table(path)
        for key, inference in plan.inferences.items():
            if inference.name in counts:
                one = {"p0": 0.01, "p1": 0.99} if number == 0 else {}
                columns = {f"{COUNT}{name}": value for name, value in counts[inference.name].items()}
                rows = table["inference"] == key
                for name, value in (one | columns).items():
                    table.loc[rows, name] = value
        write_table(path, table)
    score.score(plan, paths)
    summary.summarise(study_results.load(plan, paths))
    return study_results.load(plan, paths)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> study_results.StudyResults:
    counts = {
        "tent": {},
        "eta": {"seen": 60, "kept": 0, "steps": 0},
        "sar": {"seen": 60, "kept": 15, "steps": 2, "resets": 1},
        "eata": {"seen": 60, "kept": 60, "steps": 2, "asked": 20_000},
    }
    names = ["source", "tsmobn", "tent", OFF, "sar", "eata"]
    return made(tmp_path_factory.mktemp("adapted"), names, counts, seeds=[0, 1])


@functools.cache
def written(study: study_results.StudyResults) -> str:
    return page.write(study_results.load(study.plan, study.paths)).read_text()


def section(study: study_results.StudyResults) -> tuple[str, list[str]]:
    """Return the section's text and the rows of its tables."""
    text = written(study)
    found = re.search(r'<section id="collapse".*?</section>', text, re.S)
    assert found
    rows = [re.sub(r"<[^>]+>|\s+", " ", row) for row in re.findall(r"<tr.*?</tr>", found[0], re.S)]
    return html.unescape(re.sub(r"\s+", " ", found[0])), [" ".join(html.unescape(row).split()) for row in rows]


def test_a_collapse_is_named_and_counted(adapted: study_results.StudyResults) -> None:
    text, rows = section(adapted)
    assert "Predictions collapsed: TENT at centre0 (FedAvg, aggregated BN), " in text
    assert rows[0] == " ".join([*HEADER, "What it did", "Collapsed"])
    (tent,) = (row for row in rows if row.startswith("centre1 external TENT"))
    assert tent == "centre1 external TENT 54.0 100.0 75.0 40.1 75.0 – 1 of 2 trainings"
    assert 'class="num worse">1 of 2 trainings' in text
    assert "more than 95 % of images are predicted as one class" in text


def test_what_was_kept_and_what_was_reset_is_shown_for_two_classes(adapted: study_results.StudyResults) -> None:
    _, rows = section(adapted)
    cells = {row.split()[2]: row for row in rows if row.startswith("centre1 external")}
    assert "kept 0.0 % of images, 0 steps" in cells["ETA"]
    assert "kept 25.0 % of images, 4 steps, 2 resets" in cells["SAR"]
    assert "TsmoBN" not in cells, "it adapts statistics alone"


def test_a_setting_that_switches_a_method_off_is_a_warning(adapted: study_results.StudyResults) -> None:
    text, _ = section(adapted)
    assert "Warning about ETA: similarity 0.05 lets hardly any image pass: with 2 classes" in text
    assert "ETA changed nothing in a training or more at centre0 and centre1: no image" in text
    assert "SAR changed nothing" not in text


def test_what_was_asked_of_internal_sites_is_said(adapted: study_results.StudyResults) -> None:
    assert "For EATA, each internal site sent 20,000 floats once, after the training" in section(adapted)[0]


def test_the_table_is_offered_and_the_word_explained(adapted: study_results.StudyResults) -> None:
    text = written(adapted)
    assert 'download="synthetic-fake-collapse.csv"' in text
    assert "predictions end in one class, whatever the image" in text


def test_a_study_whose_methods_adapt_statistics_alone_has_no_section(tmp_path: Path) -> None:
    study = made(tmp_path, ["source", "tsmobn"], {}, seeds=[0])
    text = written(study)
    assert 'id="collapse"' not in text
    assert "Collapse:" not in text
    assert len(study.table("collapse")) == 2, "it has a table"


def test_without_a_collapse_the_page_says_so(tmp_path: Path) -> None:
    text, _ = section(made(tmp_path, ["source", "tent"], {}, seeds=[0]))
    assert "Predictions collapsed at no site." in text


@pytest.mark.parametrize(
    ("inference", "classes", "expected"),
    [
        (ETA(), 2, ""),
        (ETA(similarity=0.4), 10, ""),
        (ETA(similarity=0.4), 2, "similarity 0.4 lets hardly any image pass: with 2 classes"),
        (ETA(similarity=0.05), 400, "with 400 classes no cosine with an even mean is below 0.050"),
        (ETA(similarity=0.05), 1000, ""),
        (SAR(), 2, ""),
        (
            SAR(reset=0.2 / math.log(2)),
            2,
            "reset 0.289 undoes nearly all steps: with 2 classes images count below an entropy",
        ),
        (Tent(), 2, ""),
    ],
)
def test_which_settings_switch_a_method_off(inference: Any, classes: int, expected: str) -> None:
    """1 / sqrt(K) is .707, .316, .05 and .032 for 2, 10, 400 and 1,000 classes; SAR's published reset is 0.2 nats."""
    hint = inference.hint(classes)
    assert (expected in hint) if expected else hint == ""


class Signals(fake_study.Fake):
    """Vectors made of windows of a signal."""

    name = "signals"
    sample_noun = "window"
    shape = (192,)


def test_windows_of_a_signal_are_no_images(tmp_path: Path) -> None:
    counts = {"eta": {"seen": 60, "kept": 0, "steps": 0}, "sar": {"seen": 60, "kept": 15, "steps": 2, "resets": 1}}
    text, rows = section(made(tmp_path, ["source", "eta", "sar"], counts, seeds=[0], dataset=Signals()))
    assert "predicted as one class" in text and "no window counted there" in text
    assert any("kept 25.0 % of windows, 2 steps, 1 reset" in row for row in rows)
    assert not re.search(r"\b[Ii]mages?\b", text)
