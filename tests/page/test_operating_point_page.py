"""What the page says of operating points, of sites with one class, and of the worst external result."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_study
import intervals
import numpy as np
import pandas as pd
import pytest
from scored_study import results_of

from fedshift.analysis import study_results
from fedshift.analysis.conditions import ALL
from fedshift.page import behind_means, page, threshold_and_probabilities
from fedshift.page.answer import by_lead
from fedshift.study.plan import Run

CLASSES = ("healthy", "tumour")
ONE: dict[str, Any] = {
    "runs": [{"algorithm": "fedavg"}],
    "seeds": [0],
    "inferences": ["source"],
    "figures": [],
    "dataset": fake_study.Fake(classes=CLASSES),
    "partition": {"internal": fake_study.INTERNAL, "external": ("centre1", "centre2")},
}


def made(root: Path, right: fake_study.ShareRight, **changes: Any) -> study_results.StudyResults:
    return results_of(root, right, **ONE | changes)


def instead(monkeypatch: pytest.MonkeyPatch, right: Callable[[pd.DataFrame], pd.Series]) -> None:
    """Give the samples where `right` is true the probability 0.8 of their class, and the others 0.2."""

    def predict(table: pd.DataFrame, run: Run, *_: Any) -> pd.DataFrame:
        p1 = np.where(right(table) == (table["label"] == 1), 0.8, 0.2)
        return table.assign(p0=1 - p1, p1=p1)[["sample", "site", "role", "label", "p0", "p1"]]

    monkeypatch.setattr(fake_study, "predict", predict)


def only_ill(table: pd.DataFrame) -> pd.DataFrame:
    """centre1 has 46 samples, all with tumour."""
    there = table["site"] == "centre1"
    table = table[~there | (there.cumsum() <= 46)]
    return table.assign(label=table["label"].where(table["site"] != "centre1", 1))


def one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 of the 46 samples of centre1 are right: 8.7 %. Elsewhere 9 of 10 samples of a patient are."""

    def right(table: pd.DataFrame) -> pd.Series:
        there = table["site"] == "centre1"
        return (table.groupby("patient").cumcount() < 9).where(~there, there.cumsum() <= 4)

    instead(monkeypatch, right)


def text(results_: study_results.StudyResults) -> str:
    content = page.write(results_).read_text(encoding="utf-8")
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", content))).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "auc"])
def test_a_hospital_with_one_class_is_in_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    """Balanced accuracy and AUC are not defined there, so that it is in no mean and no "worst site"."""
    one_class(monkeypatch)
    found = made(tmp_path, fake_study.helps, change=only_ill, headline=metric)
    said, _, _ = text(found).partition("All metrics")
    assert "At centre1, which has only class tumour, sensitivity is 8.7 % (95% interval " in said
    assert "The worst external result is accuracy at centre1: 8.7 % (95% interval " in said
    assert "over patients), against 90.0 % at internal sites. It was picked as the worst of " in said


def test_the_class_is_healthy_where_that_is_the_positive_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_class(monkeypatch)
    changes: dict[str, Any] = {"positive": "healthy", "metrics": ["auc"], "headline": "auc", "threshold": "youden"}
    first, last = behind_means.worst_sentences(made(tmp_path, fake_study.helps, change=only_ill, **changes))
    chosen = "at the threshold chosen at home"
    assert first.startswith(f"At centre1, which has only class tumour, specificity {chosen} is 8.7")
    assert last.startswith(f"The worst external result is specificity at centre1, {chosen}: 8.7")


def test_the_worst_result_is_compared_with_its_own_level_at_home(tmp_path: Path) -> None:
    """Internal sites are right in 90 %, centre1 in 80 % and centre2 in 70 %: the first 7 of 10, classes in turn.

    At centre2 4 of 5 healthy samples are right, and 3 of 5 ill ones; at home 5 of 5 and 4 of 5. Both rates lose 20
    points, and so does accuracy: of equal ones the first is named, of 2 sites with 4 metrics.
    """
    rights = {"centre1": 0.8, "centre2": 0.7}
    found = made(tmp_path, lambda run, how, site, role: rights.get(site, 0.9))
    interval = intervals.percent(*intervals.alike(6, 10, 0.7, sites=1).level())
    assert behind_means.worst_sentences(found)[-1].startswith(
        "The worst external result is accuracy at centre2: 70.0\N{NO-BREAK SPACE}% "
        f"(95% interval {interval} over patients), against 90.0\N{NO-BREAK SPACE}% at internal sites. "
        "It was picked as the worst of 8 results"
    )


