"""The section on calibration of a page, and calibration.csv behind it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import fake_study
import intervals
import numpy as np
import pandas as pd
import pytest
from on_page import sections_of
from scored_study import results_of

from fedshift.analysis import study_results
from fedshift.page import page
from fedshift.page.threshold_and_probabilities import calibration_section
from fedshift.study.plan import Run

ONE: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "figures": ["calibration"]}


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_study, "PATIENTS", 10)


def graded(root: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> study_results.StudyResults:
    """Each patient has four samples at p = 0.2, one of them positive, and six at p = 0.5, four of them positive.

    So O/E is 5 / (0.8 + 3), and the line through the log-odds of the shares 1/4 and 2/3 at logit 0.2 and
    logit 0.5 has the slope log 6 / log 4. Seed 1 says 0.5 for both, which has no slope.
    """

    def samples(table: pd.DataFrame) -> pd.DataFrame:
        order = table.groupby("patient").cumcount()
        return table.assign(label=order.isin([0, 4, 5, 6, 7]).astype(int))

    def predict(table: pd.DataFrame, run: Run, *_: Any) -> pd.DataFrame:
        order = table.groupby("patient").cumcount()
        p1 = np.where(order < 4, 0.5 if run.seed == 1 else 0.2, 0.5)
        return table.assign(p1=p1, p0=1 - p1)[["sample", "site", "role", "label", "p0", "p1"]]

    monkeypatch.setattr(fake_study, "predict", predict)
    return results_of(root, change=samples, **ONE | {"seeds": [0]} | changes)


def of(found: study_results.StudyResults, quantity: str, site: str = "centre1") -> pd.DataFrame:
    rows = found.table("calibration")
    return rows[(rows["quantity"] == quantity) & (rows["site"] == site) & (rows["inference_id"] == "source")]


def test_numbers_of_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = graded(tmp_path, monkeypatch)
    (ratio,) = of(found, "observed_expected").itertuples()
    assert (ratio.mean, ratio.n, ratio.patients, ratio.of) == (
        pytest.approx(5 / 3.8),
        100,
        10,
        fake_study.Fake().classes[1],
    )
    # All patients are alike and count as their samples: a sample moves the logarithm by y / 50 - p / 38.
    y, p = np.tile([1, 0, 0, 0, 1, 1, 1, 1, 0, 0], 10), np.tile([0.2] * 4 + [0.5] * 6, 10)
    half = intervals.half(100 / 99 * ((y / 50 - p / 38) ** 2).sum(), 9)
    assert (ratio.low, ratio.high) == pytest.approx((5 / 3.8 * math.exp(-half), 5 / 3.8 * math.exp(half)))
    assert of(found, "slope")["mean"].item() == pytest.approx(math.log(6) / math.log(4))
    error = 0.4 * 0.05 + 0.6 * (2 / 3 - 0.5)
    assert of(found, "error")["mean"].item() == pytest.approx(error)
    perfect = math.sqrt(2 / math.pi / 100) * (math.sqrt(0.4 * 0.16) + math.sqrt(0.6 * 0.25))
    assert of(found, "error_perfect")["mean"].item() == pytest.approx(perfect)
    points = of(found, "point")
    assert points[["p", "mean"]].to_numpy().tolist() == pytest.approx(np.array([[0.2, 0.25], [0.5, 2 / 3]]))
    assert points[["n", "patients"]].to_numpy().tolist() == [[40, 10], [60, 10]]
    bars = [of(found, f"histogram_{value}")["mean"] for value in (0, 1)]
    assert [int(bar.sum()) for bar in bars] == [50, 50]
    inside = of(found, "slope", "*")
    assert (inside["role"].item(), inside["mean"].item()) == ("internal", pytest.approx(math.log(6) / math.log(4)))


def test_a_training_without_a_slope_leaves_the_site_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainings are measured one by one: O/E is the geometric mean of 5 / 3.8 and 5 / 5."""
    found = graded(tmp_path, monkeypatch, seeds=[0, 1])
    assert np.isnan(of(found, "slope")["mean"].item())
    assert of(found, "observed_expected")["mean"].item() == pytest.approx(5 / math.sqrt(3.8 * 5))
    assert of(found, "observed_expected")["seeds"].item() == 2
    text = page.write(found).read_text(encoding="utf-8")
    assert "not estimable" in text


def test_the_section_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_study, "PATIENTS", 80)
    found = graded(tmp_path, monkeypatch)
    study_results.draw(found, "calibration")
    shown = sections_of(found)["calibration"]
    (table,) = shown.tables
    assert table.header[3:6] == ("Observed / expected", "Intercept", "Slope")
    assert [(row[0].text, row[1].text, row[2].text, row[3].text) for row in table.rows][:2] == [
        ("centre1", "external", "Source", "1.32"),
        ("centre1", "external", "TsmoBN", "1.32"),
    ]
    assert table.rows[-1][0].text == "Mean of internal sites"
    assert shown.lines[0].startswith(f"Can the probability of class {fake_study.Fake().classes[1]} be taken")
    assert "surely not extreme enough (above 1) at" in shown.lines[0]
    text = page.write(found).read_text(encoding="utf-8")
    assert '<a href="#calibration">' in text and '<section id="calibration"' in text
    assert fake_study.EVIL not in text
    assert "How to read these columns" in text


def test_with_more_than_two_classes_it_is_about_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten of each patient's samples, of which eight get 0.7 for the right one of three classes."""

    class Three(fake_study.Fake):
        classes: tuple[str, ...] = ("a", "b", "c")

    def predict(table: pd.DataFrame, run: Run, *_: Any) -> pd.DataFrame:
        order = table.groupby("patient").cumcount()
        answer = np.where(order < 8, table["label"], 2)
        columns = {f"p{k}": np.where(answer == k, 0.7, 0.15) for k in range(3)}
        return table.assign(**columns)[["sample", "site", "role", "label", *columns]]

    monkeypatch.setattr(fake_study, "predict", predict)
    found = results_of(tmp_path, dataset=Three(), **ONE | {"seeds": [0]})
    assert set(found.table("calibration")["of"]) == {"the answer"}
    assert of(found, "observed_expected")["mean"].item() == pytest.approx(0.8 / 0.7)
    shown = calibration_section(found.findings, "patients")
    assert shown is not None
    assert "probability of the most probable class be taken" in shown.lines[0]
    assert "where it is right" in study_results.draw(found, "calibration").read_text(encoding="utf-8")


@pytest.mark.painted
def test_points_of_few_samples_are_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedshift.core import registry

    found = graded(tmp_path, monkeypatch)
    whole, none = (
        registry.build("figure", {"name": "calibration", "samples": n}).draw(found.for_figures) for n in (41, 61)
    )
    assert whole.count("<use") > none.count("<use")