def test_the_worst_result_is_one_of_the_condition_that_leads(tmp_path: Path) -> None:
    """With aggregated batch norm, which is declared second, a site is worse still, and nothing is said of it."""

    def right(run: Run, how: str, site: str, role: str) -> float:
        outside = 0.7 if run.bn == "local" else 0.5
        return outside if site == "centre2" else 0.9

    runs = [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}]
    primary = {"condition": {"bn": "local"}, "against": {"bn": "aggregated"}, "smallest": 0.02}
    said = behind_means.worst_sentences(made(tmp_path, right, runs=runs, primary=primary))[-1]
    assert "at centre2: 70.0\N{NO-BREAK SPACE}%" in said
    assert ", against 90.0\N{NO-BREAK SPACE}% at internal sites, with FedAvg, local BN. It was picked" in said


def test_where_nothing_is_worse_outside_no_result_is_called_the_worst(tmp_path: Path) -> None:
    found = made(tmp_path, lambda run, how, site, role: 0.8 if role == "internal" else 0.9)
    assert behind_means.worst_sentences(found)[-1] == (
        "No metric in percent is worse at an external site than its mean over internal sites."
    )


def test_no_external_site_has_no_worst(tmp_path: Path) -> None:
    found = made(tmp_path, fake_study.helps, partition={"internal": fake_study.INTERNAL, "external": ()})
    assert behind_means.worst_sentences(found) == []


def test_more_than_two_classes_have_a_worst_and_no_operating_point(tmp_path: Path) -> None:
    found = made(tmp_path, fake_study.helps, dataset=fake_study.Fake(classes=("a", "b", "c")), metrics=["accuracy"])
    assert threshold_and_probabilities.operating_point_section(found) is None
    assert behind_means.worst_sentences(found)[0].startswith("The worst external result is accuracy at centre1: 60.0")
    assert "The positive class" not in text(found)


def test_the_section_shows_validation_first_and_every_site_at_its_threshold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10 samples of a patient 9 are right: 5 of 5 healthy ones, and 4 of 5 ill ones."""
    one_class(monkeypatch)
    found = made(tmp_path, fake_study.helps, change=only_ill, threshold={"specificity": 0.95})
    section = threshold_and_probabilities.operating_point_section(found)
    assert section is not None
    (table,) = section.tables
    rows = [[cell.text for cell in row] for row in table.rows]
    assert [row[:3] for row in rows] == [
        ["all internal sites", "validation", "Source"],
        ["centre0", "internal", "Source"],
        ["centre3", "internal", "Source"],
        ["centre1", "external", "Source"],
        ["centre2", "external", "Source"],
    ]
    column = dict(zip(table.header, zip(*rows, strict=True), strict=True))
    assert set(column["Threshold"]) == {"0.800"}
    assert column["Sensitivity"] == ("80.0", "80.0 (0.0)", "80.0 (0.0)", "8.7 (−71.3)", "80.0 (0.0)")
    assert column["Specificity"] == ("100.0", "100.0 (0.0)", "100.0 (0.0)", "–", "100.0 (0.0)")
    assert column["Prevalence"] == ("50.0", "50.0", "50.0", "100.0", "50.0")
    assert column["NPV"][3:] == ("0.0", "83.3")
    names = ("tumour flagged", "tumour missed", "healthy flagged", "healthy cleared")
    counts = list(zip(*(column[name] for name in names), strict=True))
    assert counts[3:] == [("4", "42", "0", "0"), ("24", "6", "0", "30")]
    assert column["Patients"][3:] == ("5", "6")
    assert "PPV and NPV are at the prevalence of the test samples beside them" in table.caption
    assert section.lines[0] == (
        "The model flags 9 of 100 tumour samples at centre1; 80 of 100 tumour and 0 of 100 healthy samples at centre2. "
        "The second number of each site is that of false alarms."
    )
    said = text(found)
    assert "The positive class is tumour" in said
    assert "the smallest score with a specificity of 0.95 or more" in said
    assert "chosen at home" in said and "carried to every site unchanged" in said
    assert "sensitivity at the threshold chosen at home is 8.7 %" in said
    assert "worst external result is accuracy at centre1: 8.7 %" in said


def test_predictive_values_at_a_declared_prevalence(tmp_path: Path) -> None:
    """At centre2 8 of 10 are right, 4 of 5 of either class; at 10 % that is 0.08 / (0.08 + 0.18), and 0.72 / 0.74."""
    rights = {"centre1": 0.8, "centre2": 0.8}
    found = made(tmp_path, lambda run, how, site, role: rights.get(site, 0.9), prevalence=0.1)
    section = threshold_and_probabilities.operating_point_section(found)
    assert section is not None
    (table,) = section.tables
    assert [name.replace("\N{NO-BREAK SPACE}", " ") for name in table.header[-2:]] == ["PPV at 10 %", "NPV at 10 %"]
    assert "Prevalence" not in table.header and "Threshold" not in table.header, "both are the same everywhere"
    shown = {row[0].text: (row[-2].text, row[-1].text) for row in table.rows}
    assert shown["centre2"] == ("30.8", "97.3")
    assert "PPV at 10 %" in text(found)
    assert "where 10 % of samples are positive" in text(found)


def test_the_protocol_has_rule_and_positive_class(tmp_path: Path) -> None:
    found = made(tmp_path, fake_study.helps, positive="healthy", threshold="youden")
    _, _, said = text(found).partition("Protocol Dataset")
    said = said[said.index("Operating point") :]
    assert "The positive class is healthy" in said and "Youden's index" in said
    assert "Sensitivity and specificity in the table of all metrics take tumour as the positive class." in said


def test_a_threshold_that_could_not_be_chosen_is_named(tmp_path: Path) -> None:
    split = {"train": 0.8, "val": 0, "test": 0.2}
    partition = {"internal": fake_study.INTERNAL, "external": ("centre1",), "split": split}
    found = made(tmp_path, fake_study.helps, partition=partition, threshold="youden", training={"select": "last"})
    section = threshold_and_probabilities.operating_point_section(found)
    assert section is not None and section.lines[-1].startswith("No threshold could be chosen for Source: a training")
    assert "No threshold could be chosen for Source" in text(found)


def test_the_light_says_what_is_missed_or_a_false_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At centre2 3 of 5 ill samples of each patient are right, at home 4 of 5: 40 and 20 % are missed.

    Five more are wrong: false alarms at centre2, the slope there, which is (log 3 + log 2) / (2 log 4) or 0.65, and
    observed over expected, which is 5 / 4.4 at both sites and at home.
    """
    monkeypatch.setattr(fake_study, "PATIENTS", 60)
    rights = {"centre1": 0.9, "centre2": 0.7}
    found = made(tmp_path, lambda run, how, site, role: rights.get(site, 0.9))
    said = threshold_and_probabilities.threshold_light(found)
    assert said is not None and said.status == "suspect"
    assert said.detail == "missed at centre2: 40.0 % of tumour, in validation at home 20.0 %; 5 more"


def test_the_light_says_that_probabilities_are_as_wrong_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everywhere half are ill and each has a probability of 0.3: 167 where 100 are expected, outside and at home."""
    monkeypatch.setattr(fake_study, "PATIENTS", 60)

    def predict(table: pd.DataFrame, run: Run, *_: Any) -> pd.DataFrame:
        return table.assign(p0=0.7, p1=0.3)[["sample", "site", "role", "label", "p0", "p1"]]

    monkeypatch.setattr(fake_study, "predict", predict)
    found = made(tmp_path, lambda run, how, site, role: 0.9)
    led, _ = by_lead(found.findings)
    wrong = [(one.site, one.words) for one in threshold_and_probabilities.misjudged(found.findings, led, "internal")]
    assert wrong == [(ALL, "too low")]
    said = threshold_and_probabilities.threshold_light(found)
    assert said is not None and said.status == "suspect"
    # 600 samples of 60 patients who are alike: each moves the logarithm of the ratio by 1 / 600.
    half = intervals.half(1 / 599, 59)
    interval = " to ".join(f"{100 * math.exp(end) / 0.6:.0f}" for end in (-half, half))
    assert said.detail == f"probabilities at centre1 are too low: 167 where 100 are expected ({interval}); 2 more"


def test_each_hospital_that_was_left_out_is_in_the_light_and_in_the_sentences(tmp_path: Path) -> None:
    """Only where centre3 is left out is anything wrong: 60 % of its answers are right, elsewhere 90 %."""
    partition = {"internal": ("centre0", "centre1", "centre3"), "external": (), "leave_one_out": True}

    def right(run: Run, how: str, site: str, role: str) -> float:
        return 0.6 if (site, role) == ("centre3", "external") else 0.9

    found = made(tmp_path, right, partition=partition, runs=[{"algorithm": "fedavg", "bn": ["aggregated", "local"]}])
    led, others = by_lead(found.findings)
    assert [condition.partition.external for condition in led] == [("centre0",), ("centre1",), ("centre3",)]
    assert {condition.bn for condition in led} == {"aggregated"} and {condition.bn for condition in others} == {"local"}
    said = threshold_and_probabilities.threshold_light(found)
    assert said is not None and said.status == "suspect" and "at centre3" in said.detail
    section = threshold_and_probabilities.operating_point_section(found)
    assert section is not None and re.findall(r"samples at (centre\d)", section.lines[0]) == [
        *("centre0", "centre1", "centre3"),
    ]
    assert [table.caption.partition(".")[0] for table in section.tables[:3]] == [
        f"FedAvg, aggregated BN, held out {site}" for site in ("centre0", "centre1", "centre3")
    ]
